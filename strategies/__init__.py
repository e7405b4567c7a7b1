"""Server halves: one file per rule, and the one round loop in `base`.

Each is a Flower ``Strategy`` and can be used in any Flower app::

    from strategies import FedAvg

    FedAvg(fraction_train=0.1, seed=7).start(grid, initial_arrays, num_rounds=100)
"""

from strategies.adaptive_tau import AdaptiveTau
from strategies.base import Strategy
from strategies.bulyan import Bulyan
from strategies.fedatt import FedAtt
from strategies.fedavg import FedAvg
from strategies.feddyn import FedDyn
from strategies.fednova import FedNova
from strategies.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from strategies.fedprox import FedProx
from strategies.fedsgd import FedSGD
from strategies.fsvrg import FSVRG, FSVRGSparse
from strategies.geometric_median import GeometricMedian
from strategies.krum import Krum, MultiKrum
from strategies.median import Median
from strategies.qfedavg import QFedAvg, QFedSGD
from strategies.scaffold import Scaffold
from strategies.trimmed_mean import TrimmedMean

STRATEGIES: dict[str, type[Strategy]] = {
    "adaptive-tau": AdaptiveTau,
    "bulyan": Bulyan,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedatt": FedAtt,
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "feddyn": FedDyn,
    "fednova": FedNova,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "fsvrg": FSVRG,
    "fsvrg-sparse": FSVRGSparse,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "median": Median,
    "multi-krum": MultiKrum,
    "qfedavg": QFedAvg,
    "qfedsgd": QFedSGD,
    "scaffold": Scaffold,
    "trimmed-mean": TrimmedMean,
    "fedyogi": FedYogi,
}

__all__ = [
    "FSVRG",
    "STRATEGIES",
    "AdaptiveTau",
    "Bulyan",
    "FSVRGSparse",
    "FedAdagrad",
    "FedAdam",
    "FedAtt",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "QFedAvg",
    "QFedSGD",
    "Scaffold",
    "Strategy",
    "TrimmedMean",
]
