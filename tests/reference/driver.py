"""The rounds of every reference; what a round computes is the reference's own.

A model is a dict of float64 arrays with torch's names and layout. ``run`` takes

* ``data[k] = (x, y)``: x [n_k, ...], y integer [n_k], by client; clients go in sorted order;
* ``cohorts[t - 1]``: the clients S_t of round t (rounds count from 1);
* ``batches(t, k, draw)``: index arrays of client k's pass number `draw` in round t, from 0 over all phases;
* ``epochs``: E, or a function of (t, k).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from tests.reference import mlp
from tests.reference.mlp import Batches, Client, Data, Gradient, Params


@dataclass
class Round:
    """Round t: the learning rate eta_t, the cohort S_t in order, and each client's data and batches."""

    t: int
    eta: float
    cohort: list[Client]
    data: Data
    batches: Batches
    epochs: Callable[[int, Client], int]

    def steps(self, k: Client, first: int = 0, epochs: int | None = None) -> list[np.ndarray]:
        """Return the batches of the passes first, first + 1, ..; E of them if nothing is said."""
        return mlp.passes(
            self.batches, self.t, k, first, self.epochs(self.t, k) if epochs is None else epochs
        )

    def stream(self, k: Client) -> Iterator[np.ndarray]:
        """Yield one batch after another, pass after pass."""
        return (rows for draw in count() for rows in self.batches(self.t, k, draw))

    def sgd(self, k: Client, w: Params, by: Gradient = mlp.gradient, **more: Any) -> Params:
        """Return w after E epochs on client k's batches."""
        return mlp.sgd(w, self.data[k], self.steps(k), self.eta, by, **more)

    def mean(self, of: dict[Client, Params], plain: bool = False) -> Params:
        """Return sum_k (n_k / n_S) w_k, n_S over the clients in `of`, or their plain mean."""
        return mlp.average([*of.values()], [1 if plain else len(self.data[k][1]) for k in of])


class Reference:
    """One algorithm; its fields are the paper's knobs, and attributes that `begin` sets what it remembers.

    Attributes:
        algorithm: Name in the catalogue.
        active: Run-config keys at whose values it is not FedAvg and every knob of its own does something.
        cases: Run-config settings under which the app is held to it, by the name of the test.
        keys: Run-config keys of fields that are named otherwise.
        tolerance: Largest difference of the app's models, relative to each array.
        model: The run-config key.
        score: Loss and accuracy of a model on examples, if the model is not one of `tests.reference.mlp`.
        w: The shared model w^t.
        t: Rounds that are over.
        ended: Whether it goes on to no other round.
    """

    algorithm = ""
    active: dict[str, Any] = {}
    cases: dict[str, dict[str, Any]] = {}
    keys: dict[str, str] = {}
    tolerance = 2e-5
    model = "logistic"
    score: Callable[..., tuple[float, float]] | None = None

    w: Params
    data: Data
    t = 0
    ended = False

    def begin(self) -> None:
        """Set what is remembered to what it is before the first round; `w` and `data` are there."""

    def round(self, r: Round) -> None:
        """Go through one round."""
        raise NotImplementedError

    def personal(self, k: Client) -> Params:
        """Return the model with which client k is evaluated, also one that never took part."""
        return self.w

    def kept(self) -> dict[str, dict[Client, Params]]:
        """Return what clients keep, by the name of the record; clients without any may be in it."""
        return {}

    def server(self) -> dict[str, Params]:
        """Return what the server remembers besides the model, by the name in its checkpoint."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return numbers that the row of the round tells."""
        return {}

    def told(self) -> dict[str, dict[Client, float]]:
        """Return numbers that clients sent in the round."""
        return {}


class Trace:
    """A reference after each round, ``at[t]``, the start first; ``trace.x[t]`` is its attribute x."""

    def __init__(self, at: list[Any]) -> None:
        self.at = at

    def __getattr__(self, name: str) -> list[Any]:
        return [getattr(s, name) for s in self.at]

    @property
    def models(self) -> list[Params]:
        return [s.w for s in self.at]

    @property
    def personal(self) -> list[dict[Client, Params]]:
        return [{k: s.personal(k) for k in sorted(s.data)} for s in self.at]


def snapshot(reference: Reference) -> Reference:
    """Return a copy to keep; arrays are never changed in place, dicts by client are."""
    taken = copy.copy(reference)
    for name, value in vars(reference).items():
        if isinstance(value, dict):
            setattr(taken, name, dict(value))
    return taken


def driven(kind: Callable[..., Reference]) -> Callable[..., Trace]:
    """Return ``run`` of a reference: the rounds around what one of them computes."""

    def run(
        data: Data,
        w0: Params,
        *,
        cohorts: Sequence[Sequence[Client]],
        lr: float,
        batches: Batches = lambda t, k, draw: [],
        epochs: int | Callable[[int, Client], int] = 1,
        lr_decay: float = 1.0,
        **knobs: Any,
    ) -> Trace:
        work = epochs if callable(epochs) else lambda t, k: epochs
        reference = kind(**knobs)
        reference.w, reference.data = mlp.double(w0), {k: data[k] for k in sorted(data)}
        reference.begin()
        at = [snapshot(reference)]
        for t, cohort in enumerate(cohorts, 1):
            reference.round(Round(t, lr * lr_decay ** (t - 1), sorted(cohort), reference.data, batches, work))
            reference.t = t
            at.append(snapshot(reference))
            if reference.ended:
                break
        return Trace(at)

    return run
