"""What the local steps of each solver allow others to do with them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SolverTraits:
    """What holds of a solver's steps; the defaults allow nothing."""

    plain: bool = False  # whether a ClientApp that is not Bouquet's does the same
    # Whether each step goes along the gradient of a loss on one batch, with linear terms at most.
    uphill: bool = False
    # Whether clients do no more than steps from the received model, so that a restriction is defined.
    restricted: bool = False
    steps_alone: bool = False  # whether examples count in the steps alone, so that DP-SGD protects them
    by_feature: bool = False  # whether steps are scaled by feature, so that the first layer must be linear


_UPHILL = SolverTraits(uphill=True)

SOLVER_TRAITS = {
    "sgd": SolverTraits(plain=True, uphill=True, restricted=True, steps_alone=True),
    "fedprox": SolverTraits(plain=True, uphill=True, restricted=True, steps_alone=True),
    "fedexp": SolverTraits(uphill=True, restricted=True),
    "feddyn": SolverTraits(uphill=True, steps_alone=True),
    "scaffold": SolverTraits(uphill=True, steps_alone=True),
    "fsvrg-sparse": SolverTraits(by_feature=True),
    "ditto": _UPHILL,
    "fedacg": _UPHILL,
    "fedcm": _UPHILL,
    "feddc": _UPHILL,
    "fedlc": _UPHILL,
    "fednova": _UPHILL,
    "fedntd": _UPHILL,
    "fedrep": _UPHILL,
    "fine-tune": _UPHILL,
    "loss-before": _UPHILL,
    "mimelite": _UPHILL,
    "moon": _UPHILL,
    "qfedavg": _UPHILL,
}
