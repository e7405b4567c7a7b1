"""Server halves: one file per rule, and the one round loop in `base`.

Each is a Flower ``Strategy`` and can be used in any Flower app::

    from strategies import FedAvg

    FedAvg(fraction_train=0.1, seed=7).start(grid, initial_arrays, num_rounds=100)
"""

from strategies.base import Strategy
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.fedsgd import FedSGD

STRATEGIES: dict[str, type[Strategy]] = {"fedavg": FedAvg, "fedprox": FedProx, "fedsgd": FedSGD}

__all__ = ["STRATEGIES", "FedAvg", "FedProx", "FedSGD", "Strategy"]
