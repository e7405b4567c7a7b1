"""The model of a run: how it is made, its parts by who knows them, and the kinds that clients have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from task.adapters.names import pairs_of
from task.catalogue.entry import Algorithm
from task.catalogue.record import PARAMETERS, PROTOTYPES
from task.config.knobs import Config
from task.datasets.condition import outputs_of
from task.datasets.public import no_logits
from task.errors import ConfigError
from task.features import Tensors, check_model_of
from task.models import build_model
from task.models.family import Given, Kind, Kinds, Levels, Named, Widths
from task.models.layer_split import last_linear, no_last_linear, private_names, top_parameters
from task.numerics.arrays import (
    Arrays,
    fixed_in,
    is_statistic,
    shared_state,
    state_of,
    tensors_of,
    ties_of,
)
from task.numerics.prototypes import no_prototypes
from task.population import listed
from task.references import is_reference
from task.resolve.contract import contract_of, entry_of
from task.resolve.interface import (
    interface_of,
    kind_read,
    made_up,
)

if TYPE_CHECKING:  # torch costs seconds
    from torch import nn


@dataclass(frozen=True)
class Parts:
    """Names of a model's tensors by who knows them, in the model's order."""

    shared: tuple[str, ...]  # parameters and buffers that the server knows
    private: tuple[str, ...]  # those that never leave a client
    trainable: tuple[str, ...]  # the shared parameters
    top: tuple[str, ...] = ()  # those of them that adaptive local aggregation has weights for
    # Those that nobody changes: the server and the clients know them, and no message has them.
    frozen: tuple[str, ...] = ()

    @property
    def whole(self) -> tuple[str, ...]:
        """Names of all tensors that are shared or private."""
        return (*self.shared, *self.private)

    def thawed(self, names: Iterable[str]) -> Parts:
        """Return the parts where what is frozen travels as the rest; `names` are the model's, in order."""
        both = frozenset(self.shared + self.frozen)
        return replace(self, shared=tuple(n for n in names if n in both), frozen=())


def parts_of(model: nn.Module, config: Config) -> Parts:
    """Return the parts of a run's model.

    Raises:
        ConfigError: The model has no such part, or is not of the form that the algorithm needs.
    """
    entry = contract_of(config)
    head = entry.private == "head"
    named = listed(config.train.private_layers) if head else ()
    layers = config.personal.layers if head and not named else 0
    layers = config.lg_fedavg.layers if entry.private == "body" else layers
    tensors, ties = tensors_of(model), ties_of(model)
    names = tuple(tensors)
    # A model that is cut or that several share a server with travels whole; of adapters only ranks are cut.
    cut = config.narrow and not pairs_of(dict(model.named_parameters()))
    whole = cut or config.by_kind or config.models.levels or entry.vertical
    frozen = () if whole else fixed_in(model)
    private = {ties.get(n, n) for n in private_names(model, entry.private, layers, named)}.difference(frozen)
    trainable = tuple(n for n, p in model.named_parameters() if p.requires_grad and n not in private)
    shared = tuple(n for n in names if n not in private and n not in frozen)
    if (who := reads_features(config)) and not is_reference(config.model):
        last_linear(model, who)  # they are what that layer reads
    buffers = tuple(n for n in names if n not in dict(model.named_parameters()) and n not in frozen)
    integers = tuple(n for n, t in tensors.items() if n in shared and not t.is_floating_point())
    untrained = tuple(n for n in shared if n not in trainable)
    check_model_of(config, entry, Tensors(config.model, trainable, untrained, buffers, integers))
    _check_statistics(entry, config.model, [n for n in buffers if is_statistic(n)])
    top = top_parameters(trainable, config.fedala.layers) if "ala" in entry.stages else ()
    return Parts(shared, tuple(n for n in names if n in private), trainable, top, frozen)


