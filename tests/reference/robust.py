"""Robust rules, by brute force from the papers; n vectors in a list, f of them Byzantine. Float64.

Median, trimmed mean: Yin et al., ICML 2018, arXiv 1803.01498, Definitions 1 and 2.
Krum:                 Blanchard et al., NIPS 2017, arXiv 1703.02757, section 4.
Bulyan:               El Mhamdi et al., ICML 2018, arXiv 1802.07927, section 4.
Geometric median:     Pillutla et al., 2022, arXiv 1912.13445, Algorithm 2.
Meamed:               Xie et al. 2018, arXiv 1802.10116, Definition 4.
DnC:                  Shejwalkar and Houmansadr, NDSS 2021, Algorithm 2.
Centered clipping:    Karimireddy et al., ICML 2021, arXiv 2012.10333, Algorithm 2.
FLTrust:              Cao et al., NDSS 2021, arXiv 2012.13995, Algorithm 2.
Norm bound:           Sun et al. 2019, arXiv 1911.07963.
NNM:                  Allouah et al., AISTATS 2023, arXiv 2302.01772, Algorithm 2.
Little is enough:     Baruch et al., NeurIPS 2019, arXiv 1902.06156, Algorithm 3.
"""

import math
from dataclasses import dataclass

import numpy as np

from tests.reference.driver import Reference, Round

Vectors = list[np.ndarray]
SEVEN = {"anna": 7, "ben": 12, "cleo": 9, "dora": 5, "emil": 16, "fay": 8, "gus": 11}
COMMON = {"owners": SEVEN, "local_epochs": 2, "nodes": 3, "num_server_rounds": 4}
SOME, EVERYBODY = COMMON | {"fraction_train": 0.8}, COMMON | {"fraction_train": 1.0}


class Robust(Reference):
    """FedAvg's clients under a rule (vectors, n_k) -> vector."""

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        raise NotImplementedError

    def round(self, r: Round) -> None:
        local = [np.concatenate([a.ravel() for a in r.sgd(k, self.w).values()]) for k in r.cohort]
        new = self.rule(local, [len(r.data[k][1]) for k in r.cohort])
        ends = np.cumsum([a.size for a in self.w.values()])[:-1]
        parts = zip(self.w.items(), np.split(new, ends), strict=True)
        self.w = {name: part.reshape(a.shape) for (name, a), part in parts}


@dataclass
class Median(Robust):
    algorithm = "median"
    cases = {"median": SOME}

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        return median(w)


@dataclass
class TrimmedMean(Robust):
    algorithm = "trimmed-mean"
    active = {"robust.trim": 0.34}
    cases = {"trimmed": SOME | {"robust__trim": 0.3}}

    trim: float

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        return trimmed_mean(w, self.trim)


@dataclass
class Krum(Robust):
    algorithm = "krum"
    active = {"robust.byzantine": 0.2}
    cases = {"krum": EVERYBODY | {"robust__byzantine": 2.0}}

    byzantine: float

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        return w[krum(w, int(self.byzantine))]


@dataclass
class MultiKrum(Robust):
    algorithm = "multi-krum"
    active = {"robust.byzantine": 0.2, "robust.m": 2}
    cases = {
        "multi-krum": SOME | {"robust__byzantine": 1.0},
        "multi-krum 2": EVERYBODY | {"robust__byzantine": 2.0, "robust__m": 2},
    }

    byzantine: float
    m: int = 0

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        f = int(self.byzantine)
        return multi_krum(w, f, self.m or len(w) - f - 2)


@dataclass
class Bulyan(Robust):
    algorithm = "bulyan"
    active = {"robust.byzantine": 0.15}
    cases = {
        "bulyan": EVERYBODY | {"robust__byzantine": 1.0},
        "bulyan 0": EVERYBODY | {"robust__byzantine": 0.0},
    }

    byzantine: float

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        return bulyan(w, int(self.byzantine))


