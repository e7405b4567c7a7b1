"""Server state and reduced replies, the inputs of a rule: plain frozen data, ready for a checkpoint."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.held import peak
from task.numerics.scalar_sums import ScalarSums

Number = bool | int | float


@dataclass(frozen=True)
class ServerState:
    """What the server carries from round to round.

    A rule with more memory subclasses it; a field is either named arrays or a number, so that every
    state can be written to a checkpoint and read back bit for bit.
    """

    arrays: Arrays  # global model w^t: parameters and buffers


@dataclass(frozen=True)
class MeansState(ServerState):
    """The state of a rule with means of client state over all clients.

    `task.catalogue.record.Record.mean` says of what. A new client has no state yet, so that the means shrink
    by N_old / N_new; one that is away, or has left, still counts with its last state.
    """

    population: int = field(default=0, kw_only=True)  # N, of the means; 0 = there are none yet


def rescaled(arrays: NamedArrays, factor: float) -> Arrays:
    """Return arrays times a factor, each rounded once, from float64; at 1 they are the same ones."""
    if factor == 1.0:
        return dict(arrays)
    return {name: (a.astype(np.float64) * factor).astype(a.dtype) for name, a in arrays.items()}


S = TypeVar("S", bound=ServerState)
Updated = tuple[S, dict[str, Number]]  # the next state and the rule's metrics


@dataclass(frozen=True)
class AggregatedReplies:
    """The replies of one round, reduced."""

    arrays: dict[str, Arrays]  # per upward field of the catalogue entry, the reduced arrays
    clients: tuple[str, ...]  # names of the clients that took part, sorted
    num_examples: np.ndarray  # n_k in that order, int64 [K]
    # Per scalar name, the clients' values in that order; NaN of a client that did not send it.
    scalars: dict[str, list[float]] = field(default_factory=dict)
    round: int = 0  # server round t, from 1
    lr: float = 0.0  # eta_t of this round
    trainable: tuple[str, ...] = ()  # names of the model's parameters, without buffers
    population: int = 0  # clients that the run has known, online or not, N
    seconds: float = 0.0  # wall time since the round began
    bytes: int = 0  # payload bytes of the round so far, both ways
    asked: int = 0  # clients that were asked to train; 0 = unknown, so at least those that took part
    # Names of all clients that the run has known, sorted: the order of records that hold a number for each
    # (see `task.catalogue.entry.Algorithm.individual`).
    names: tuple[str, ...] = ()
    # By which the fold averaged the clients, int64 [K]: n_k, or ones (`Algorithm.weight`, which the selection
    # may set); None = n_k.
    weights: np.ndarray | None = None
    # Clients to be expected in a round, by which sums were divided (``dp.*``); 0 = by those that took part.
    expected: float = 0.0
    # What `number` makes of the clients' values, by scalar (`Scalar.reduce`); ``mean`` if not said.
    reduce: Mapping[str, str] = field(default_factory=dict)
    # With secure aggregation no client's values are known: `scalars` is empty, and `num_examples` is one
    # number, n of the sum. Here are the scalars' sums.
    sums: Mapping[str, ScalarSums] | None = None

    @property
    def share(self) -> float:
        """Share m / N of the clients that took part; under ``dp.*`` that to be expected, q."""
        took = self.expected or len(self.clients)
        return took / max(self.population, took)

    @property
    def counts(self) -> np.ndarray:
        """How often each client counts in a mean, int64 [K]."""
        return self.num_examples if self.weights is None else self.weights

    def number(self, name: str) -> float | None:
        """Return a scalar reduced as the catalogue says, over the clients that sent it; None if none did.

        A mean is weighted as the arrays are.
        """
        way = self.reduce.get(name, "mean")
        if self.sums is not None:
            return self._of_sums(name, way)
        if way == "mean":
            return self._mean(name, self.counts)
        sent = [v for v in self.scalars.get(name, []) if not math.isnan(v)]
        if not sent:
            return None
        return math.fsum(sent) if way == "sum" else max(sent)

    def needed(self, name: str) -> float:
        """Return `number` of a scalar that the contract demands of every client."""
        found = self.number(name)
        assert found is not None
        return found

    def example_means(self) -> dict[str, float]:
        """Return each scalar's mean over the examples of the clients that sent it, for a report."""
        if self.sums is not None:
            return {k: float(s.by_examples) / s.examples for k, s in self.sums.items() if s.examples}
        means = {name: self._mean(name, self.num_examples) for name in self.scalars}
        return {name: mean for name, mean in means.items() if mean is not None}

    def senders(self) -> dict[str, int]:
        """Return by scalar how many clients sent it."""
        if self.sums is not None:
            return {name: s.clients for name, s in self.sums.items() if s.clients}
        return {name: sum(not math.isnan(v) for v in sent) for name, sent in self.scalars.items()}

    def _of_sums(self, name: str, way: str) -> float | None:
        found = (self.sums or {}).get(name)
        if found is None or not found.clients:
            return None
        if way == "mean":
            return float(found.weighted) / found.weight if found.weight else None
        if way == "sum":
            return float(found.plain)
        raise ValueError(f"scalar {name}: its {way} over clients is unknown with secure aggregation")

    def _mean(self, name: str, weights: np.ndarray) -> float | None:
        values = self.scalars.get(name, [])
        if len(values) != len(self.clients):
            return None
        sent = [(v, int(n)) for v, n in zip(values, weights, strict=True) if not math.isnan(v)]
        return math.fsum(v * n for v, n in sent) / sum(n for _, n in sent) if sent else None


