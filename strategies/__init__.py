"""Server halves: one file per rule, and the Flower ``Strategy`` of each.

Each can be used in any Flower app::

    from strategies import FedAvg

    FedAvg(fraction_train=0.1, seed=7).start(grid, initial_arrays, num_rounds=100)
"""

from strategies.engine.strategy import Strategy
from strategies.rules import (
    adaptive_tau,
    apple,
    baselines,
    bulyan,
    ensemble,
    fedamp,
    fedatt,
    fedavg,
    feddc,
    feddyn,
    fedexp,
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


class AdaptiveTau(Strategy, rule=adaptive_tau.AdaptiveTau):
    """FedAvg with as many local steps as pay under a budget; see `strategies.rules.adaptive_tau`."""


class Apple(Strategy, rule=apple.Apple):
    """Adaptive personalised cross-silo learning; see `strategies.rules.apple`."""


class Bulyan(Strategy, rule=bulyan.Bulyan):
    """Bulyan; see `strategies.rules.bulyan`."""


class Centralised(Strategy, rule=baselines.Centralised):
    """Rounds in which one client trains on everybody's data; see `strategies.rules.baselines`."""


class Ensemble(Strategy, rule=ensemble.Ensemble):
    """Rounds in which every client trains a member of its own; see `strategies.rules.ensemble`."""


class FSVRG(Strategy, rule=fsvrg.FSVRG):
    """Federated SVRG, dense form; see `strategies.rules.fsvrg`."""


class FSVRGSparse(Strategy, rule=fsvrg.FSVRGSparse):
    """Federated SVRG for sparse features; see `strategies.rules.fsvrg`."""


class FedAMP(Strategy, rule=fedamp.FedAMP):
    """Attentive message passing; see `strategies.rules.fedamp`."""


class FedAdagrad(Strategy, rule=fedopt.FedAdagrad):
    """Adagrad on the server; see `strategies.rules.fedopt`."""


class FedAdam(Strategy, rule=fedopt.FedAdam):
    """Adam on the server; see `strategies.rules.fedopt`."""


class FedAtt(Strategy, rule=fedatt.FedAtt):
    """Attentive aggregation; see `strategies.rules.fedatt`."""


class FedAvg(Strategy, rule=fedavg.FedAvg):
    """Federated averaging; see `strategies.rules.fedavg`."""


class FedAvgM(Strategy, rule=fedopt.FedAvgM):
    """Federated averaging with server momentum; see `strategies.rules.fedopt`."""


class FedDC(Strategy, rule=feddc.FedDC):
    """Local drift decoupling and correction; see `strategies.rules.feddc`."""


class FedDyn(Strategy, rule=feddyn.FedDyn):
    """Dynamic regularisation; see `strategies.rules.feddyn`."""


class FedExP(Strategy, rule=fedexp.FedExP):
    """Federated averaging with an extrapolated step; see `strategies.rules.fedexp`."""


class FedFomo(Strategy, rule=fedfomo.FedFomo):
    """First-order model optimisation; see `strategies.rules.fedfomo`."""


class FedNova(Strategy, rule=fednova.FedNova):
    """Normalised averaging; see `strategies.rules.fednova`."""


class FedProx(Strategy, rule=fedprox.FedProx):
    """Federated averaging with a proximal term; see `strategies.rules.fedprox`."""


class FedSGD(Strategy, rule=fedsgd.FedSGD):
    """Federated SGD by gradient upload; see `strategies.rules.fedsgd`."""


class FedYogi(Strategy, rule=fedopt.FedYogi):
    """Yogi on the server; see `strategies.rules.fedopt`."""


class GeometricMedian(Strategy, rule=geometric_median.GeometricMedian):
    """Geometric median; see `strategies.rules.geometric_median`."""


class Krum(Strategy, rule=krum.Krum):
    """Krum; see `strategies.rules.krum`."""


class LocalOnly(Strategy, rule=baselines.LocalOnly):
    """Rounds in which every client trains for itself; see `strategies.rules.baselines`."""


class Median(Strategy, rule=median.Median):
    """Coordinate-wise median; see `strategies.rules.median`."""


class MultiKrum(Strategy, rule=krum.MultiKrum):
    """Multi-Krum; see `strategies.rules.krum`."""


class PFedMe(Strategy, rule=pfedme.PFedMe):
    """Steps towards the mean of the local models; see `strategies.rules.pfedme`."""


class QFedAvg(Strategy, rule=qfedavg.QFedAvg):
    """Fair federated averaging; see `strategies.rules.qfedavg`."""


class QFedSGD(Strategy, rule=qfedavg.QFedSGD):
    """Fair federated SGD by gradient upload; see `strategies.rules.qfedavg`."""


class Scaffold(Strategy, rule=scaffold.Scaffold):
    """Stochastic controlled averaging; see `strategies.rules.scaffold`."""


class TrimmedMean(Strategy, rule=trimmed_mean.TrimmedMean):
    """Coordinate-wise trimmed mean; see `strategies.rules.trimmed_mean`."""


STRATEGIES: dict[str, type[Strategy]] = {s.rule_type.algorithm: s for s in Strategy.__subclasses__()}
"""By name of the rule, see `task.spec.entry.Algorithm.rule`."""

__all__ = ["STRATEGIES", "Strategy", *(s.__name__ for s in STRATEGIES.values())]
