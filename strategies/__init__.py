"""Server halves of the algorithms: one file per rule, and a Flower ``Strategy`` for each.

Each can be used in a Flower app, some with any ClientApp, the rest with Bouquet's::

    from strategies import FedProx

    FedProx(mu=0.1, fraction_train=0.1, seed=7).start(grid, initial_arrays, num_rounds=100)

Every module of `strategies.rules` is imported, and a rule of an algorithm becomes a strategy. Editors and
type checkers find their arguments in ``__init__.pyi``, which `make docs` writes.
"""

from strategies.shells import STRATEGIES
from strategies.shells import strategy_of as strategy_of
from strategies.strategy import Strategy

globals().update({made.__name__: made for made in STRATEGIES.values()})

__all__ = ["STRATEGIES", "Strategy", *(made.__name__ for made in STRATEGIES.values())]
