"""Loads the model of a run: the global one, or a client's own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from client_app.data.node import Node, open_node
from client_app.own_models import kept_model
from server_app.results.folder import CONFIG, ENCRYPTED, MODEL, RunFolder, place_of
from server_app.takeout.last_order import evaluation_order, last_order, without
from task.catalogue.entry import Algorithm, evaluation_of
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.read import read_checked
from task.datasets import spec_of
from task.datasets.columns import with_moments
from task.errors import ConfigError, StateError
from task.numerics.arrays import Arrays, tensors_of
from task.numerics.tensors import load_into
from task.population import some
from task.references import check_origin
from task.resolve.contract import contract_of
from task.resolve.kept_model import read_kept_model
from task.resolve.model_card import DIGESTS, ModelCard, read_model
from task.resolve.run_model import model_of, parts_of
from task.wire import messages as wire


@dataclass(frozen=True)
class TakenModel:
    """A model that can be used."""

    card: ModelCard
    model: nn.Module  # on the CPU, in evaluation mode
    config: Config  # of the run; without its folders if only the model's file is there
    node: Node | None = None  # of a client's own model: the clients that the run's partition has
    client: str = ""
    round: int | None = None  # the last one that it was trained in; None = a model's file does not say

    @property
    def notes(self) -> list[str]:
        """Lines about what the user may not expect of the model."""
        name, entry = self.config.algorithm, contract_of(self.config)
        if self.client and entry.ensemble:
            return [f"this is the ensemble's member {self.client}, not the vote of all members"]
        if entry.personal and not self.client and "client" not in self.card.taken:
            return [f"this is the server's model; the models of {name} are the clients' own: --client NAME"]
        return []


def find(run: Path) -> Path:
    """Return the model file that a command names: itself, or that of a run's folder or of one below runs/.

    Raises:
        ConfigError: There is none.
    """
    place = place_of(run)
    if not place.exists():
        raise ConfigError(
            f"expected a result folder, a run's name below runs/ or a model.safetensors; got {run}"
        )
    if place.is_dir() and not (place / MODEL).exists():
        if (place / ENCRYPTED).exists():
            raise ConfigError(
                f"{place}: its model is encrypted; on a machine with the kit of a node: "
                f"bouquet decrypt {place} --kit KIT"
            )
        state = "has not finished; continue it with --resume" if (place / CONFIG).exists() else "is no run"
        raise ConfigError(f"{place}: expected a folder with {MODEL}; this one {state}")
    return place / MODEL if place.is_dir() else place


def take(run: Path, client: str = "") -> TakenModel:
    """Load the model of a run, or the own model of one of its clients.

    `run` is a result folder, the name of one below runs/, or a model file.

    Raises:
        ConfigError: There is no such model, or the run's own models are the clients' and none is named.
        StateError: A file is damaged, or the client's state is not on this machine.
    """
    path = find(run)
    card, arrays = read_model(path)
    check_origin(card.run, path)
    if algorithm_of(card.config.algorithm).statistics:
        raise ConfigError(
            f"{path}: expected a model; got a table of {card.config.algorithm}. Its folder has table.csv "
            "and table.tex; to read it: bouquet export RUN --format summary"
        )
    if algorithm_of(card.config.algorithm).vertical:
        raise ConfigError(
            f"{path}: expected a model that one party holds; got one of {card.config.algorithm}, "
            f"which is split between parties; the file has {DIGESTS}. The run evaluates it with all parties: "
            "client_accuracy in rounds.jsonl"
        )
    folder = RunFolder(path.parent) if (path.parent / CONFIG).exists() and path.name == MODEL else None
    if client and card.taken.get("client") != client:
        return _own(folder, path, card, arrays, client)
    config = _config(folder) if folder else card.config
    return _global(path, card, arrays, config, _last(folder) if folder else None)


def _config(folder: RunFolder) -> Config:
    """Return the keys of a run's folder, whose references are its maker's word and not the user's."""
    keys = folder.config()["run"]
    check_origin(keys, folder.path / CONFIG)
    return read_checked(keys)


def _last(folder: RunFolder) -> int:
    rounds = folder.rounds()
    return int(rounds[-1]["round"]) if rounds else 0


