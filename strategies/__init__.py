"""Server halves: one file per rule, and the one round loop in `base`.

Each is a Flower ``Strategy`` and can be used in any Flower app::

    from strategies import FedAvg

    FedAvg(fraction_train=0.1, seed=7).start(grid, initial_arrays, num_rounds=100)
"""

from strategies.adaptive_tau import AdaptiveTau
from strategies.apple import Apple
from strategies.base import Strategy
from strategies.baselines import Centralised, LocalOnly
from strategies.bulyan import Bulyan
from strategies.ensemble import Ensemble
from strategies.fedamp import FedAMP
from strategies.fedatt import FedAtt
from strategies.fedavg import FedAvg
from strategies.feddyn import FedDyn
from strategies.fedfomo import FedFomo
from strategies.fednova import FedNova
from strategies.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from strategies.fedprox import FedProx
from strategies.fedsgd import FedSGD
from strategies.fsvrg import FSVRG, FSVRGSparse
from strategies.geometric_median import GeometricMedian
from strategies.krum import Krum, MultiKrum
from strategies.median import Median
from strategies.pfedme import PFedMe
from strategies.qfedavg import QFedAvg, QFedSGD
from strategies.scaffold import Scaffold
from strategies.trimmed_mean import TrimmedMean

STRATEGIES: dict[str, type[Strategy]] = {
    "adaptive-tau": AdaptiveTau,
    "apple": Apple,
    "bulyan": Bulyan,
    "centralised": Centralised,
    "ensemble": Ensemble,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedamp": FedAMP,
    "fedatt": FedAtt,
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "feddyn": FedDyn,
    "fedfomo": FedFomo,
    "fednova": FedNova,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "fsvrg": FSVRG,
    "fsvrg-sparse": FSVRGSparse,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "local-only": LocalOnly,
    "median": Median,
    "multi-krum": MultiKrum,
    "pfedme": PFedMe,
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
    "Apple",
    "Bulyan",
    "Centralised",
    "Ensemble",
    "FSVRGSparse",
    "FedAMP",
    "FedAdagrad",
    "FedAdam",
    "FedAtt",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedFomo",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "GeometricMedian",
    "Krum",
    "LocalOnly",
    "Median",
    "MultiKrum",
    "PFedMe",
    "QFedAvg",
    "QFedSGD",
    "Scaffold",
    "Strategy",
    "TrimmedMean",
]
