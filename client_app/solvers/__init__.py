"""Client halves: one file per local solver, all driven by the one loop in `client_app.training.loop`."""

from client_app.solvers.adaptive_tau import AdaptiveTauSolver
from client_app.solvers.apple import AppleSolver
from client_app.solvers.ditto import DittoSolver
from client_app.solvers.ensemble import EnsembleSolver
from client_app.solvers.fedamp import FedAMPSolver
from client_app.solvers.feddc import FedDCSolver
from client_app.solvers.feddyn import FedDynSolver
from client_app.solvers.fedexp import FedExPSolver
from client_app.solvers.fedfomo import FedFomoSolver
from client_app.solvers.fednova import FedNovaSolver
from client_app.solvers.fedprox import FedProxSolver
from client_app.solvers.fedrep import FedRepSolver
from client_app.solvers.fedsgd import FedSGDSolver
from client_app.solvers.fine_tune import FineTuneSolver
from client_app.solvers.fsvrg import CountingSolver, FSVRGSolver, FSVRGSparseSolver, GradientSolver
from client_app.solvers.moon import MoonSolver
from client_app.solvers.per_fedavg import PerFedAvgSolver
from client_app.solvers.pfedme import PFedMeSolver
from client_app.solvers.qfedavg import QFedAvgSolver, QFedSGDSolver
from client_app.solvers.scaffold import ScaffoldSolver
from client_app.solvers.sgd import Solver

SOLVERS: dict[str, type[Solver]] = {
    "adaptive-tau": AdaptiveTauSolver,
    "apple": AppleSolver,
    "ditto": DittoSolver,
    "ensemble": EnsembleSolver,
    "feature-counts": CountingSolver,
    "fedamp": FedAMPSolver,
    "feddc": FedDCSolver,
    "feddyn": FedDynSolver,
    "fedexp": FedExPSolver,
    "fedfomo": FedFomoSolver,
    "fednova": FedNovaSolver,
    "fedprox": FedProxSolver,
    "fedrep": FedRepSolver,
    "fedsgd": FedSGDSolver,
    "fine-tune": FineTuneSolver,
    "fsvrg": FSVRGSolver,
    "fsvrg-sparse": FSVRGSparseSolver,
    "gradient": GradientSolver,
    "moon": MoonSolver,
    "per-fedavg": PerFedAvgSolver,
    "pfedme": PFedMeSolver,
    "qfedavg": QFedAvgSolver,
    "qfedsgd": QFedSGDSolver,
    "scaffold": ScaffoldSolver,
    "sgd": Solver,
}

__all__ = ["SOLVERS", "Solver"]
