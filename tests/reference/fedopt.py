"""FedAdagrad, FedAdam, FedYogi: Reddi et al., ICLR 2021, Algorithm 2. FedAvgM: Hsu et al. 2019.

Client: as in FedAvg.  Server, on each number by itself, with Delta_t = sum_k (n_k / n_S) w_k - w^t:

adaptive  m <- beta1 m + (1 - beta1) Delta;  w <- w + eta m / (sqrt(v) + tau);  v = tau^2 at first
          Adagrad v <- v + Delta^2;  Adam v <- beta2 v + (1 - beta2) Delta^2;
          Yogi v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
FedAvgM   m <- beta m + Delta;  w <- w + eta m;  Nesterov: w <- w + eta (Delta + beta m)

Bias correction (Kingma & Ba, Adam): v = 0 at first; m / (1 - beta1^t) and v / (1 - beta2^t) in the step.
A sum of squares (Adagrad) has no such bias.
"""

import math
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round

COMMON = {"local_epochs": 2, "num_server_rounds": 5}


class ServerOptimizer(Reference):
    """The server optimiser, number by number."""

    def begin(self) -> None:
        self.m: dict[tuple[object, ...], float] = {}
        self.v: dict[tuple[object, ...], float] = {}

    def round(self, r: Round) -> None:
        mean, new = r.mean({k: r.sgd(k, self.w) for k in r.cohort}), {}
        for name, array in self.w.items():
            new[name] = array.copy()
            for at in np.ndindex(array.shape):
                new[name][at] += self.added((name, *at), float(mean[name][at] - array[at]), r.t)
        self.w = new

    def added(self, at: tuple[object, ...], delta: float, t: int) -> float:
        raise NotImplementedError


@dataclass
class FedAvgM(ServerOptimizer):
    algorithm = "fedavgm"
    active = {"fedavgm.momentum": 0.5}
    cases = {
        "plain": COMMON | {"fedavgm__nesterov": False, "fedavgm__momentum": 0.8, "fedavgm__server_lr": 0.6},
        "nesterov": COMMON | {"fedavgm__momentum": 0.6, "fedavgm__server_lr": 0.8},
    }
    keys = {"momentum": "fedavgm.momentum"}

    server_lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = True

    def added(self, at: tuple[object, ...], delta: float, t: int) -> float:
        m = self.m[at] = self.momentum * self.m.get(at, 0.0) + delta
        return self.server_lr * (delta + self.momentum * m if self.nesterov else m)


@dataclass
class Adaptive(ServerOptimizer):
    server_lr: float = 0.1
    tau: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.99
    bias_correction: bool = False
    sums = False

    def second(self, v: float, delta: float) -> float:
        raise NotImplementedError

    def added(self, at: tuple[object, ...], delta: float, t: int) -> float:
        v = self.v.get(at, 0.0 if self.bias_correction else self.tau**2)
        m = self.m[at] = self.beta1 * self.m.get(at, 0.0) + (1 - self.beta1) * delta
        v = self.v[at] = self.second(v, delta)
        if self.bias_correction:
            m = m / (1 - self.beta1**t)
            v = v if self.sums else v / (1 - self.beta2**t)
        return self.server_lr * m / (math.sqrt(v) + self.tau)


@dataclass
class FedAdagrad(Adaptive):
    algorithm = "fedadagrad"
    active = {"fedopt.server-lr": 1.0, "fedopt.tau": 0.3, "fedopt.adagrad-beta1": 0.4}
    cases = {
        "plain": COMMON | {"fedopt__server_lr": 0.2, "fedopt__tau": 0.05},
        "corrected": COMMON | {"fedopt__adagrad_beta1": 0.7, "fedopt__bias_correction": True},
    }
    keys = {"beta1": "fedopt.adagrad-beta1"}
    beta1: float = 0.0
    sums = True

    def second(self, v: float, delta: float) -> float:
        return v + delta**2


@dataclass
class FedAdam(Adaptive):
    algorithm = "fedadam"
    active = {"fedopt.server-lr": 0.5, "fedopt.tau": 0.3, "fedopt.beta1": 0.5, "fedopt.beta2": 0.9}
    cases = {
        "plain": COMMON,
        "corrected": COMMON | {"fedopt__bias_correction": True, "fedopt__beta1": 0.6, "fedopt__beta2": 0.8},
    }

    def second(self, v: float, delta: float) -> float:
        return self.beta2 * v + (1 - self.beta2) * delta**2


@dataclass
class FedYogi(Adaptive):
    algorithm = "fedyogi"
    active = {"fedopt.server-lr": 0.5, "fedopt.tau": 0.3, "fedopt.beta1": 0.5, "fedopt.beta2": 0.9}
    cases = {
        "plain": COMMON | {"fedopt__server_lr": 0.3, "fedopt__tau": 0.1, "fedopt__beta2": 0.7},
        "corrected": COMMON | {"fedopt__bias_correction": True, "fedopt__beta2": 0.7},
    }

    def second(self, v: float, delta: float) -> float:
        if v > delta**2:
            return v - (1 - self.beta2) * delta**2
        return v + (1 - self.beta2) * delta**2 if v < delta**2 else v