def not_finite(state: ServerState) -> str:
    """Return the name of an array of a state that holds NaN or infinity, or of a number that is NaN; or "".

    Arrays that hold much more than a model, such as every client's, are not looked through.
    """
    model = sum(a.nbytes for a in state.arrays.values())
    arrays, numbers = dump_state(state)
    for name, a in arrays.items():
        if a.dtype.kind == "f" and a.nbytes <= 2 * model and not math.isfinite(peak(a)):
            return name
    return next((name for name, value in numbers.items() if math.isnan(value)), "")


def dump_state(state: ServerState) -> tuple[Arrays, dict[str, Number]]:
    """Return a state's arrays as ``field/name`` and its numbers by field."""
    arrays: Arrays = {}
    numbers: dict[str, Number] = {}
    for f in dataclasses.fields(state):
        value = getattr(state, f.name)
        if isinstance(value, Mapping):
            arrays |= {f"{f.name}/{name}": a for name, a in value.items()}
        else:
            numbers[f.name] = value
    return arrays, numbers


def load_state(cls: type[S], arrays: NamedArrays, numbers: Mapping[str, Number]) -> S:
    """Rebuild the state that `dump_state` took apart."""
    values: dict[str, Any] = dict(numbers)
    for f in dataclasses.fields(cls):
        if f.name not in values and f.default is dataclasses.MISSING:
            prefix = f"{f.name}/"
            values[f.name] = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
    return cls(**values)


def too_few(entry: Algorithm, config: Config, replies: int, asked: int) -> str:
    """Return why a rule's guarantee does not hold with this number of replies, or "" if it does.

    `replies` are good ones, or before the round those that may come; `asked` are the clients; f of them
    (``robust.byzantine``) are malicious by assumption. `Algorithm.withstands` says what the rule needs.
    """
    if entry.withstands is None:
        return ""
    each, more = entry.withstands
    f, size = config.robust.f(asked), config.robust.bucket
    needed, seen = each * f + more, -(-replies // size)
    if seen >= needed:
        return ""
    most = (seen - more) // each
    hint = (
        f"with that number f is at most {most}"
        if most >= 0
        else f"select at least {more * size} clients a round"
    )
    what = "replies" if size == 1 else f"buckets of {size} (robust.bucket)"
    return (
        f'run-config key "robust.byzantine": {entry.name} needs at least {each} f + {more} = {needed} '
        f"{what} against f = {f} malicious of {asked} clients asked; got {seen}: {hint}"
    )


def byzantine(reduced: AggregatedReplies, config: Config) -> int:
    """Return f: a share is one of the clients that were asked, as the silent ones may be the honest ones."""
    return config.robust.f(max(reduced.asked, len(reduced.clients)))
