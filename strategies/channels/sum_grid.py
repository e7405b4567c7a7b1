"""Fixed-point sums for ``secagg-bits = 64 | 32``: the grid of a phase, and the means of its sums.

`task.secagg.fixed_point` has the formulas. The grid of a phase follows from the asked clients, the sum of
their registered weights, and ``max-update-norm``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from strategies.engine.rule import Phase
from strategies.engine.state import AggregatedReplies
from strategies.membership.client_registry import ClientRegistry
from task.catalogue.entry import Algorithm
from task.catalogue.record import Record
from task.config.knobs import Config
from task.datasets import targets_of
from task.errors import FieldError
from task.numerics.arrays import Arrays, NamedArrays
from task.secagg.fixed_point import SUM_GRID, exponent
from task.wire.layouts import base_of


class SumGrid:
    """The grids of one run's phases."""

    def __init__(self, config: Config, registry: ClientRegistry) -> None:
        self.server, self.registry = config.server, registry
        self.targets = targets_of(config.data)

    def scalars(self, contract: Algorithm, clients: Iterable[str]) -> dict[str, float]:
        """Return what the asked clients must know to round.

        Raises:
            ConfigError: They are too many.
        """
        asked = list(clients)
        if not asked:
            return {}
        bits, bound = self.server.secagg_bits, self.server.max_update_norm
        return {SUM_GRID: exponent(bits, len(asked), self._weight(contract, asked), bound)}

    def _weight(self, contract: Algorithm, asked: list[str]) -> int:
        """Return the largest possible sum of the asked clients' weights."""
        if contract.weight == "uniform":
            return len(asked)
        return max(self.targets * sum(self.registry.most_examples(asked).values()), 1)

    def means(self, phase: Phase, replies: AggregatedReplies, model: NamedArrays) -> AggregatedReplies:
        """Return the replies with means in the model's dtypes instead of sums of integers.

        Raises:
            FieldError: The weights are more than nodes registered, so that the sum may have wrapped.
        """
        weight, most = int(replies.counts.sum()), self._weight(phase.contract, list(phase.to))
        if weight > most:
            raise FieldError("num-examples", f"weights of {most} at most, as registered", f"{weight}")
        unit = 2.0 ** -phase.scalars[SUM_GRID] / weight
        found = {
            r.name: as_sent(r, {n: a * unit for n, a in replies.arrays[r.name].items()}, phase, model)
            for r in phase.contract.up
        }
        return replace(replies, arrays=found)


def as_sent(record: Record, change: NamedArrays, phase: Phase, model: NamedArrays) -> Arrays:
    """Return a mean change as the rule knows the record: in the model's dtypes; a model is whole."""
    base: Mapping[str, object] = base_of(record, phase.records, ()) or {}
    return {n: (base[n] + a if n in base else a).astype(model[n].dtype) for n, a in change.items()}