@dataclass
class GeometricMedian(Robust):
    algorithm = "geometric-median"
    active = {"robust.nu": 0.001, "robust.iterations": 20, "robust.weighted": True}
    cases = {
        "rfa": SOME | {"robust__iterations": 5, "robust__nu": 0.01},
        "rfa weighted": SOME | {"robust__iterations": 3, "robust__nu": 0.3, "robust__weighted": True},
    }

    nu: float
    iterations: int
    weighted: bool = False

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        alpha = [float(n) if self.weighted else 1.0 for n in sizes]
        return geometric_median(w, alpha, self.nu, self.iterations)


@dataclass
class Meamed(Robust):
    algorithm = "meamed"
    active = {"robust.byzantine": 0.2}
    cases = {
        "meamed": EVERYBODY | {"robust__byzantine": 2.0},
        "meamed even": SOME | {"robust__byzantine": 1.0},
    }

    byzantine: float

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        return meamed(w, int(self.byzantine))


@dataclass
class DnC(Robust):
    algorithm = "dnc"
    active = {"robust.byzantine": 0.2}
    cases = {"dnc": EVERYBODY | {"robust__byzantine": 2.0}, "dnc 1": SOME | {"robust__byzantine": 1.0}}

    byzantine: float

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        out = dnc_scores(w)
        taken = sorted(range(len(w)), key=lambda i: (out[i], i))[: len(w) - int(self.byzantine)]
        return sum(w[i] for i in taken) / len(taken)


@dataclass
class CenteredClipping(Robust):
    algorithm = "centered-clipping"
    active = {"centered-clipping.radius": 0.1, "robust.byzantine": 0.2}
    cases = {
        "clipping": SOME | {"centered_clipping__radius": 0.3},
        "clipping thrice": EVERYBODY
        | {"centered_clipping__radius": 0.1, "centered_clipping__iterations": 3, "robust__byzantine": 2.0},
    }

    radius: float = 1.0
    iterations: int = 1

    def begin(self) -> None:
        self.v = np.zeros(sum(a.size for a in self.w.values()))

    def rule(self, w: Vectors, sizes: list[int]) -> np.ndarray:
        start = np.concatenate([a.ravel() for a in self.w.values()])
        self.v = centered_clipping([x - start for x in w], self.v, self.radius, self.iterations)
        return start + self.v


@dataclass
class FLTrust(Reference):
    """The root client is the first by name, and trains in the round as everybody does."""

    algorithm = "fltrust"
    cases = {"fltrust": EVERYBODY, "fltrust, another root": EVERYBODY | {"fltrust__root": "emil"}}

    root: str = ""

    def round(self, r: Round) -> None:
        root = self.root or min(r.data)
        local = {k: r.sgd(k, self.w) for k in {*r.cohort, root}}
        start = np.concatenate([a.ravel() for a in self.w.values()])
        flat = {k: np.concatenate([a.ravel() for a in w.values()]) - start for k, w in local.items()}
        new = start + fltrust([flat[k] for k in sorted(flat) if k != root], flat[root])
        ends = np.cumsum([a.size for a in self.w.values()])[:-1]
        parts = zip(self.w.items(), np.split(new, ends), strict=True)
        self.w = {name: part.reshape(a.shape) for (name, a), part in parts}


def meamed(w: Vectors, f: int) -> np.ndarray:
    out = []
    for j in range(len(w[0])):
        values = [float(v[j]) for v in w]
        centre = median_of(values)
        nearest = sorted(values, key=lambda v: abs(v - centre))[: len(values) - f]
        out.append(sum(nearest) / len(nearest))
    return np.array(out)


def dnc_scores(w: Vectors) -> list[float]:
    """(X v)^2 by the singular vectors of the centred rows, all coordinates."""
    X = np.array(w) - np.mean(w, axis=0)
    v = np.linalg.svd(X, full_matrices=False)[2][0]
    return [float((x @ v) ** 2) for x in X]


