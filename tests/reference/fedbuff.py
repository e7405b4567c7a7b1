"""FedBuff: Nguyen et al., AISTATS 2022, arXiv 2106.06639, Algorithm 1; FedAsync: Xie et al. 2019, 1903.03934.

A client trains from the version w^v that was new when it began, and has staleness tau = t - v when the
server, at version t, takes its update.

FedBuff:   w^{t+1} = w^t + (eta_g / K) sum_k (1 + tau_k)^-a (w_k - w^{v_k})
FedAsync:  w^{t+1} = (1 - alpha s(tau)) w^t + alpha s(tau) w_k,  w_k of F_k + rho/2 |w - w^v|^2

Here all clients are always at work, so that v is the version after the step that took the client's last
update. `events` is the queue for any number at work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, proximal


@dataclass
class Versions(Reference):
    """The versions of the model, and the one that each client is at work on."""

    def begin(self) -> None:
        self.history: list[Params] = [self.w]
        self.given: dict[Client, int] = dict.fromkeys(self.data, 0)
        self.taus: list[int] = []

    def stale(self, cohort: list[Client]) -> dict[Client, int]:
        self.taus = [len(self.history) - 1 - self.given[k] for k in cohort]
        return dict(zip(cohort, self.taus, strict=True))

    def step(self, cohort: list[Client], w: Params) -> None:
        self.w, self.history = w, [*self.history, w]
        self.given |= dict.fromkeys(cohort, len(self.history) - 1)

    def metrics(self) -> dict[str, float]:
        return {"staleness-mean": sum(self.taus) / len(self.taus), "staleness-max": max(self.taus)}


@dataclass
class FedBuff(Versions):
    algorithm = "fedbuff"
    active = {"fedbuff.buffer": 2, "fedbuff.server-lr": 0.7, "fraction-train": 1.0}
    cases = {
        "half of all": {"fraction_train": 1.0, "num_server_rounds": 6},
        "pairs, sharply discounted": {
            "fraction_train": 1.0, "fedbuff__buffer": 2, "fedbuff__exponent": 2.0, "num_server_rounds": 8,
        },
        "a longer step": {
            "fraction_train": 1.0, "fedbuff__server_lr": 1.5, "fedbuff__exponent": 0.0, "model": "mlp",
        },
    }  # fmt: skip

    server_lr: float = 1.0
    exponent: float = 0.5

    def round(self, r: Round) -> None:
        taus, total = self.stale(r.cohort), {n: 0.0 * a for n, a in self.w.items()}
        for k in r.cohort:
            start = self.history[self.given[k]]
            trained = r.sgd(k, start)
            for n in total:
                total[n] += (trained[n] - start[n]) / (1 + taus[k]) ** self.exponent
        self.step(r.cohort, {n: a + self.server_lr / len(r.cohort) * total[n] for n, a in self.w.items()})


@dataclass
class FedAsync(Versions):
    algorithm = "fedasync"
    active = {"fedasync.alpha": 0.5, "fraction-train": 1.0}
    cases = {
        "polynomial": {"fraction_train": 1.0, "num_server_rounds": 8},
        "hinge": {
            "fraction_train": 1.0, "num_server_rounds": 9, "fedasync__staleness": "hinge",
            "fedasync__hinge_a": 2.0, "fedasync__hinge_b": 1,
        },
        "constant, held": {
            "fraction_train": 1.0, "fedasync__staleness": "constant", "fedasync__rho": 0.5, "model": "mlp",
        },
    }  # fmt: skip

    alpha: float = 0.6
    staleness: str = "polynomial"
    poly_a: float = 0.5
    hinge_a: float = 10.0
    hinge_b: int = 6
    rho: float = 0.005

    def s(self, tau: int) -> float:
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return 1 / (tau + 1) ** self.poly_a
        return 1.0 if tau <= self.hinge_b else 1 / (self.hinge_a * (tau - self.hinge_b) + 1)

    def round(self, r: Round) -> None:
        (k,) = r.cohort
        start, alpha = self.history[self.given[k]], self.alpha * self.s(self.stale(r.cohort)[k])

        w = r.sgd(k, start, by=proximal(start, self.rho))
        self.step(r.cohort, {n: (1 - alpha) * a + alpha * w[n] for n, a in self.w.items()})


def events(
    seconds: Mapping[Client, float],
    at_once: int,
    buffer: int,
    steps: int,
    choose: Callable[[list[Client]], Client],
) -> list[tuple[float, dict[Client, int]]]:
    """Return, by server step, its second and the version that each client in its buffer began from.

    `choose` picks one of the idle clients, sorted.
    """
    queue: list[tuple[float, Client, int]] = []
    taken: list[tuple[float, dict[Client, int]]] = []
    now, full = 0.0, dict[Client, int]()

    def fill() -> None:
        while len(queue) < at_once:
            idle = sorted(set(seconds) - {k for _, k, _ in queue} - set(full))
            if not idle:
                return
            k = choose(idle)
            heapq.heappush(queue, (now + seconds[k], k, len(taken)))

    fill()
    while len(taken) < steps:
        now, k, version = heapq.heappop(queue)
        full[k] = version
        if len(full) == buffer:
            taken.append((now, full))
            full = {}
        fill()
    return taken
