"""The contract of a run: its algorithm's catalogue entry with what other keys add to it; and its model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from task.codecs import CODECS
from task.config.knobs import Config
from task.datasets import spec_of
from task.errors import ConfigError
from task.models import build_model
from task.models.family import Given, Levels, Widths
from task.models.layer_split import last_linear, private_names, top_parameters
from task.population import listed
from task.references import is_reference
from task.resolve.private import check_covered
from task.secagg.grid import EXACT, check_rounded
from task.spec.brought import algorithm_of
from task.spec.columns import COLUMNS, columns_phase
from task.spec.encryption import with_encryption
from task.spec.entry import Algorithm
from task.spec.selections import SELECTIONS, with_selection
from task.spec.several import with_models
from task.spec.stages import with_stages
from task.spec.sub_models import with_sub_models
from task.tasks import TASKS, metrics_of

if TYPE_CHECKING:  # torch costs seconds
    from torch import nn


def entry_of(config: Config) -> Algorithm:
    """Return the entry of the run's algorithm, as the algorithm's own keys change it."""
    entry = algorithm_of(config.algorithm)
    if entry.solver == "ensemble" and config.ensemble.of == "site":
        return replace(entry, pooled="each", batched=False)  # a batch of members would hold the data M times
    if entry.models:
        section, _, key = entry.models.replace("-", "_").partition(".")
        return with_models(entry, getattr(getattr(config, section), key))
    return entry


def contract_of(config: Config) -> Algorithm:
    """Return the entry of the run's algorithm, under its selection policy and with its stages."""
    entry = with_selection(entry_of(config), config.server.selection)
    if config.data.learns_columns and not entry.vertical:  # parties learn those of their own columns
        phase = columns_phase(squares=config.data.standardise)
        entry = replace(entry, phases={**entry.phases, COLUMNS: phase})
    entry = with_stages(entry, stages_of(config))
    if config.parted:
        entry = with_sub_models(entry)
    if config.server.he:
        entry = with_encryption(entry)
    return replace(entry, metrics=True) if metrics_of(config, config.data.task) else entry


def stages_of(config: Config) -> frozenset[str]:
    """Return the stages that the run config names."""
    named = {"ala": config.train.ala, "attack": config.attack.kind != "none"}
    named["canary"] = config.dp.central and config.audit.canaries > 0
    codec = CODECS.get(config.codec.up)
    biased = codec is not None and codec.biased
    structured = config.structured.kind != "none"
    coded = (codec is not None and not biased) or structured
    named |= {"structured": structured, "codec": coded, "codec-with-feedback": biased}
    named |= {"dp": config.dp.central and not config.dp.adaptive, "adaptive-dp": config.dp.adaptive}
    named["example-dp"] = config.dp.local
    named["grid"] = config.server.secagg and config.server.secagg_bits < EXACT and not config.dp.central
    policy = SELECTIONS[config.server.selection].stages
    return frozenset(policy) | {name for name, on in named.items() if on}


@dataclass(frozen=True)
class Parts:
    """Names of a model's tensors by who knows them, in the model's order."""

    shared: tuple[str, ...]  # parameters and buffers that the server knows
    private: tuple[str, ...]  # those that never leave a client
    trainable: tuple[str, ...]  # the shared parameters
    top: tuple[str, ...] = ()  # those of them that adaptive local aggregation has weights for


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
    private = private_names(model, entry.private, layers, named)
    names = tuple(model.state_dict())
    trainable = tuple(n for n, p in model.named_parameters() if p.requires_grad and n not in private)
    shared = tuple(n for n in names if n not in private)
    if (who := _reads_features(entry, config)) and not is_reference(config.model):
        last_linear(model, who)
    buffers = [n for n in names if n not in dict(model.named_parameters())]
    check_covered(config, [n for n in shared if n not in trainable], buffers)
    integers = [n for n, t in model.state_dict().items() if n in shared and not t.is_floating_point()]
    if config.server.he and integers:
        raise ConfigError(
            f'run-config key "he": the model shares {integers[0]!r}, a counter, which ciphertexts do not '
            'hold exactly; expected a model without, or algorithm = "fedbn", which keeps it at the client; '
            f"got {config.model!r}"
        )
    if "grid" in entry.stages:
        state = model.state_dict()
        check_rounded(config.model, [n for n in shared if not state[n].is_floating_point()])
    top = top_parameters(trainable, config.fedala.layers) if "ala" in entry.stages else ()
    return Parts(shared, tuple(n for n in names if n in private), trainable, top)


def _reads_features(entry: Algorithm, config: Config) -> str:
    """Return the title of an algorithm whose clients read features in this run; "" = they do not."""
    off = (entry.solver == "moon" and not config.moon.mu) or (
        entry.solver == "fedphp" and config.fedphp.transfer != "mmd"
    )
    return entry.title if entry.features and not off else ""


def family_of(
    model: nn.Module, config: Config, shape: tuple[int, ...], given: Given = lambda client: 0.0
) -> Widths | None:
    """Return which parts of a run's model the clients train; None = all train the whole.

    `shape` is that of one example; `given` returns the width that a client's node said, 0 = none.

    Raises:
        ConfigError: The model has no such parts.
    """
    if not config.parted:
        return None
    from task.models.units import units_of

    widths, shares = zip(*config.widths, strict=True)
    scheme = config.width.scheme if config.width.levels else "random"
    levels = Levels(widths, shares, config.seeds.data, given)
    return Widths(units_of(model, shape, config.width_key), levels, scheme, config.seeds.train)


def model_of(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the run's initial model.

    Raises:
        ConfigError: It cannot read such data.
    """
    twin = algorithm_of(config.algorithm).private == "twin"
    return build_model(config.model, shape, classes, config.seeds.model, _kind(config), twin)


def _kind(config: Config) -> str:
    """Return "text" if the data are; else "", as a model says itself what it reads."""
    return "text" if spec_of(config.data.dataset).targets > 1 else ""


def check_model(config: Config, shape: tuple[int, ...], classes: int, task: str = "classification") -> None:
    """Try a model that the user brings, on made-up examples, before round 1; of ours do nothing.

    `task` is a name in `task.tasks.TASKS`.

    Raises:
        ConfigError: It cannot be trained, or is not of the form that the algorithm needs.
    """
    if not is_reference(config.model):
        return
    from task.models.brought import check_brought, check_linear

    entry = contract_of(config)
    last = {}
    if entry.private == "head" and not config.train.private_layers:
        last["personal.layers"] = config.personal.layers
    if entry.private == "body":
        last["lg-fedavg.layers"] = config.lg_fedavg.layers
    if "ala" in entry.stages:
        last["fedala.layers"] = config.fedala.layers
    check_brought(
        config.model,
        partial(model_of, config, shape, classes),
        shape,
        classes,
        text=_kind(config) == "text",
        logits=TASKS[task].classes,
        needs_features=_reads_features(entry, config),
        last_layers=last,
    )
    if entry.solver == "fsvrg-sparse":
        check_linear(config.model, model_of(config, shape, classes), shape)
