"""Check one client's upload and fold it in, on the node or, for single uploads, on the server."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from task.catalogue.entry import Algorithm
from task.catalogue.record import SUB_MODEL, Record
from task.models.coverage import CollectPadded, CoverageMean
from task.models.family import SubModels, Widths
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.collect import Collect, CollectParts
from task.numerics.reduce import REDUCTIONS, Mean, Reduction, Sum
from task.wire.checks import check_arrays, check_records, check_weights
from task.wire.encoding import PLAIN, Encoding, OwnReduction
from task.wire.layouts import as_integers
from task.wire.messages import NUM_EXAMPLES
from task.wire.norms import NormBound


class Folding:
    """The reductions of one message's uploads, by its contract.

    `like` has, by upward record, arrays of the expected names, shapes and dtypes; `bound` is that on a
    client's update. If the result `carries` on as `partials`, records that a node carries one by one are
    collected instead of reduced, and those that it forwards as codes are only checked. `models` are the parts
    of the model that clients have, where they differ and this side knows them; `part` returns the form of a
    client's part; `encoding` may bring a reduction of its own.
    """

    def __init__(
        self,
        entry: Algorithm,
        like: Mapping[str, NamedArrays],
        bound: NormBound,
        *,
        carries: bool = False,
        models: SubModels | None = None,
        encoding: Encoding = PLAIN,
        part: Callable[[str], NamedArrays] | None = None,
    ) -> None:
        self.entry, self.like, self.bound, self.models = entry, like, bound, models
        self.encoding, self.part = encoding, models.form if models else part
        each = {r.name for r in entry.up if carries and r.carry == "each"}
        codes = {r.name for r in entry.up if r.name in each and r.coded}
        collects = {r.name for r in entry.up if r.name in each and r.reduce != "collect"}
        self.reductions: dict[str, Reduction | OwnReduction] = {
            r.name: self._collect(r) if r.name in collects else self.reduction(r)
            for r in entry.up
            if r.name not in codes
        }
        # Records that are reduced elsewhere must fit that reduction, too.
        self._later = {r.name: self.reduction(r) for r in entry.up if r.name in collects | codes}

    def reduction(
        self, record: Record, rows: Mapping[str, NamedArrays] = MappingProxyType({})
    ) -> Reduction | OwnReduction:
        """Return a record's reduction of what a `Collect` wrote as its partial; empty without `rows`.

        Raises:
            FieldError: A client's arrays do not fit the exact range.
        """
        if record.reduce == "collect":
            return self._collect(record)
        parts = self.models if record.layout == SUB_MODEL else None
        like = self.like[record.name]
        if own := self.encoding.reduction(record, like):
            return own
        if record.integers:  # a sum of int32 or int64
            like = {n: as_integers(a, np.int64) for n, a in like.items()}
        made: Reduction = CoverageMean(parts) if parts else REDUCTIONS[record.folded](like)
        for client, row in rows.items():
            made.add({k: a for k, a in row.items() if k}, int(row[""]), client)
        return made

    def _collect(self, record: Record) -> Collect:
        own = record.layout == SUB_MODEL and self.part
        if record.reduce == "collect" and self.models and isinstance(self.models.family, Widths):
            return CollectPadded(self.models)
        return CollectParts(own) if own else Collect(self.like[record.name])

    def form(self, record: Record, client: str) -> NamedArrays:
        """Return arrays of the names, shapes and dtypes that a client's record must have."""
        own = record.layout == SUB_MODEL and self.part
        return own(client) if own else self.like[record.name]

    def weight(self, row: Mapping[str, float]) -> int:
        """Return the weight of a client with these scalars."""
        return int(row[NUM_EXAMPLES]) if self.entry.weight == "examples" else 1

    def checked(
        self, client: str, arrays: Mapping[str, Arrays], row: Mapping[str, float]
    ) -> Callable[[], None]:
        """Check an upload; return a function that folds it in and cannot fail because of the upload.

        Its `row` of scalars is checked already.

        Raises:
            FieldError: Something is not as expected; nothing was folded then.
        """
        check_records(self.entry, arrays)
        found, weights = {}, {r.name: 1 if r.integers else self.weight(row) for r in self.entry.up}
        for r in self.entry.up:
            weight = weights[r.name]
            peaks = check_arrays(r.name, arrays[r.name], self.form(r, client))
            if r.name in self.reductions:
                found[r.name] = self.reductions[r.name].check(arrays[r.name], weight, client, peaks)
            if r.name in self._later:
                self._later[r.name].check(arrays[r.name], weight, client, peaks)
            self.bound.of(client).check(r, arrays[r.name], [row])
            if r.weights:
                check_weights(r, arrays[r.name], [row])

        def fold() -> None:
            for name, reduction in self.reductions.items():
                reduction.add(arrays[name], weights[name], client, found[name])

        return fold

    def partials(self, *, stays: bool = False, last: bool = False) -> dict[str, dict[str, Arrays]]:
        """Return each reduction so far as named records, ready for the wire.

        Sums that the server checks in no way but by their size may be what they are in memory, if all of it
        `stays` on this machine. With `last` nothing is to come after that, and sums are freed.
        """
        found: dict[str, dict[str, Arrays]] = {}
        for r in self.entry.up if stays and not self.bound.most else ():
            reduction = self.reductions.get(r.name)
            if isinstance(reduction, Sum) and type(reduction) in (Sum, Mean) and not (r.weights or r.coded):
                found[r.name] = reduction.held() or {}
        return {
            name: found.get(name) or (each.partial(last=last) if isinstance(each, Sum) else each.partial())
            for name, each in self.reductions.items()
        }

    def results(self) -> dict[str, Arrays]:
        """Return the reduced arrays by record."""
        made = {}
        for r in self.entry.up:
            reduction = self.reductions[r.name]
            if reduction.name != r.folded:
                reduction = self.reduction(r, reduction.partial())
            made[r.name] = reduction.result()
        return made


def reduced(
    entry: Algorithm,
    like: Mapping[str, NamedArrays],
    partials: Mapping[str, Mapping[str, NamedArrays]],
    weight: int,
    count: int,
) -> dict[str, Arrays]:
    """Return the reduced arrays, by record, of the `Folding.partials` of this number of clients.

    Raises:
        FieldError: They leave the exact range.
    """
    folding = Folding(entry, like, NormBound(0.0, {}, frozenset()))
    for r in entry.up:
        reduction = folding.reductions[r.name]
        bounds = reduction.check_merge(partials[r.name], count)
        reduction.merge(partials[r.name], weight, count, bounds)
    return folding.results()