def centered_clipping(x: Vectors, v: np.ndarray, radius: float, iterations: int) -> np.ndarray:
    for _ in range(iterations):
        v = v + sum((a - v) * min(1.0, radius / float(np.linalg.norm(a - v))) for a in x) / len(x)
    return v


def fltrust(x: Vectors, root: np.ndarray) -> np.ndarray:
    norm = float(np.linalg.norm(root))
    scores = [max(0.0, float(a @ root) / (float(np.linalg.norm(a)) * norm)) for a in x]
    return sum(s * norm / float(np.linalg.norm(a)) * a for s, a in zip(scores, x, strict=True)) / sum(scores)


def norm_bound(x: Vectors, most: float) -> Vectors:
    return [a * min(1.0, most / float(np.linalg.norm(a))) for a in x]


def nearest_neighbours(x: Vectors, f: int) -> Vectors:
    out = []
    for a in x:
        closest = sorted(x, key=lambda b, a=a: float(((a - b) ** 2).sum()))[: len(x) - f]
        out.append(sum(closest) / len(closest))
    return out


def median_of(values: list[float]) -> float:
    v, n = sorted(values), len(values)
    return v[n // 2] if n % 2 else (v[n // 2 - 1] + v[n // 2]) / 2


def median(w: Vectors) -> np.ndarray:
    return np.array([median_of([float(v[j]) for v in w]) for j in range(len(w[0]))])


def trimmed_mean(w: Vectors, beta: float) -> np.ndarray:
    n = len(w)
    b = math.floor(beta * n + 1e-9)
    out = []
    for j in range(len(w[0])):
        kept = sorted(float(v[j]) for v in w)[b : n - b]
        out.append(sum(kept) / len(kept))
    return np.array(out)


def krum_scores(w: Vectors, f: int) -> list[float]:
    """s(i) = sum over i -> j of |w_i - w_j|^2, j among the n - f - 2 closest to i (at least one)."""
    n = len(w)
    scores = []
    for i in range(n):
        others = sorted(float(((w[i] - w[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(others[: max(n - f - 2, 1)]))
    return scores


def krum(w: Vectors, f: int) -> int:
    s = krum_scores(w, f)
    return min(range(len(w)), key=lambda i: (s[i], i))


def multi_krum(w: Vectors, f: int, m: int) -> np.ndarray:
    s = krum_scores(w, f)
    best = sorted(range(len(w)), key=lambda i: (s[i], i))[:m]
    return sum(w[i] for i in best) / m


def bulyan(w: Vectors, f: int) -> np.ndarray:
    theta = len(w) - 2 * f
    received, selected = list(range(len(w))), []
    while len(selected) < theta:
        k = received[krum([w[i] for i in received], f)]
        received.remove(k)
        selected.append(k)
    beta = theta - 2 * f
    out = []
    for j in range(len(w[0])):
        values = [float(w[i][j]) for i in selected]
        centre = median_of(values)
        closest = sorted(values, key=lambda v: (abs(v - centre), v))[:beta]
        out.append(sum(closest) / beta)
    return np.array(out)


def geometric_median(w: Vectors, alpha: list[float], nu: float, steps: int) -> np.ndarray:
    z = sum(a * v for a, v in zip(alpha, w, strict=True)) / sum(alpha)
    for _ in range(steps):
        beta = [a / max(nu, float(np.linalg.norm(z - v))) for a, v in zip(alpha, w, strict=True)]
        z = sum(b * v for b, v in zip(beta, w, strict=True)) / sum(beta)
    return z


def little_is_enough(benign: Vectors, m: int) -> np.ndarray:
    """mean - z_max std of the benign; Phi by its definition, its inverse by bisection."""
    n = len(benign) + m
    s = math.floor(n / 2 + 1) - m
    wanted = (n - m - s) / (n - m)
    low, high = 0.0, 10.0
    for _ in range(100):
        z = (low + high) / 2
        low, high = (z, high) if 0.5 * (1 + math.erf(z / math.sqrt(2))) < wanted else (low, z)
    stack = np.array(benign)
    return stack.mean(0) - low * stack.std(0)
