"""Loads the model of a run: the global one, or a client's own."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from server_app.results.folder import RunFolder
from server_app.takeout.clients import Clients
from server_app.takeout.last_order import evaluation_order, last_order
from server_app.takeout.model_file import ModelFile, read_file
from task.catalogue.entry import Algorithm, evaluation_of
from task.config.knobs import Config
from task.config.read import read_checked
from task.datasets import Dataset, spec_of
from task.errors import ConfigError, StateError
from task.numerics.arrays import Arrays, tensors_of
from task.numerics.tensors import load_into
from task.population import some
from task.references import check_origin
from task.resolve.contract import contract_of
from task.resolve.kept_model import read_kept_model
from task.resolve.model_card import ModelCard
from task.resolve.run_model import model_of, parts_of
from task.wire import messages as wire


@dataclass(frozen=True)
class TakenModel:
    """A model that can be used."""

    card: ModelCard
    model: nn.Module  # on the CPU, in evaluation mode
    config: Config  # of the run; without its folders if only the model's file is there
    # Of a client's own model: its data, and its rows of the test.
    tests: tuple[Dataset, npt.NDArray[np.int64]] | None = None
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


def take(run: Path, client: str = "") -> TakenModel:
    """Load the model of a run, or the own model of one of its clients; raises what `taken_of` does.

    `run` is a result folder, the name of one below runs/, or a model file.
    """
    return taken_of(read_file(run), client)


def taken_of(file: ModelFile, client: str = "") -> TakenModel:
    """Make the model of a file, or load the own model of a client of its run.

    Raises:
        ConfigError: There is no such model, or the run's own models are the clients' and none is named.
        StateError: The arrays are of another model, or the client's state is not on this machine.
    """
    if file.entry.statistics or file.entry.vertical:
        raise file.no_model()
    if client and file.card.taken.get("client") != client:
        return _own(file, client)
    return _global(file.path, file.card, file.arrays, file.config, _last(file.folder))


def _last(folder: RunFolder | None) -> int | None:
    """Return a run's last round; None = without its folder nobody knows."""
    if folder is None:
        return None
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
    clients = Clients(config, kept.node, card)
    order = evaluation_order(kept.round, arrays, entry, client, kept.run, kept.void)
    return own_of(clients, card, config, entry, order, arrays)


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


def _own(file: ModelFile, client: str) -> TakenModel:
    """Return the own model of a client of a run that was simulated on this machine."""
    if file.folder is None:
        raise ConfigError(
            f"--client {client}: expected the folder of a run whose clients keep models; got {file.path}"
        )
    config, place = file.config, file.folder.path
    entry = _personal(config, client)
    if spec_of(config.data.dataset).own and not config.data.data_path:
        raise ConfigError(
            f"--client {client}: {place} is of a deployed run, whose clients' models are "
            "stored on their nodes; there: bouquet predict --kit KIT, if keep-models = true in "
            "[policy] of its kit.toml"
        )
    clients, run = Clients(config, {}, file.card), str(file.folder.config()["id"])
    order = last_order(place, _last(file.folder) or 0, file.arrays, entry, client, run)
    return own_of(clients, file.card, config, entry, order, file.arrays)


def _personal(config: Config, client: str) -> Algorithm:
    """Return the contract of the run's evaluation, if its clients have models of their own."""
    entry = evaluation_of(contract_of(config))
    if not entry.personal:
        raise ConfigError(
            f"--client {client}: the clients of {config.algorithm} have no models of their own; leave "
            "--client out"
        )
    return entry


def own_of(
    clients: Clients, card: ModelCard, config: Config, entry: Algorithm, order: wire.TrainOrder, given: Arrays
) -> TakenModel:
    """Return the own model of the client of an order, with the card of its kind of model."""
    found = clients.own_model(entry, order, given)
    if config.models.levels:
        rest = {k: v for k, v in card.run.items() if k not in ("models.levels", "models.shares")}
        card = replace(card, run={**rest, "model": found.name})
    (client,) = order.clients
    tests = found.dataset, found.tests
    return TakenModel(card, found.model.eval(), config, tests, client, order.round)
