"""A party of a vertical algorithm: its columns, ids, perhaps the labels, and the common rows.

A node's own table is one party's. Of a data set that is split by columns each client has all rows, with the
row's number as its id, and the first client has the labels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from client_app.data.node import Node, OneClient
from client_app.memory.memory import Memory
from client_app.stages.stage import Outcome, each
from client_app.training.local_optimizer import SGD
from task.catalogue.entry import SUMS, Algorithm
from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.column_split import columns_of
from task.errors import StateError, WireError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.numerics.moments import moments_of, sums_of
from task.population import listed
from task.tasks.evaluate import measure
from task.vertical.proofs import Prover, to_row
from task.vertical.rows import Rows, epoch_order, num_tests
from task.wire import messages as wire
from task.wire.layouts import ROWS

Kept = dict[str, Arrays]


@dataclass(frozen=True)
class Party:
    """A client with columns of its own."""

    node: Node
    name: str

    @cached_property
    def columns(self) -> slice:
        """Which of the places along the last axis of an example are the party's."""
        node = self.node
        if isinstance(node.clients, OneClient):
            return slice(None)
        number = node.clients.index(self.name)
        return columns_of(node.dataset, node.config.data.columns, node.clients.num_clients)[number]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one of its examples."""
        *rest, last = self.node.dataset.input_shape
        return (*rest, len(range(last)[self.columns]))

    @property
    def inputs(self) -> int:
        """p_k, numbers that its bottom model reads of a row."""
        return int(np.prod(self.shape))

    @property
    def labelled(self) -> bool:
        """Whether it has the labels."""
        node = self.node
        return node.dataset.labelled and (
            isinstance(node.clients, OneClient) or not node.clients.index(self.name)
        )

    @property
    def ids(self) -> Sequence[str]:
        """Who its rows are of, in their order."""
        ids = self.node.dataset.ids
        return [str(i) for i in range(len(self.node.dataset.y))] if ids is None else ids.tolist()


@dataclass(frozen=True)
class AlignedParty:
    """A party, and its rows that all parties have, in the common order: those of the test first."""

    party: Party
    rows: Rows  # numbers of its rows
    # Mean and deviation of its columns over the rows that are trained on, float64; None = not yet known.
    scale: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    @property
    def config(self) -> Config:
        """The run."""
        return self.party.node.config

    @property
    def tests(self) -> Rows:
        """The rows of the test."""
        return self.rows[: num_tests(len(self.rows), self.config)]

    def epoch(self, server_round: int) -> Rows:
        """Return the rows that are trained on, in the order of a round."""
        train = self.rows[num_tests(len(self.rows), self.config) :]
        return train[epoch_order(len(train), self.config, server_round)]

    def kept(self) -> Arrays:
        """Return what `aligned` reads back."""
        x = self.x(np.sort(self.rows[num_tests(len(self.rows), self.config) :])).double()
        x = x.nan_to_num()  # an algorithm that allows gaps doesn't standardise columns
        spread = x.std(0, correction=0)
        std = torch.where(spread > 0, spread, torch.ones_like(spread))
        return {"rows": self.rows, "mean": x.mean(0).cpu().numpy(), "std": std.cpu().numpy()}

    @cached_property
    def _dataset(self) -> Dataset:
        """The data set, a table filled and standardised by the party's own rows that are trained on."""
        dataset = self.party.node.dataset
        preparation = dataset.preparation
        if preparation is None or not preparation.learns:
            return dataset
        train = np.sort(self.rows[num_tests(len(self.rows), self.config) :])
        x = np.asarray(dataset.x[train], dtype=np.float32)
        sums = sums_of(preparation.values(x), preparation.numeric)
        moments = moments_of(sums["column-sums"], sums["column-squares"] if preparation.standardise else None)
        return replace(dataset, preparation=preparation.with_moments(moments))

    def x(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return the party's columns of some rows."""
        node = self.party.node
        x = self._dataset.inputs(rows)[..., self.party.columns]
        if self.scale is not None and self.config.vertical.standardise:
            mean, std = (torch.from_numpy(a) for a in self.scale)
            x = ((x.double() - mean) / std).float()
        return x.contiguous().to(node.device)

    def y(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return the targets of some rows, at the party that has them."""
        node = self.party.node
        return node.task.targets(node.dataset, rows).to(node.device)


def aligned(node: Node, client: str, kept: NamedArrays) -> AlignedParty:
    """Return a party with the rows that it keeps from before round 1.

    Raises:
        StateError: It keeps none, or its data have changed since.
    """
    party, rows = Party(node, client), kept.get("rows", np.zeros(0, np.int64))
    if not len(rows) or int(rows.max()) >= len(node.dataset.y):
        raise StateError(
            f"client {client}: expected the common rows that were matched when the run started; got "
            f"{'none' if not len(rows) else 'rows that the data no longer have'}. Resume the run: it "
            "matches them again"
        )
    return AlignedParty(party, rows, (kept["mean"], kept["std"]))


def digest_of(part: Arrays) -> Arrays:
    """Return the SHA-256 of a party's part of the model, [1, 32]."""
    return {ROWS: np.frombuffer(bytes.fromhex(sha256(part)), np.uint8).reshape(1, 32)}


@dataclass
class PartyModel:
    """What a party has of a model as it stands, ready to go on."""

    data: AlignedParty
    optimizer: SGD
    windows: int  # of the round that it has trained on
    kept: Kept

    def arrays(self) -> Arrays:
        """Return the parameters, copied."""
        raise NotImplementedError

    def digest(self) -> Arrays:
        """Return the SHA-256 of the parameters, [1, 32]."""
        return digest_of(self.arrays())

    def keep(self, server_round: int) -> Kept:
        """Return what the party keeps of it."""
        velocity = {str(i): v.cpu().numpy().copy() for i, v in enumerate(self.optimizer.velocity)}
        step = {"round": np.array(server_round), "windows": np.array(self.windows)}
        return {"part": self.arrays(), "velocity": velocity, "step": step}


class PartyWork:
    """What the parties among an order's clients do in one phase."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        self.node, self.entry, self.order = node, entry, order
        self.memory = Memory(node, entry, order)

    @property
    def config(self) -> Config:
        """The run."""
        return self.node.config

    @property
    def parties(self) -> list[str]:
        """All parties, sorted."""
        return sorted({*(listed(self.config.vertical.parties) or self.order.population)})

    @property
    def prover(self) -> Prover | None:
        """The prover of this node; None if all nodes have all columns (partition=columns)."""
        return self.node.owner.prover if isinstance(self.node.clients, OneClient) else None

    def proof(self, signed: bytes) -> np.ndarray:
        """Return the proof of what this node signs, as a row of bytes; empty where it proves nothing."""
        prover = self.prover
        return to_row(prover.prove(signed) if prover else b"")

    def given(self, client: str, record: str) -> np.ndarray:
        """Return the rows of a record that came for a party."""
        found: np.ndarray = self.order.per_client[record][client][client][ROWS]
        return found

    def embeddings(self, tests: Rows | None = None) -> np.ndarray:
        """Return what the others sent of the rows, side by side.

        Raises:
            WireError: They are not as many as the `tests`.
        """
        found: np.ndarray = self.order.arrays["embeddings"][ROWS]
        if tests is not None and len(found) != len(tests):
            raise WireError(f"embeddings: expected those of {len(tests)} test rows; got {len(found)}")
        return found

    def measured(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> wire.ClientUpdate:
        """Return what a whole model makes of the test rows."""
        found, sums = measure(model, x.to(y.device), y, task=self.node.task)
        return wire.ClientUpdate({SUMS.name: sums} if self.entry.metrics else {}, found)

    def wrong_round(self, client: str, last: int, kept: Kept) -> StateError:
        """Return the error of a party that does not keep its part of the model of the last round."""
        got = f"that of round {int(kept['step']['round'])}" if "step" in kept else "none"
        return StateError(
            f"client {client}: expected its part of the model of round {last}; got {got}. Restore the state "
            "folder of its node and resume the run, or start another run"
        )

    def wrong_step(self, client: str, what: str, steps: int, got: object) -> StateError:
        """Return the error of a party that is at another step of the round."""
        return StateError(
            f"client {client}: expected its {what} after {steps} steps of round {self.order.round}; got "
            f"{got}. Resume the run: it repeats the round"
        )

    def run(self, step: Callable[[str], tuple[wire.ClientUpdate, Kept]]) -> Iterator[Outcome]:
        """Yield each client with what it sends, or with what went wrong."""
        devices = [self.node.device] if self.node.device.type == "cuda" else []

        def done(client: str) -> wire.ClientUpdate | Exception:
            with self.memory.locked([client]), torch.random.fork_rng(devices=devices):
                upload, keep = step(client)
                return self.memory.keep(client, upload, keep) if keep else upload

        return each(self.order.clients, done)

    def optimizer(self, parameters: list[torch.Tensor], kept: Kept) -> SGD:
        """Return SGD for a kept part, with its velocity."""
        made, velocity = SGD(self.config.train, parameters), kept.get("velocity", {})
        if velocity:
            held = [torch.from_numpy(velocity[str(i)].copy()) for i in range(len(velocity))]
            made.velocity = [v.to(p.device) for v, p in zip(held, parameters, strict=True)]
        return made
