"""Server halves: one file per rule, and the Flower ``Strategy`` of each.

Each can be used in any Flower app::

    from strategies import FedAvg

    FedAvg(fraction_train=0.1, seed=7).start(grid, initial_arrays, num_rounds=100)
"""

from strategies import (
    adaptive_tau,
    apple,
    baselines,
    bulyan,
    ensemble,
    fedamp,
    fedatt,
    fedavg,
    feddyn,
    fedfomo,
    fednova,
    fedopt,
    fedprox,
    fedsgd,
    fsvrg,
    geometric_median,
    krum,
    median,
    pfedme,
    qfedavg,
    scaffold,
    trimmed_mean,
)
from strategies.base import Strategy


class AdaptiveTau(Strategy, rule=adaptive_tau.AdaptiveTau):
    """FedAvg with as many local steps as pay under a budget; see `strategies.adaptive_tau`."""


class Apple(Strategy, rule=apple.Apple):
    """Adaptive personalised cross-silo learning; see `strategies.apple`."""


class Bulyan(Strategy, rule=bulyan.Bulyan):
    """Bulyan; see `strategies.bulyan`."""


class Centralised(Strategy, rule=baselines.Centralised):
    """Rounds in which one client trains on everybody's data; see `strategies.baselines`."""


class Ensemble(Strategy, rule=ensemble.Ensemble):
    """Rounds in which every client trains a member of its own; see `strategies.ensemble`."""


class FSVRG(Strategy, rule=fsvrg.FSVRG):
    """Federated SVRG, dense form; see `strategies.fsvrg`."""


class FSVRGSparse(Strategy, rule=fsvrg.FSVRGSparse):
    """Federated SVRG for sparse features; see `strategies.fsvrg`."""


class FedAMP(Strategy, rule=fedamp.FedAMP):
    """Attentive message passing; see `strategies.fedamp`."""


class FedAdagrad(Strategy, rule=fedopt.FedAdagrad):
    """Adagrad on the server; see `strategies.fedopt`."""


class FedAdam(Strategy, rule=fedopt.FedAdam):
    """Adam on the server; see `strategies.fedopt`."""


class FedAtt(Strategy, rule=fedatt.FedAtt):
    """Attentive aggregation; see `strategies.fedatt`."""


class FedAvg(Strategy, rule=fedavg.FedAvg):
    """Federated averaging; see `strategies.fedavg`."""


class FedAvgM(Strategy, rule=fedopt.FedAvgM):
    """Federated averaging with server momentum; see `strategies.fedopt`."""


class FedDyn(Strategy, rule=feddyn.FedDyn):
    """Dynamic regularisation; see `strategies.feddyn`."""


class FedFomo(Strategy, rule=fedfomo.FedFomo):
    """First-order model optimisation; see `strategies.fedfomo`."""


class FedNova(Strategy, rule=fednova.FedNova):
    """Normalised averaging; see `strategies.fednova`."""


class FedProx(Strategy, rule=fedprox.FedProx):
    """Federated averaging with a proximal term; see `strategies.fedprox`."""


class FedSGD(Strategy, rule=fedsgd.FedSGD):
    """Federated SGD by gradient upload; see `strategies.fedsgd`."""


class FedYogi(Strategy, rule=fedopt.FedYogi):
    """Yogi on the server; see `strategies.fedopt`."""


class GeometricMedian(Strategy, rule=geometric_median.GeometricMedian):
    """Geometric median; see `strategies.geometric_median`."""


class Krum(Strategy, rule=krum.Krum):
    """Krum; see `strategies.krum`."""


class LocalOnly(Strategy, rule=baselines.LocalOnly):
    """Rounds in which every client trains for itself; see `strategies.baselines`."""


class Median(Strategy, rule=median.Median):
    """Coordinate-wise median; see `strategies.median`."""


class MultiKrum(Strategy, rule=krum.MultiKrum):
    """Multi-Krum; see `strategies.krum`."""


class PFedMe(Strategy, rule=pfedme.PFedMe):
    """Steps towards the mean of the local models; see `strategies.pfedme`."""


class QFedAvg(Strategy, rule=qfedavg.QFedAvg):
    """Fair federated averaging; see `strategies.qfedavg`."""


class QFedSGD(Strategy, rule=qfedavg.QFedSGD):
    """Fair federated SGD by gradient upload; see `strategies.qfedavg`."""


class Scaffold(Strategy, rule=scaffold.Scaffold):
    """Stochastic controlled averaging; see `strategies.scaffold`."""


class TrimmedMean(Strategy, rule=trimmed_mean.TrimmedMean):
    """Coordinate-wise trimmed mean; see `strategies.trimmed_mean`."""


STRATEGIES: dict[str, type[Strategy]] = {s.rule_type.algorithm: s for s in Strategy.__subclasses__()}
"""By name of the rule, see `task.entry.Algorithm.rule`."""

__all__ = ["STRATEGIES", "Strategy", *(s.__name__ for s in STRATEGIES.values())]
