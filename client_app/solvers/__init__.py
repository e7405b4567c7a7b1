"""Client halves: one file per local solver, all driven by the one loop in `client_app.training.loop`.

Every module of this folder is imported, and a solver with a ``name`` of its own is registered under it.
"""

from importlib import import_module
from pkgutil import iter_modules

from client_app.solvers.sgd import Solver

SOLVERS: dict[str, type[Solver]] = {
    cls.name: cls
    for found in iter_modules(__path__)
    for cls in vars(import_module(f"{__name__}.{found.name}")).values()
    if isinstance(cls, type) and issubclass(cls, Solver) and "name" in vars(cls)
}

__all__ = ["SOLVERS", "Solver"]
