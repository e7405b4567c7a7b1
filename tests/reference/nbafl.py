"""NbAFL: Wei et al., IEEE TIFS 2020, arXiv 1911.00222, Algorithm 1, with the noise as published.

Client: w_k = local SGD from w^t on F_k(w) + mu/2 |w - w^t|^2;  w_k <- w_k / max(1, |w_k| / C);
        w~_k = w_k + N(0, sigma_U^2),  sigma_U = c L Delta s_U / epsilon,  Delta s_U = 2 C / m
Server: w <- sum_k p_k w~_k + N(0, sigma_D^2);  sigma_D = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon) if
        T > L sqrt(N), else 0
c = sqrt(2 ln(1.25 / delta)), m the examples of the smallest client, N clients a round, T rounds, L exposures.
Which normal numbers are drawn is the app's: by seed, round and name, parameter after parameter.
"""

import math
from dataclasses import dataclass

import numpy as np

from task.numerics.seeds import NOISE, rng_for
from tests.reference.driver import Reference, Round
from tests.reference.mlp import Params, norm, proximal


@dataclass
class NbAFL(Reference):
    algorithm = "nbafl"
    active = {"nbafl.mu": 0.3, "nbafl.clip": 10.0, "nbafl.epsilon": 1e8}  # noise that lets it converge
    cases = {
        "everybody, noise both ways": {
            "fraction_train": 1.0, "nbafl__clip": 0.7, "nbafl__epsilon": 20.0, "nbafl__mu": 0.4, "nodes": 3,
        },
        "few clients, noise upwards": {"nbafl__epsilon": 50.0, "nbafl__exposures": 2},
    }  # fmt: skip

    seed: int
    num_server_rounds: int
    clip: float = 15.0
    epsilon: float = 100.0
    delta: float = 0.01
    exposures: int = 1
    mu: float = 0.0

    def round(self, r: Round) -> None:
        C, L, T, N = self.clip, self.exposures, self.num_server_rounds, len(r.cohort)
        m, c = min(len(y) for _, y in r.data.values()), math.sqrt(2 * math.log(1.25 / self.delta))
        self.up, self.down = c * L * (2 * C / m) / self.epsilon, 0.0
        if L * math.sqrt(N) < T:
            self.down = 2 * c * C * math.sqrt(T**2 - L**2 * N) / (m * N * self.epsilon)
        local = {}
        for k in r.cohort:
            w_k = r.sgd(k, self.w, proximal(self.w, self.mu))
            scale = max(1.0, norm(w_k) / C)
            local[k] = self.noised({n: a / scale for n, a in w_k.items()}, self.up, r.t, k)
        self.w = self.noised(r.mean(local), self.down, r.t, "down-link " + " ".join(r.cohort))

    def noised(self, w: Params, sigma: float, t: int, who: str) -> Params:
        rng = rng_for(self.seed, NOISE, t, who)
        drawn: dict[str, np.ndarray] = {n: rng.standard_normal(w[n].shape) for n in sorted(w)}
        return {n: a + sigma * drawn[n] for n, a in w.items()}

    def metrics(self) -> dict[str, float]:
        return {"sigma-up": self.up, "sigma-down": self.down}
