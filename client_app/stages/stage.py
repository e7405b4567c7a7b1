"""Stages on the node: hooks around the training of one message's clients.

Clients that train together are a cohort; `start` and `finish` of one come in pairs. What a stage keeps for a
client between rounds it declares as a record of the contract (`task.catalogue.stages`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from client_app.data.node import Node
from client_app.solvers.sgd import Finished
from client_app.training.loop import Examples, LocalTask
from client_app.training.programs import Program
from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.errors import FieldError
from task.numerics.arrays import Arrays, squared_norm
from task.numerics.held import dense
from task.tasks.evaluate import Test
from task.wire import messages as wire
from task.wire.checks import check_arrays
from task.wire.layouts import base_of
from task.wire.norms import NormBound

Outcome = tuple[str, wire.ClientUpdate | Exception]


def each(clients: Iterable[str], work: Callable[[str], wire.ClientUpdate | Exception]) -> Iterator[Outcome]:
    """Yield each client with what it sends, or with what went wrong."""
    for client in clients:
        try:
            yield client, work(client)
        except Exception as err:  # `client_app.app` distinguishes a client's failure from a bug
            yield client, err


def changed(
    outcomes: Iterable[Outcome], change: Callable[[str, wire.ClientUpdate], wire.ClientUpdate]
) -> Iterator[Outcome]:
    """Yield each client with its changed upload, or with its error."""
    for client, outcome in outcomes:
        if isinstance(outcome, Exception):
            yield client, outcome
            continue
        try:
            yield client, change(client, outcome)
        except FieldError as err:
            yield client, err


class Stage:
    """A stage that does nothing; the base of every other."""

    names: ClassVar[tuple[str, ...]] = ()  # what contracts call it (`task.catalogue.stages`)
    adapts: bool = False  # whether `start` needs the client's training data
    rehearses: ClassVar[bool] = False  # whether `client_app.trial` takes its step with it

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        self.node, self.entry, self.order = node, entry, order

    @cached_property
    def bound(self) -> NormBound:
        """The bound on what goes up, as the node and the server check it."""
        model, trainable = self.order.arrays.get(wire.ARRAYS, {}), frozenset(self.node.parts().trainable)
        most = self.node.config.server.max_update_norm
        return NormBound(most, model, trainable, others=self.order.arrays)

    def makes(self, client: str) -> bool:
        """Return whether `send` makes the client's upload, so that it does not train."""
        return False

    def program(self, model: torch.nn.Module, program: Program) -> Program:
        """Return the program that trains a model, in place of the one that the run's keys ask for."""
        return program

    def examples(self, examples: Examples, cohort: Sequence[str]) -> Examples:
        """Return the examples that a cohort trains on instead of its own."""
        return examples

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Change in place what the cohort starts from, before the first step, given what each client kept."""

    def rehearse(self, task: LocalTask) -> None:
        """Change in place what a trial of one client starts from; it leaves no trace."""

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Return what goes up and what is kept, after the last step, for each client of the cohort."""
        return finished

    def changes(self, client: str, upload: wire.ClientUpdate, records: Iterable[Record]) -> dict[str, Arrays]:
        """Return, by record, what a client sends less what it received of it, in float64.

        Raises:
            FieldError: A number is not finite.
        """
        received, parameters = self.order.received(client), self.node.parts().trainable
        found: dict[str, Arrays] = {}
        for r in records:
            arrays = upload.arrays[r.name]
            check_arrays(r.name, arrays, arrays)
            base = base_of(r, received, parameters)
            assert base is not None  # else it was refused before round 1
            whole = {n: dense(a) for n, a in arrays.items()}  # a sparse code decodes to few numbers
            found[r.name] = {n: np.subtract(a, base.get(n, 0), dtype=np.float64) for n, a in whole.items()}
        return found

    def remeasured(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        """Return an upload whose records this stage has changed with those scalars that are norms of them."""
        parameters, squares = self.node.parts().trainable, {}
        for s in (s for s in self.entry.up_scalars if s.square_of):
            try:
                changes = self.changes(client, upload, (r for r in self.entry.up if r.name == s.square_of))
            except FieldError:
                return upload  # which is refused for that
            of = {n: a for n, a in changes[s.square_of].items() if n in parameters}
            squares[s.name] = squared_norm(of)
        return replace(upload, scalars={**upload.scalars, **squares}) if squares else upload

    def tested(self, client: str, test: Test) -> dict[str, Arrays]:
        """Return further records of an evaluation, given what tests the client's model on examples."""
        return {}

    def send(self, outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
        """Pass on the uploads of all clients of the node as they come, or why there is none."""
        return outcomes
