"""The catalogue's robust rules: they need every client's model, and withstand malicious clients.

See `task.spec.algorithms`.
"""

from collections.abc import Mapping
from dataclasses import replace

from task.spec.entry import Algorithm, Paper
from task.spec.record import MODEL_UP

_YIN = Paper(
    "Yin, Chen, Ramchandran, Bartlett",
    2018,
    "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    "1803.01498",
    "Algorithm 1",
)
_BLANCHARD = Paper(
    "Blanchard, El Mhamdi, Guerraoui, Stainer",
    2017,
    "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    "1703.02757",
    "section 4",
)


def _robust(
    name: str,
    title: str,
    paper: Paper,
    withstands: tuple[int, int],
    neutral: Mapping[str, float],
    why: str,
    settles: bool = True,
) -> Algorithm:
    """Return a rule over all the clients' models; the clients do as in FedAvg."""
    return Algorithm(
        name,
        title,
        paper,
        up=(replace(MODEL_UP, reduce="collect"),),
        weight="uniform",
        neutral=neutral,
        equal_sizes=True,
        no_neutral="" if neutral else "it takes the model of one client among at least three",
        withstands=withstands,
        settles=settles,
        biased=why,
    )


ROBUST: dict[str, Algorithm] = {
    "bulyan": _robust(
        "bulyan",
        "Bulyan",
        Paper(
            "El Mhamdi, Guerraoui, Rouault",
            2018,
            "The Hidden Vulnerability of Distributed Learning in Byzantium",
            "1802.07927",
            "section 4",
        ),
        (4, 3),
        {"robust.byzantine": 0.0},
        "it leaves out numbers and clients far from the others, and does not use n_k",
        settles=False,
    ),
    "geometric-median": _robust(
        "geometric-median",
        "Geometric median (RFA)",
        Paper(
            "Pillutla, Kakade, Harchaoui",
            2022,
            "Robust Aggregation for Federated Learning",
            "1912.13445",
            "Algorithm 2",
        ),
        (2, 1),
        {"robust.nu": 1e9, "robust.byzantine": 0.0},
        "it minimises distances, not their squares",
    ),
    "krum": _robust("krum", "Krum", _BLANCHARD, (2, 3), {}, "it takes one client's model", settles=False),
    "median": _robust(
        "median",
        "Coordinate median",
        _YIN,
        (2, 1),
        {"fraction-train": 0.0},
        "the median of gradients is not their mean",
    ),
    "multi-krum": _robust(
        "multi-krum",
        "Multi-Krum",
        _BLANCHARD,
        (2, 3),
        {"robust.byzantine": 0.0, "robust.m": 1_000_000},
        "it leaves out clients far from the others",
    ),
    "trimmed-mean": _robust(
        "trimmed-mean",
        "Trimmed mean",
        _YIN,
        (2, 1),
        {"robust.trim": 0.0},
        "it leaves out numbers far from the others, and does not use n_k",
    ),
}
