"""Client halves: one file per local solver, all driven by the one loop in `client_app.training.loop`.

Every module of this folder is imported, and a solver with a ``name`` of its own is registered under it.
"""

from importlib import import_module
from pkgutil import iter_modules

from client_app.solvers.sgd import Solver
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.references import is_reference, load_reference

SOLVERS: dict[str, type[Solver]] = {
    cls.name: cls
    for found in iter_modules(__path__)
    for cls in vars(import_module(f"{__name__}.{found.name}")).values()
    if isinstance(cls, type) and issubclass(cls, Solver) and "name" in vars(cls)
}
for _name, _entry in ALGORITHMS.items():
    for _part in (_entry, *_entry.phases.values()):
        if _part.solver not in SOLVERS:
            raise ConfigError(
                f'task/catalogue: the entry "{_name}" has solver "{_part.solver}", which no file in '
                f'client_app/solvers registers. Add there: class NAME(Solver, name="{_part.solver}"), or, if '
                "clients train as in FedAvg, leave solver out of the entry"
            )


def solver_of(name: str) -> type[Solver]:
    """Return a solver by its name, or a user's own ``package.module:name``.

    Raises:
        ConfigError: It is no solver.
    """
    if not is_reference(name):
        return SOLVERS[name]
    found = load_reference("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, Solver)):
        raise ConfigError(
            f'run-config key "algorithm": its solver "{name}": expected a class derived from '
            f"bouquet.extend.Solver; got {found!r}"
        )
    return found


__all__ = ["SOLVERS", "Solver", "solver_of"]
