"""Client halves: one file per local solver, all driven by the one loop in `client_app.loop`."""

from client_app.solvers.fedprox import FedProxSolver
from client_app.solvers.fedsgd import FedSGDSolver
from client_app.solvers.sgd import Solver

SOLVERS: dict[str, type[Solver]] = {"fedprox": FedProxSolver, "fedsgd": FedSGDSolver, "sgd": Solver}

__all__ = ["SOLVERS", "Solver"]
