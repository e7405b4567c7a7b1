"""Client halves: one file per local solver, all driven by the one loop in `client_app.loop`."""

from client_app.solvers.adaptive_tau import AdaptiveTauSolver
from client_app.solvers.feddyn import FedDynSolver
from client_app.solvers.fednova import FedNovaSolver
from client_app.solvers.fedprox import FedProxSolver
from client_app.solvers.fedsgd import FedSGDSolver
from client_app.solvers.fsvrg import CountingSolver, FSVRGSolver, FSVRGSparseSolver, GradientSolver
from client_app.solvers.qfedavg import QFedAvgSolver, QFedSGDSolver
from client_app.solvers.scaffold import ScaffoldSolver
from client_app.solvers.sgd import Solver

SOLVERS: dict[str, type[Solver]] = {
    "adaptive-tau": AdaptiveTauSolver,
    "feddyn": FedDynSolver,
    "fednova": FedNovaSolver,
    "fedprox": FedProxSolver,
    "fedsgd": FedSGDSolver,
    "feature-counts": CountingSolver,
    "fsvrg": FSVRGSolver,
    "fsvrg-sparse": FSVRGSparseSolver,
    "gradient": GradientSolver,
    "qfedavg": QFedAvgSolver,
    "qfedsgd": QFedSGDSolver,
    "scaffold": ScaffoldSolver,
    "sgd": Solver,
}

__all__ = ["SOLVERS", "Solver"]
