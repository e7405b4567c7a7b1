"""Reductions: how the same field of many clients becomes one, exactly.

A reduction has `add` (one client), `merge` (another partial reduction) and `result`; `check` and
`check_merge` refuse beforehand what those would refuse, so that several fields are folded all or none.
The result does not depend on the order of arrival nor on which node folded which clients, bit for bit:

* Each value is rounded once, before anything is added, to a multiple of 2^-51. Of float32 that changes
  only what is smaller than 2^-27, and nothing by more than 2^-52; so a mean is off by 2^-52 at most before
  it is rounded to its dtype. The multiples, times the integer weights, are summed as integers, exactly.
  This is the pre-rounding of reproducible summation (Demmel & Nguyen, 2013) on one fixed grid.
* Integer arrays (counters of normalisation layers) are summed as integers.
* `Collect` (`task.numerics.collect`) keeps every client's arrays, sorted by client name.

A sum is one int64, ``low``, which counts 2^-51 and takes values up to 1 as they are, or two: ``high`` counts
2^-20 and takes the rest, and what `low` passes on before it could overflow. An array has it from then on.

The guard: `add` refuses a term that does not fit (|weight * x| >= 2^31) with `FieldError`, so that a diverged
client is quarantined and never rounds anybody else; a `Collect` refuses |x| >= 2^31. The sum has room for
2048 of the largest terms, so no client is refused for what another one sent. A sum beyond 2^32 is rounded to
a float64 first.

A `Held` costs what its places cost: there, weight * (Q(value) - Q(base)) is added, Q being the rounding to
the grid; weight * Q(base) is added once for all clients of one base. So its sum is that of its dense form.
A `StackRow` waits for the others of its stack, which are summed together, where they lie.

Memory of `Mean` and `Sum`: an int64 per parameter, two where values exceed 1 or sums 2^12, whatever the
number of clients. On the wire a partial sum is two int32 per parameter (12 bytes where a sum exceeds 2^11),
so that a node's merged reply costs as much as two models, whatever the number of its clients.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from task.errors import FieldError, WireError
from task.numerics import pages
from task.numerics.arrays import BLOCK, Arrays, NamedArrays, blocks
from task.numerics.collect import Collect, release
from task.numerics.held import Base, Foldable, Held, dense, peak, peaks_of
from task.numerics.stack import RowStack, StackRow
from task.numerics.terms import (
    FINITE,
    HIGH_BITS,
    HIGH_GRID,
    HIGH_UNIT,
    LOW_BITS,
    LOW_GRID,
    LOW_UNIT,
    MAX_INTEGER_TERM,
    MAX_TERM,
)

CARRY = 31  # a unit of `high` is 2^31 units of `low`
MAX_LOW = 2.0**12 - 1.0  # what `low` may hold; an int64 holds 2^12
MAX_SUM, MAX_INTEGER = 2.0**42, 2.0**62
UNITS = "units"  # the record of a sum that stays on its machine
MOST_PENDING = 2**30  # weight at which a base, or the rows of a stack, are folded: 2^10 in `low`


@dataclass
class _Pending:
    """Rows of a stack that are still to be folded."""

    stack: RowStack
    weights: list[int]  # 0 = not to be folded
    count: int = 0
    bound: float = 0.0  # of |sum_k weight_k x_k|
    wide: bool = False  # whether any |x| exceeds 1


class Sum:
    """Weighted sum over clients: sum_k weight_k * x_k, exact until its last rounding.

    `like` are arrays of the names, shapes and dtypes that will come in.
    """

    name: ClassVar[str] = "sum"

    def __init__(self, like: NamedArrays) -> None:
        self.weight = 0
        self.count = 0
        self._dtype = {name: a.dtype for name, a in like.items()}
        self._bound = dict.fromkeys(like, 0.0)
        self._names = tuple(like)
        # Of floating arrays only where it is needed.
        self._high = {name: np.zeros(a.shape, np.int64) for name, a in like.items() if a.dtype.kind != "f"}
        self._low = pages.zeros(
            {name: (a.shape, np.dtype(np.int64)) for name, a in like.items() if a.dtype.kind == "f"}
        )
        # Excess that `_fold` added: by name, the weights in `high` and in `low`.
        self._grids = dict.fromkeys(self._low, (0, 0))
        self._held = dict.fromkeys(self._low, 0.0)  # bound of |low|
        # The weight of each base of a `Held` that is still to be folded, by name and by the array's identity.
        self._waiting: dict[str, dict[int, tuple[Base, int]]] = {name: {} for name in self._low}
        self._rows: dict[str, _Pending] = {}
        self._scratch = np.empty((3, min(BLOCK, max((a.size for a in self._low.values()), default=0))))

    def check(
        self, arrays: Foldable, weight: int, client: str, peaks: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the largest |value| by name.

        Raises:
            FieldError: A term does not fit the exact range.
        """
        found = peaks_of(arrays, peaks)
        for name, largest in found.items():
            bound = largest * weight
            total = self._bound[name] + bound
            term, most = _most(name in self._low)
            if not (bound < term and total < most):
                raise FieldError(
                    name,
                    f"{FINITE}s, |weight * value| below {term:g} and its sum over the cohort below {most:g}",
                    f"{bound:g} and {total:g}: the model diverged, or the data need scaling",
                )
        return found

    def adding(self, rows: Mapping[str, tuple[Foldable, int]]) -> Callable[[], None]:
        """Check several clients, each by name with its arrays and its weight; return what folds them all in.

        Raises:
            FieldError: A term, or all of them together, do not fit the exact range.
        """
        before, found = dict(self._bound), {}
        try:
            for client, (arrays, weight) in rows.items():
                found[client] = self.check(arrays, weight, client)
                for name, largest in found[client].items():
                    self._bound[name] += largest * weight
        finally:
            self._bound = before

        def add() -> None:
            for client, (arrays, weight) in rows.items():
                self.add(arrays, weight, client, found[client])

        return add

    def add(
        self, arrays: Foldable, weight: int, client: str, checked: Mapping[str, float] | None = None
    ) -> None:
        """Fold in one client's arrays.

        Raises:
            FieldError: A term does not fit the exact range; nothing was folded then.
        """
        peaks = checked or self.check(arrays, weight, client)
        for name, a in arrays.items():
            self._bound[name] += peaks[name] * weight
            if name not in self._low:
                self._high[name] += dense(a).astype(np.int64) * weight
                continue
            if isinstance(a, Held) and a.start.peak < MAX_TERM and weight <= MOST_PENDING:
                self._add_held(name, a, peaks[name], weight)
            elif isinstance(a, StackRow) and weight <= MOST_PENDING:
                self._add_row(name, a, peaks[name], weight)
            else:
                self._add_dense(name, dense(a), peaks[name], weight)
        self.weight += weight
        self.count += 1

    def _add_dense(self, name: str, a: np.ndarray, largest: float, weight: int) -> None:
        wide = largest > 1.0 or largest * weight >= MAX_LOW / 2
        self._hold(name, weight * (HIGH_UNIT if wide else largest))
        high = self._raised(name) if wide else None
        in_high, in_low = self._grids[name]
        self._grids[name] = in_high + weight * wide, in_low + weight
        _fold(high, self._low[name], a, weight, self._scratch)

    def _add_held(self, name: str, a: Held, largest: float, weight: int) -> None:
        """Fold in how the values differ from the base's at their places; the base as a whole has to wait."""
        at, start = a.index, a.start
        low = self._low[name].reshape(-1)
        units = None
        if max(largest, start.peak) <= 1.0:
            units = np.add(a.values, LOW_GRID, dtype=np.float64).view(np.int64)
            units -= np.add(a.before, LOW_GRID, dtype=np.float64).view(np.int64)  # the grids cancel out
            change = weight * peak(units) * LOW_UNIT
        if units is not None and change < MAX_LOW / 2:
            self._hold(name, change)
            units *= weight
            units += low.take(at)
            low[at] = units
        else:
            self._hold(name, weight * HIGH_UNIT)
            high = self._raised(name).reshape(-1)
            more, fine = high.take(at), low.take(at)
            _fold(more, fine, a.values, weight, self._scratch)
            _fold(more, fine, a.before, -weight, self._scratch)
            low[at], high[at] = fine, more
        waiting = self._waiting[name].get(id(start.array), (start, 0))[1] + weight
        if waiting > MOST_PENDING:
            self._add_dense(name, start.flat, start.peak, waiting - weight)
            waiting = weight
        self._waiting[name][id(start.array)] = (start, waiting)

    def _add_row(self, name: str, a: StackRow, largest: float, weight: int) -> None:
        """Let a row wait for the others of its stack."""
        waiting = self._rows.get(name)
        if waiting and (waiting.stack is not a.stack or sum(waiting.weights) + weight > MOST_PENDING):
            self._fold_rows(name)
        waiting = self._rows.setdefault(name, _Pending(a.stack, [0] * len(a.stack)))
        waiting.weights[a.k] += weight
        waiting.count += 1
        waiting.bound += largest * weight
        waiting.wide |= largest > 1.0
        if waiting.count == len(a.stack):
            self._fold_rows(name)

    def _fold_rows(self, name: str) -> None:
        """Fold in the rows that wait."""
        rows = self._rows.pop(name)
        wide = rows.wide or self._held[name] + rows.bound >= MAX_LOW
        self._hold(name, sum(rows.weights) * HIGH_UNIT if wide else rows.bound)
        high, low = rows.stack.units(rows.weights, wide=wide)
        self._low[name] += low
        if high is not None:
            more = self._raised(name)
            more += high

    def _settle(self, name: str) -> None:
        """Bring the sum into its normal form, with the bases and the rows that wait."""
        if name in self._rows:
            self._fold_rows(name)
        for start, weight in self._waiting[name].values():
            self._add_dense(name, start.flat, start.peak, weight)
        self._waiting[name].clear()
        self._carry(name)

    def _hold(self, name: str, more: float) -> None:
        """Make room for terms of that size in `low`: move the excess to `high`."""
        if self._held[name] + more >= MAX_LOW:
            self._raised(name)
            self._carry(name)
        self._held[name] += more

    def _raised(self, name: str) -> np.ndarray:
        """Return `high` of a floating array, which has one from now on."""
        if name not in self._high:
            self._high[name] = np.zeros(self._low[name].shape, np.int64)
        return self._high[name]

    def _carry(self, name: str) -> None:
        """Bring the sum into its normal form: free of grids, and 0 <= low < 2^31 where there is `high`."""
        low, high = self._low[name].reshape(-1), self._high.get(name)
        in_high, in_low = self._grids[name]
        high_excess, low_excess = _modulo(in_high * HIGH_BITS), _modulo(in_low * LOW_BITS)
        self._grids[name] = 0, 0
        if high is None:
            low -= low_excess
            return
        more = high.reshape(-1)
        for block in blocks(low.size, BLOCK):
            wide, fine = more[block], low[block]
            fine -= low_excess
            wide += fine >> CARRY
            fine &= (1 << CARRY) - 1
            if in_high:
                wide -= high_excess
        self._held[name] = HIGH_UNIT

    def partial(self, *, last: bool = False) -> dict[str, Arrays]:
        """Return the exact sum as ``high`` of every array and ``low`` of the floating ones.

        The low part counts 2^-51, from 0 to below 2^-20, int32. The high part counts 2^-20, as int32 where
        that is wide enough, else int64. Integer sums are int64. If nothing is to come after that (`last`),
        the sum is freed array by array.
        """
        high: Arrays = {}
        low: Arrays = {}
        for name in self._names:
            if name not in self._low:
                high[name] = self._high[name]
                continue
            self._settle(name)
            high[name], low[name] = _split(self._high.get(name), self._low[name])
            if last:
                del self._low[name]
                self._high.pop(name, None)
        return {"high": high, "low": low}

    def held(self) -> dict[str, Arrays] | None:
        """Return the exact sum as it lies here, for this machine alone: ``units`` in place of high and low.

        None if not every floating array is one int64, or its `partial` would not have two int32 a number.
        """
        if self._low.keys() & self._high.keys():
            return None
        for name, low in self._low.items():
            self._settle(name)
            if not _largest(low) < 2**31:
                return None
        return {"high": self._high, UNITS: self._low}

    def check_merge(self, records: Mapping[str, NamedArrays], count: int) -> dict[str, float]:
        """Return the largest |sum| by name.

        Raises:
            FieldError: The sums leave the exact range.
        """
        found: dict[str, float] = {}
        largest = {name: peak(a) for name, a in records["high"].items()}
        largest |= {name: _largest(a) for name, a in records.get(UNITS, {}).items()}
        for name, most_units in largest.items():
            floats = name in self._low
            found[name] = (most_units + 1) * HIGH_UNIT if floats else most_units
            term, most = _most(floats)
            own, total = min(most, count * term + HIGH_UNIT), self._bound[name] + found[name]
            if not (found[name] <= own and total < most):
                expected = (
                    f"{FINITE}s, of {count} clients a sum below {own:g} and over the cohort below {most:g}"
                )
                raise FieldError(name, expected, f"{found[name]:g} and {total:g}: the model diverged")
        return found

    def merge(
        self, records: Mapping[str, NamedArrays], weight: int, count: int, checked: Mapping[str, float]
    ) -> None:
        """Fold in another node's `partial`, or what it has `held`; `checked` is what `check_merge` returned.

        The first that was held is this sum's own memory from now on.
        """
        units = records.get(UNITS, {})
        for name, bound in checked.items():
            self._bound[name] += bound
            if name not in self._low:
                self._high[name] += records["high"][name]
            elif name in self._high or self._held[name] + bound >= MAX_LOW:
                parts = _split(None, units[name]) if units else (records["high"][name], records["low"][name])
                self._hold(name, HIGH_UNIT)
                self._raised(name)
                self._high[name] += parts[0]
                self._low[name] += parts[1]
            else:
                self._held[name] += bound
                if not units:
                    _join(records["high"][name], records["low"][name], self._low[name])
                elif self.count:
                    self._low[name] += units[name]
                else:
                    self._low[name] = units[name]
        self.weight += weight
        self.count += count

    def result(self) -> Arrays:
        """Return the sums in the dtypes that came in."""
        return self._values(1)

    def _values(self, divisor: int) -> Arrays:
        """Return all sums by a divisor."""
        like = {name: (self._low.get(name, self._high.get(name)), self._dtype[name]) for name in self._names}
        found = pages.zeros({name: (a.shape, dtype) for name, (a, dtype) in like.items() if a is not None})
        for name, out in found.items():
            self._value(name, divisor, out)
        return found

    def _value(self, name: str, divisor: int | np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the sum by a divisor, one for all or one for each element; in `out`, if it is given."""
        if name in self._low:
            self._settle(name)
            low, high = self._low[name].reshape(-1), self._high.get(name)
            out = np.empty(self._low[name].shape, self._dtype[name]) if out is None else out
            out_ = out.reshape(-1)
            for block in blocks(out.size, BLOCK):
                value = low[block] * LOW_UNIT  # rounded once, as the sum with `high` is, whose part is exact
                if high is not None:
                    value += high.reshape(-1)[block] * HIGH_UNIT
                value /= divisor if isinstance(divisor, int) else divisor.reshape(-1)[block]
                out_[block] = value
            return out
        # Integers stay integers: nearest, halves up, exact for any size.
        high = self._high[name]
        means = ((2 * high + divisor) // (2 * divisor)).astype(self._dtype[name])
        if out is None:
            return means
        out[...] = means
        return out


class Mean(Sum):
    """Weighted mean over clients: sum_k weight_k * x_k / sum_k weight_k (McMahan's erratum form)."""

    name: ClassVar[str] = "mean"

    def result(self) -> Arrays:
        """Return the means in the dtypes that came in.

        Raises:
            WireError: Nothing was added.
        """
        if self.weight <= 0:
            raise WireError("a mean needs at least one client with a positive weight; got none")
        return self._values(self.weight)


Reduction = Sum | Collect
REDUCTIONS: dict[str, type[Sum] | type[Collect]] = {"collect": Collect, "mean": Mean, "sum": Sum}


def mean_of_models(models: Iterable[tuple[NamedArrays, int]], like: NamedArrays) -> Arrays:
    """Return the exact mean of models, each with its weight, as it is folded where they are not kept.

    Args:
        models: Taken one after the other, so that of those that lie in a file one is in memory.
        like: Arrays of their names, shapes and dtypes.

    Raises:
        FieldError: A model does not fit the exact range.
    """
    total = Mean(like)
    for model, weight in models:
        total.add(model, weight, "")
        for a in model.values():
            release(a)
    return total.result()


def mean_of(stack: NamedArrays, rows: Collection[int], weights: np.ndarray) -> Arrays:
    """Return `mean_of_models` of some rows of a stack."""
    chosen = sorted(rows)
    models = (({name: a[k, ...] for name, a in stack.items()}, int(weights[k])) for k in chosen)
    return mean_of_models(models, {name: a[chosen[0], ...] for name, a in stack.items()})


def plain_mean(stack: NamedArrays) -> Arrays:
    """Return the exact mean over the first axis, by which all clients count the same."""
    clients = max(map(len, stack.values()), default=0)
    return mean_of(stack, range(clients), np.ones(clients, np.int64)) if stack else {}


def _most(floats: bool) -> tuple[float, float]:
    """Return the bounds of |weight * value| and of its sum over the cohort."""
    return (MAX_TERM, MAX_SUM) if floats else (MAX_INTEGER_TERM, MAX_INTEGER)


def _modulo(value: int) -> np.int64:
    """Return the int64 that equals `value` modulo 2^64."""
    return np.uint64(value % 2**64).view(np.int64)


def _largest(units: np.ndarray) -> int:
    """Return the largest |high| of the high parts of a sum of one int64."""
    return max(-(int(units.min()) >> CARRY), int(units.max()) >> CARRY) if units.size else 0


def _split(high: np.ndarray | None, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a settled sum as on the wire, its high and its low part; high is int32 where that will do."""
    if high is not None:
        return high.astype(np.int32) if peak(high) < 2**31 else high, low.astype(np.int32)
    high = np.empty(low.shape, np.int32 if _largest(low) < 2**31 else np.int64)
    fine = np.empty(low.shape, np.int32)
    units, high_, fine_ = low.reshape(-1), high.reshape(-1), fine.reshape(-1)
    for block in blocks(units.size, BLOCK):
        high_[block] = units[block] >> CARRY
        fine_[block] = units[block] & ((1 << CARRY) - 1)
    return high, fine


def _join(high: np.ndarray, low: np.ndarray, units: np.ndarray) -> None:
    """Add the two parts of a sum to a sum of one."""
    high_, low_, units_ = high.reshape(-1), low.reshape(-1), units.reshape(-1)
    for block in blocks(units_.size, BLOCK):
        more = high_[block].astype(np.int64)
        more <<= CARRY
        more += low_[block]
        units_[block] += more


def _fold(high: np.ndarray | None, low: np.ndarray, x: np.ndarray, weight: int, scratch: np.ndarray) -> None:
    """Add ``weight * (x + GRID)`` as integers to `high` and `low`; without `high`, |x| must not exceed 1.

    With `high`, x is rounded to its grid first; what is left is exact (Sterbenz), and so is the difference of
    the grids, so that the one rounding that counts is that to the grid of `low`.
    """
    low_, x_ = low.reshape(-1), x.reshape(-1)
    for block in blocks(x_.size, BLOCK):
        r, h, d = scratch[:, : x_[block].size]
        np.copyto(r, x_[block])
        if high is None:
            r += LOW_GRID
        else:
            np.add(r, HIGH_GRID, out=h)
            np.subtract(LOW_GRID + HIGH_GRID, h, out=d)
            r += d
            _count(h, weight, high.reshape(-1)[block])
        _count(r, weight, low_[block])


def _count(gridded: np.ndarray, weight: int, total: np.ndarray) -> None:
    """Add `weight` times the bits of `gridded` to `total`, modulo 2^64; overwrites `gridded`."""
    units = gridded.view(np.int64)
    units *= weight
    total += units
