"""Examples that arrive over the rounds, and clients that join late.

Client k with N_k training examples joins in round a_k: 1, or ``arrive.round`` of a late one. In round
r it has the age r - a_k + 1, and of its examples, in an order of its own,

    n_k(r) = ceil(min(1, start + per-round (age - 1)) N_k)

have arrived; none while age < 1. It trains on all of these, or on the last w where ``stream.window`` says so.
That depends on the data's seed, the client's name and the round alone, so that server and nodes agree, and a
run that is resumed has what it had. Own test examples are all there from the beginning.

>>> DataStream(StreamConfig(start=0.2, per_round=0.1), ArriveConfig(), 1).sizes(10, 4)
[2, 3, 4, 5]
>>> DataStream(StreamConfig(start=0.2, per_round=0.1, window=3), ArriveConfig(), 1).count(10, 4)
3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from task.config.data_sections import ArriveConfig, StreamConfig
from task.datasets.base import Owners, Rows
from task.datasets.partition import Partition
from task.numerics import seeds

if TYPE_CHECKING:
    from task.config.knobs import Config


@dataclass(frozen=True)
class DataStream:
    """Which of its examples a client has in which round."""

    config: StreamConfig
    arrive: ArriveConfig
    seed: int  # of the data

    def arrived(self, total: int, age: int) -> int:
        """Return how many of `total` examples have arrived in the client's round number `age`."""
        if age < 1:
            return 0
        start, step = Fraction(str(self.config.start)), Fraction(str(self.config.per_round))
        return ceil(min(Fraction(1), start + step * (age - 1)) * total)

    def count(self, total: int, age: int) -> int:
        """Return n_k: how many of `total` examples a client trains on in its round number `age`."""
        arrived, window = self.arrived(total, age), self.config.window
        return min(arrived, window) if window else arrived

    def sizes(self, total: int, ages: int) -> list[int]:
        """Return how many of `total` examples have arrived at each of the first `ages`."""
        return [self.arrived(total, age) for age in range(1, ages + 1)]

    def order(self, client: str, rows: Rows) -> Rows:
        """Return a client's rows in the order in which they arrive."""
        if self.config.order == "rows":
            return rows
        return rows[seeds.rng_for(self.seed, seeds.STREAM, client=client).permutation(len(rows))]

    def rows(self, client: str, rows: Rows, age: int) -> Rows:
        """Return those of a client's `rows` that it trains on in its round number `age`, ascending."""
        end = self.arrived(len(rows), age)
        first = end - self.count(len(rows), age)
        return rows if (first, end) == (0, len(rows)) else np.sort(self.order(client, rows)[first:end])

    def late(self, names: Sequence[str]) -> frozenset[str]:
        """Return who of all clients joins late: round(share K) of them, at most all but one."""
        size = min(round(self.arrive.share * len(names)), len(names) - 1)
        if size < 1:
            return frozenset()
        return frozenset(chosen(self.seed, seeds.ARRIVE, names)[:size])

    def age(self, late: bool, server_round: int) -> int:
        """Return a client's own number of a round, from 1 in the first one that it is there."""
        return server_round - (self.arrive.round if late else 1) + 1


def chosen(seed: int, role: str, names: Sequence[str]) -> list[str]:
    """Return names in an order drawn by seed and name; a share of them is taken from the front."""
    return sorted(names, key=lambda name: (seeds.seed_for(seed, role, client=name), name))


def stream_of(config: "Config") -> DataStream | None:
    """Return the stream of a run; None if every client has all of its examples in every round."""
    on = config.stream.on or config.arrive.share > 0
    return DataStream(config.stream, config.arrive, config.seeds.data) if on else None


class StreamedPartition(Partition):
    """A partition as it is in a round; in round 0 it is whole."""

    def __init__(
        self, whole: Partition, stream: DataStream, late: frozenset[str], server_round: int = 0
    ) -> None:
        super().__init__(Owners.from_lists(whole.names, [], []), whole.skew)
        self._whole, self._stream, self._late, self._round = whole, stream, late, server_round

    def at(self, server_round: int) -> "StreamedPartition":
        """Return the partition as it is in a round."""
        return StreamedPartition(self._whole, self._stream, self._late, server_round)

    def over(self, whole: Partition) -> "StreamedPartition":
        """Return the same stream of another partition of the same clients."""
        return StreamedPartition(whole, self._stream, self._late, self._round)

    def train(self, client: int) -> Rows:
        """Return the rows that a client trains on in this round, in ascending order."""
        rows, name = self._whole.train(client), self.names[client]
        return self._stream.rows(name, rows, self._age(name)) if self._round else rows

    def test(self, client: int) -> Rows:
        """Return the rows of the client's own test set."""
        return self._whole.test(client)

    def num_train(self) -> Rows:
        """Return how many examples every client trains on in this round, int64 ``[K]``."""
        whole = self._whole.num_train()
        if not self._round:
            return whole
        counts = [self._stream.count(int(n), self._age(c)) for c, n in zip(self.names, whole, strict=True)]
        return np.array(counts, np.int64)

    def held_out(self, pool: int) -> int:
        """Return how many of the first `pool` rows, the training pool, are clients' own test examples."""
        return self._whole.held_out(pool)

    def born(self, client: int, rounds: int) -> tuple[Rows, Rows]:
        """Return a client's training rows, and in which round each arrives; past `rounds`, rounds + 1."""
        name = self.names[client]
        rows = self._stream.order(name, self._whole.train(client))
        joins = 1 - self._stream.age(name in self._late, 0)
        ages = np.array(self._stream.sizes(len(rows), max(rounds - joins + 1, 0)), np.int64)
        return rows, joins + np.searchsorted(ages, np.arange(len(rows)), side="right")

    def _age(self, name: str) -> int:
        return self._stream.age(name in self._late, self._round)