def take_kept(path: Path, client: str = "") -> TakenModel:
    """Load the global model that a node has kept of a run, or the own model of one of its clients.

    Raises:
        ConfigError: The run's models are the clients' own and none is named, or the node has no such client.
        StateError: A file is damaged, or the client's state is gone.
        DataError: The node's data, which a client's own model may need, cannot be read.
    """
    card, arrays, kept = read_kept_model(path)
    check_origin(kept.keys, path)
    config = read_checked(kept.keys)
    if not client:
        if not arrays:
            raise ConfigError(
                f"{path}: expected --client NAME, since {config.algorithm} sends no global model to nodes"
            )
        return _global(path, card, arrays, config, kept.round)
    entry = _personal(config, client)
    if entry.models:
        raise ConfigError(
            f"--client {client}: expected a run with one global model, which nodes store; got one "
            f"of {config.algorithm}, with {len(entry.down)}. Its run folder has them"
        )
    node = _open(config, kept.node, card)
    order = evaluation_order(kept.round, arrays, entry, client, kept.run, kept.void)
    return _own_of(node, card, config, entry, order, arrays)


def _global(path: Path, card: ModelCard, arrays: Arrays, config: Config, last: int | None) -> TakenModel:
    model = model_of(card.config, card.input_shape, card.num_classes)
    _load(model, arrays, path, card)
    return TakenModel(card, model.eval(), config, round=last)


def _load(model: nn.Module, arrays: Arrays, path: Path, card: ModelCard) -> None:
    """Put a whole model's arrays into a module.

    Raises:
        ConfigError: It is the shared part of a model only.
        StateError: The file holds another model.
    """
    state = tensors_of(model)
    private = set() if card.taken.get("client") else set(parts_of(model, card.config).private)
    if private and private.isdisjoint(arrays):
        names = some(sorted(private))
        raise ConfigError(
            f"{path}: expected --client NAME, since the models of {card.config.algorithm} are the clients' "
            f"own; this file has only their shared part, without {names}"
        )
    expected = {name: tuple(t.shape) for name, t in state.items()}
    found = {name: a.shape for name, a in arrays.items()}
    if found != expected:
        differs = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
        raise StateError(
            f'{path}: expected the arrays of model "{card.model}"; got others: {some(differs)}. '
            "The model's code has changed, or the file is another run's."
        )
    load_into(model, arrays)


def _own(folder: RunFolder | None, path: Path, card: ModelCard, arrays: Arrays, client: str) -> TakenModel:
    """Return the own model of a client of a run that was simulated on this machine."""
    if folder is None:
        raise ConfigError(
            f"--client {client}: expected the folder of a run whose clients keep models; got {path}"
        )
    record = folder.config()
    config = _config(folder)
    entry = _personal(config, client)
    if spec_of(config.data.dataset).own and not config.data.data_path:
        raise ConfigError(
            f"--client {client}: {path.parent} is of a deployed run, whose clients' models are "
            "stored on their nodes; there: bouquet predict --kit KIT, if keep-models = true in "
            "[policy] of its kit.toml"
        )
    node = _open(config, {}, card)
    order = last_order(path.parent, _last(folder), arrays, entry, client, str(record["id"]))
    return _own_of(node, card, config, entry, order, arrays)


def _personal(config: Config, client: str) -> Algorithm:
    """Return the contract of the run's evaluation, if its clients have models of their own."""
    entry = evaluation_of(contract_of(config))
    if not entry.personal:
        raise ConfigError(
            f"--client {client}: the clients of {config.algorithm} have no models of their own; leave "
            "--client out"
        )
    return entry


def _open(config: Config, node_config: Mapping[str, Any], card: ModelCard) -> Node:
    """Open the data of the clients, on the CPU and prepared as in training."""
    node = open_node(replace(config, train=replace(config.train, device="cpu", threads=0)), node_config)
    if card.moments and node.dataset.preparation:
        node = replace(node, dataset=with_moments(node.dataset, card.moments))
    return node


def _own_of(
    node: Node, card: ModelCard, config: Config, entry: Algorithm, order: wire.TrainOrder, given: Arrays
) -> TakenModel:
    (client,), node = order.clients, node.at(order.round)
    if client not in node.clients.names:
        raise ConfigError(f"--client: expected one of {some(list(node.clients.names))}; got {client!r}")
    node = node.having(given)
    order = without(order, node.parts().frozen)
    model = kept_model(node, entry, order, client)
    if config.models.levels:
        rest = {k: v for k, v in card.run.items() if k not in ("models.levels", "models.shares")}
        card = replace(card, run={**rest, "model": node.seen_by(client).model})
    return TakenModel(card, model.eval(), config, node, client, order.round)
