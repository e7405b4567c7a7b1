"""The bound on one client's update, run-config key ``max-update-norm``: one check for node and server.

The L2 norm counts of what a client changes: a model less the received w^t, a change or a gradient as it is,
and a change that goes up divided by a scalar (`Record.per`) times that scalar. Parameters and buffers
(running statistics) are held to the bound each by itself; integers are not. An update beyond it is refused
rather than clipped: a clipped one would still be the largest in the average, and would go unnoticed.

A node checks each client before it folds it in. The server checks each record that it sees by itself, and of
a node's sum of several clients that |sum_k weight_k (x_k - w^t)| <= sum_k weight_k bound, which the sum
keeps if each client keeps the bound.

A client with error feedback holds its code to the bound itself (`client_app.stages.coding`): what it owes
from earlier rounds may make a code large whose update is not.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from task.catalogue.record import MODEL_DOWN, Record
from task.errors import FieldError
from task.numerics.arrays import BLOCK, NamedArrays, blocks
from task.numerics.held import dense
from task.numerics.terms import FINITE, HIGH_UNIT, LOW_UNIT
from task.wire.layouts import base_of

SLACK = 1 + 1e-6  # tolerance for rounding of a norm at the bound


@dataclass(frozen=True)
class NormBound:
    """The bound in a round."""

    most: float  # largest L2 norm; 0 = no bound
    # The model that the client received, w^t, by name; empty = unknown here, so only changes are checked.
    model: NamedArrays
    trainable: frozenset[str]  # names of its parameters
    # Returns what a client received of the model, where that differs by client.
    received: Callable[[str], NamedArrays] | None = None
    # Further records that all clients received, by name: the models of a run with several.
    others: Mapping[str, NamedArrays] = field(default_factory=dict)

    def of(self, client: str) -> "NormBound":
        """Return the bound on one client's update."""
        return replace(self, model=self.received(client)) if self.received and self.most else self

    def check(
        self,
        field: Record,
        arrays: NamedArrays,
        rows: Sequence[Mapping[str, float]],
        weights: Sequence[int] = (1,),
        low: NamedArrays = MappingProxyType({}),
    ) -> None:
        """Refuse one client's record, or the sum of several that `task.numerics.reduce.Sum.partial` writes.

        Of a sum, `arrays` and `low` are its two parts; `rows` are the clients' scalars, `weights` their
        weights in it.

        Raises:
            FieldError: It moves the model too far for any clients that keep the bound.
        """
        for what, norm, most in self._norms(field, arrays, rows, weights, low):
            if not norm <= most * SLACK:
                raise FieldError(
                    field.name,
                    f"{FINITE}s that move {what} by an L2 norm of {self.most:g} at most (run-config key "
                    '"max-update-norm")',
                    f"{norm / most * self.most:.6g}",
                )

    def excess(self, field: Record, arrays: NamedArrays, row: Mapping[str, float]) -> float:
        """Return the norm of one client's record as a multiple of the bound; above 1 it is refused."""
        ratios = [norm / most for _, norm, most in self._norms(field, arrays, [row])]
        return max(ratios, default=0.0) / SLACK

    def _norms(
        self,
        field: Record,
        arrays: NamedArrays,
        rows: Sequence[Mapping[str, float]],
        weights: Sequence[int] = (1,),
        low: NamedArrays = MappingProxyType({}),
    ) -> Iterator[tuple[str, float, float]]:
        """Yield what is held to the bound by itself, its norm, and the largest norm of such clients."""
        if not self.most or field.layout.kind != "part":
            return
        others = {name: arrays for name, arrays in self.others.items() if name != MODEL_DOWN.name}
        model = {field.base: self.model} if self.model else {}
        base = base_of(field, model | others, self.trainable)
        for parameters in (True, False):
            divided = parameters and field.per
            names = [n for n, a in arrays.items() if (n in self.trainable) == parameters]
            names = [n for n in names if n in low or arrays[n].dtype.kind == "f"]
            if not names or (base is None and not divided):
                continue
            whole = sum(weights)
            squares = [_square(arrays[n], low.get(n), (base or {}).get(n), whole) for n in names]
            norm = math.sqrt(math.fsum(squares))
            shares = [1.0 / row[field.per] for row in rows] if divided else [1.0] * len(rows)
            share = math.fsum(w * s for w, s in zip(weights, shares, strict=True))
            yield "the parameters" if parameters else "the buffers", norm, self.most * share


def _square(a: np.ndarray, low: np.ndarray | None, base: np.ndarray | None, weight: int) -> float:
    """Return |a - weight * base|^2; with `low`, a and low are the parts of a sum."""
    total, flat = 0.0, dense(a).reshape(-1)
    for block in blocks(flat.size, BLOCK):
        x = flat[block].astype(np.float64)
        if low is not None:
            x *= HIGH_UNIT
            x += low.reshape(-1)[block] * LOW_UNIT
        if base is not None:
            x -= weight * base.reshape(-1)[block].astype(np.float64)
        total += float(x @ x)
    return total
