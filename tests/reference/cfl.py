"""CFL: Sattler, Müller and Samek 2019, arXiv 1910.01991, and the authors' code.

delta_k = w_k - theta_c.  If |mean delta| < e1, max |delta_k| > e2, more than two clients and round > warm-up,
cut c by complete linkage of 1 - cos(delta_i, delta_j).  Then theta = mean w_k in each cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params


def flat(w: Params) -> np.ndarray:
    return np.concatenate([w[n].ravel() for n in sorted(w)])


def cut(deltas: list[np.ndarray]) -> tuple[list[int], list[int]]:
    """Merge the two groups whose farthest members are nearest, until two are left."""
    groups = [[k] for k in range(len(deltas))]

    def apart(a: list[int], b: list[int]) -> float:
        return max(
            1 - deltas[i] @ deltas[j] / np.linalg.norm(deltas[i]) / np.linalg.norm(deltas[j])
            for i in a
            for j in b
        )

    while len(groups) > 2:
        a, b = min(combinations(groups, 2), key=lambda pair: apart(*pair))
        groups = [g for g in groups if g not in (a, b)] + [sorted(a + b)]
    first, second = sorted(groups)
    return first, second


@dataclass
class CFL(Reference):
    """w = the model of the largest cluster; clients are in one once they took part."""

    algorithm = "cfl"
    active = {"cfl.epsilon1": 1e6, "cfl.epsilon2": 0.0, "cfl.warmup": 0}
    cases = {
        "cut at once": {
            "cfl__epsilon1": 1e6, "cfl__epsilon2": 0.0, "cfl__warmup": 1, "fraction_train": 1.0,
            "num_server_rounds": 5,
        },
        "two at most, some away": {
            "cfl__epsilon1": 1e6, "cfl__epsilon2": 0.0, "cfl__warmup": 0, "cfl__clusters": 2,
            "fraction_train": 0.8, "num_server_rounds": 6,
        },
        "never cut": {"fraction_train": 0.6},
    }  # fmt: skip
    epsilon1: float = 0.4
    epsilon2: float = 1.6
    clusters: int = 10
    warmup: int = 20

    def begin(self) -> None:
        self.models, self.home = [self.w], dict[Client, int]()

    def largest(self) -> int:
        sizes = [list(self.home.values()).count(c) for c in range(len(self.models))]
        return int(np.argmax(sizes))

    def round(self, r: Round) -> None:
        new = self.largest()
        self.home |= {k: new for k in r.cohort if k not in self.home}
        starts, self.models = self.models, list(self.models)
        for c, theta in enumerate(starts):
            mine = [k for k in r.cohort if self.home[k] == c]
            if not mine:
                continue
            trained = {k: r.sgd(k, theta) for k in mine}
            deltas = [flat(trained[k]) - flat(theta) for k in mine]
            parts = [mine]
            if (
                np.linalg.norm(np.mean(deltas, axis=0)) < self.epsilon1
                and max(np.linalg.norm(d) for d in deltas) > self.epsilon2
                and len(mine) > 2
                and r.t > self.warmup
                and len(self.models) < self.clusters
                and len(mine) == list(self.home.values()).count(c)
            ):
                parts = [[mine[i] for i in half] for half in cut(deltas)]
                self.home |= dict.fromkeys(parts[1], len(self.models))
                self.models = [*self.models, theta]
            for part in parts:
                self.models[self.home[part[0]]] = r.mean({k: trained[k] for k in part}, plain=True)
        self.w = self.models[self.largest()]

    def personal(self, k: Client) -> Params:
        return self.models[self.home.get(k, self.largest())]

    def server(self) -> dict[str, Params]:
        return {f"models/model-{c}": w for c, w in enumerate(self.models)}