def _check_statistics(entry: Algorithm, model: str, buffers: list[str]) -> None:
    """Refuse statistics that training changes, where clients send only gradients and the server gets none."""
    if buffers and entry.up and all(r.layout == PARAMETERS for r in entry.up):
        other = f', or algorithm = "{entry.by_steps}" with batch-size = 0 and local-epochs = 1'
        other = other if entry.by_steps else ""
        raise ConfigError(
            f'run-config key "model": the clients of {entry.title} send a gradient and no buffers such as '
            f"{buffers[0]!r}, so that the model would be measured with those of round 0; expected a model "
            "without batch normalisation"
            f"{other}; got {model!r}"
        )


def reads_features(config: Config) -> str:
    """Return the title of the run's algorithm if its clients read features; "" = they do not."""
    entry = entry_of(config)
    return entry.title if entry.features else ""


def initial_of(
    model: nn.Module, config: Config, shape: tuple[int, ...], classes: int, parts: Parts | None = None
) -> Arrays:
    """Return what the server of a run begins with: what it shares of the initial model, or a table.

    `shape` is that of one example; `parts` are by default those of `parts_of`.

    Raises:
        ConfigError: The model is not of the form that the algorithm needs.
    """
    if any(r.layout == PROTOTYPES for r in contract_of(config).up):
        return no_prototypes(classes, features_of(model, config, shape, classes))
    if contract_of(config).public:
        return no_logits(config, classes)
    parts = parts or parts_of(model, config)
    return shared_state(model, parts.shared)


def features_of(model: nn.Module, config: Config, shape: tuple[int, ...], classes: int) -> int:
    """Return f, the inputs of the last linear layer of a run's model."""
    who = reads_features(config)
    if not is_reference(config.model):
        return last_linear(model, who).in_features
    from task.models.brought import output_layer

    path = output_layer(model, made_up(config, shape, classes, model))
    if path is None:
        raise no_last_linear(who, model)
    return int(dict(model.named_modules())[path].in_features)


def family_of(
    model: nn.Module,
    config: Config,
    shape: tuple[int, ...],
    given: Given = lambda client: 0.0,
    named: Named = lambda client: None,
) -> Widths | Kinds | None:
    """Return which parts of a run's model the clients train; None = all train the whole.

    `shape` is that of one example; `given` and `named` return the width and the model that a client's node
    said, 0 and None = none.

    Raises:
        ConfigError: The model has no such parts.
    """
    if not config.parted:
        return None
    if config.by_kind:
        sizes = {name: 0 for name, _ in config.models.by_level()}
        for name in sizes:
            sizes[name] = sum(a.size for a in Kind(name).take(state_of(model)).values())
        return Kinds(levels_of(config, named), max(sizes, key=sizes.__getitem__))
    from task.models.units import units_of

    widths, shares = zip(*config.widths, strict=True)
    scheme = config.width.scheme if config.width.levels else "random"
    levels = Levels(widths, shares, config.seeds.data, given)
    return Widths(units_of(model, shape, config.part_key), levels, scheme, config.seeds.train)


def levels_of(config: Config, given: Named = lambda client: None) -> Levels[str]:
    """Return who has which model, by name; all have the run's where its clients' are alike.

    `given` returns the model that a client's node said.
    """
    names, shares = zip(*(config.models.by_level() or ((config.model, 1.0),)), strict=True)
    return Levels(names, shares, config.seeds.data, given)


def model_of(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the run's initial model; where its clients have several, that of the first level.

    Where the server has a model of each level (`Config.by_kind`) it is all of them, side by side.

    Raises:
        ConfigError: It cannot read such data.
    """
    twin = config.entry.private == "twin"
    names, features = config.model_names, config.models.features
    if config.by_kind:
        from task.models.kinds import SideBySide

        return SideBySide({name: model_of(config.with_model(name), shape, classes) for name in names})
    outputs, trainable = outputs_of(config, classes), listed(config.trainable)
    interface = interface_of(config, classes) if is_reference(names[0]) else None
    seed, kind = config.seeds.model, kind_read(config)
    return build_model(names[0], shape, outputs, seed, kind, twin, features, trainable, interface)
