"""HierFAVG: Liu et al., ICC 2020, arXiv 1905.06641, Algorithm 1.

kappa_2 times at each edge l: w_l <- sum_{k in l} (n_k / n_l) w_k, w_k by local epochs from w_l;
then w <- sum_l (n_l / n) w_l. Batches are drawn by the number of the edge round over the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, average


@dataclass
class HierFAVG(Reference):
    """Edges are blocks of the sorted names, the first ones larger; or `initials` of the names."""

    algorithm = "hierfavg"
    active = {"hierfavg.kappa2": 2}
    cases = {
        "two edges of five": {"fraction_train": 1.0, "hierfavg__kappa2": 2},
        "some away": {"hierfavg__kappa2": 3, "local_epochs": 1},
        "an edge each": {"hierfavg__edges": 5, "hierfavg__kappa2": 2, "fraction_train": 0.4},
        "edges in names": {"hierfavg__pattern": "^([a-c])?", "hierfavg__kappa2": 2, "fraction_train": 1.0},
    }

    kappa2: int = 2
    edges: int = 2
    pattern: str = ""

    def edge(self, k: Client) -> str:
        if self.pattern:
            return k[0] if k[0] in "abc" else ""
        names, size = sorted(self.data), -(-len(self.data) // self.edges)
        return str(names.index(k) // size)

    def round(self, r: Round) -> None:
        groups: dict[str, list[Client]] = {}
        for k in r.cohort:
            groups.setdefault(self.edge(k), []).append(k)
        models: list[Params] = []
        for clients in groups.values():
            w = self.w
            for j in range(self.kappa2):
                now = replace(r, t=(r.t - 1) * self.kappa2 + j + 1)
                w = now.mean({k: now.sgd(k, w) for k in clients})
            models.append(w)
        self.w = average(models, [sum(len(r.data[k][1]) for k in clients) for clients in groups.values()])
