"""What algorithms of your own are made from: ``from bouquet.extend import ALGORITHMS, Rule``.

::

    from dataclasses import replace
    from bouquet.extend import ALGORITHMS, Rule

    class Half(Rule, update=lambda state, replies, config: (state, {})):
        entry = replace(ALGORITHMS["fedavg"], title="Half")

``docs/howto/data.md`` describes them. A name is imported when it is first used, since `Solver` needs torch
and `Rule` does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bouquet.packages import claim

if TYPE_CHECKING:
    from client_app.solvers.sgd import Solver
    from strategies.engine.rule import RoundContext, Rule
    from strategies.engine.state import AggregatedReplies, ServerState
    from task.catalogue.algorithms import ALGORITHMS
    from task.catalogue.entry import Algorithm
    from task.catalogue.record import Record, Scalar
    from task.config.knobs import Config

_MODULES = {
    "ALGORITHMS": "task.catalogue.algorithms",
    "AggregatedReplies": "strategies.engine.state",
    "Algorithm": "task.catalogue.entry",
    "Config": "task.config.knobs",
    "Record": "task.catalogue.record",
    "RoundContext": "strategies.engine.rule",
    "Rule": "strategies.engine.rule",
    "Scalar": "task.catalogue.record",
    "ServerState": "strategies.engine.state",
    "Solver": "client_app.solvers.sgd",
}

__all__ = [
    "ALGORITHMS",
    "AggregatedReplies",
    "Algorithm",
    "Config",
    "Record",
    "RoundContext",
    "Rule",
    "Scalar",
    "ServerState",
    "Solver",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    claim()
    return getattr(import_module(_MODULES[name]), name)
