"""What each client contributes to a round's model, by the server's test set: ``contribution.*``.

v(S) is the accuracy (without one, minus the loss) of the mean of the models of the clients S, weighted as in
the round; v of the empty set is that of w^t.

leave-one-out   v(N) - v(N without k)
shapley         mean over orders of the clients of v(those before k, and k) - v(those before k)

Truncated as in GTG-Shapley (Liu et al., ACM TIST 2022, arXiv 2109.02053): a round that changes v by no more
than ``contribution.tolerance`` gives 0 to all clients, and an order ends once v is as near to v(N). With few
clients all orders are gone through, else ``contribution.orders`` random ones, in which each client is the
first in turn. The means are of models that were sent: nothing is trained again.

The rule gets what it gets in a run without: the mean is the exact one, to the bit.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from strategies.engine.fold import Folded
from strategies.engine.rule import TRAIN, Phase, RoundContext
from strategies.engine.stage import ServerStage
from strategies.engine.state import AggregatedReplies
from task.catalogue.record import MODEL_DOWN, MODEL_UP
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.reduce import mean_of
from task.numerics.seeds import ORDERS, rng_for
from task.resolve.contract import entry_of

CONTRIBUTION = "contribution"  # what clients.jsonl calls the value

Value = Callable[[frozenset[int]], float]


def leave_one_out(v: Value, clients: int) -> list[float]:
    """Return v(N) - v(N without k) of each client.

    >>> leave_one_out(lambda S: float(len(S) ** 2), 3)
    [5.0, 5.0, 5.0]
    """
    everybody = frozenset(range(clients))
    return [v(everybody) - v(everybody - {k}) for k in range(clients)]


def shapley(v: Value, clients: int, orders: int, tolerance: float, rng: np.random.Generator) -> list[float]:
    """Return each client's mean marginal value over orders; they add up to v(N) - v of the empty set."""
    everybody, nobody = frozenset(range(clients)), frozenset[int]()
    whole, totals = v(everybody), [0.0] * clients
    if abs(whole - v(nobody)) <= tolerance:
        return totals
    few = math.factorial(clients) <= orders
    chosen = [*permutations(range(clients))] if few else [_order(i, clients, rng) for i in range(orders)]
    for order in chosen:
        before, value = nobody, v(nobody)
        for k in order:
            last = before | {k}
            # what an order that ends early leaves goes to its next client, so that it adds up
            after = whole if abs(whole - value) < tolerance else v(last)
            totals[k] += after - value
            before, value = last, after
    return [total / len(chosen) for total in totals]


def _order(first: int, clients: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Return a random order in which one of the clients, in turn, is the first."""
    order = [int(k) for k in rng.permutation(clients)]
    first %= clients
    return (first, *(k for k in order if k != first))


@dataclass
class Values:
    """v, each set of clients measured once."""

    stack: NamedArrays
    weights: np.ndarray
    received: Arrays  # w^t
    measure: Callable[[Arrays], Mapping[str, float]]
    known: dict[frozenset[int], float] = field(default_factory=dict)

    def __call__(self, clients: frozenset[int]) -> float:
        """Return v(S)."""
        if clients not in self.known:
            model = mean_of(self.stack, clients, self.weights) if clients else self.received
            found = self.measure(model)
            self.known[clients] = found["accuracy"] if "accuracy" in found else -found["loss"]
        return self.known[clients]


def valued(folded: Folded, phase: Phase, context: RoundContext) -> AggregatedReplies:
    """Return a round's replies as the catalogue reduces them; add the values to the clients' numbers."""
    replies, config = folded.reduced, context.rule.config
    assert replies is not None
    stack, received = replies.arrays[MODEL_UP.name], phase.records[MODEL_DOWN.name]
    knobs, clients = config.contribution, len(replies.clients)
    if context.measure(received):
        v = Values(stack, replies.counts, received, context.measure)
        rng = rng_for(config.seeds.train, ORDERS, context.round)
        values = (
            leave_one_out(v, clients)
            if knobs.measure == "leave-one-out"
            else shapley(v, clients, knobs.orders, knobs.tolerance, rng)
        )
        for name, value in zip(replies.clients, values, strict=True):
            folded.metrics[name][CONTRIBUTION] = value
    if any(r.name == MODEL_UP.name and r.reduce == "collect" for r in entry_of(config).up):
        return replies
    mean = mean_of(stack, range(clients), replies.counts)
    return replace(replies, arrays={**replies.arrays, MODEL_UP.name: mean})


class ContributionStage(ServerStage):
    """Measures what each client of a round contributes."""

    name = "contribution"
    replayed = False  # a transcript has the sums, and no client's model

    def for_rule(self, phase: Phase, folded: Folded, context: RoundContext) -> AggregatedReplies | None:
        """Return the replies to a training as the catalogue reduces them."""
        return valued(folded, phase, context) if phase.name == TRAIN else None
