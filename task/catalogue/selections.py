"""The catalogue of selection policies: who trains in a round, and what a policy makes clients send.

A policy works with any rule: it draws the cohort (``strategies/selection/policies.py``) and touches nothing
else, but for two things that both sides must agree on, and that stand here.

* What it needs from the clients: a **query** of candidates before the draw, which is a contract of its own
  (the received model goes down, one loss comes up), or a **stage** of every training
  (`task.catalogue.stages`).
* The **weights** of a mean. A client that is drawn in proportion to its n_k already counts n_k times as
  often; to weight its model by n_k once more would count its examples squared. So the papers' form is taken:
  drawn by n_k, averaged with equal weights, whatever the weights of the algorithm's catalogue entry are.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from task.catalogue.entry import LI_PROX, MCMAHAN, Algorithm
from task.catalogue.papers import Paper, paper
from task.catalogue.record import Scalar
from task.errors import ConfigError, choose_from

CANDIDATES: Final = "candidates"  # name of the phase that asks candidates for their loss
LOSS = Scalar("loss", "F_k(w^t), mean loss of the received model over the training examples", low=0)


@dataclass(frozen=True)
class Selection:
    """One policy."""

    name: str  # value of the run-config key ``selection``
    title: str  # its name in words
    paper: Paper  # where it comes from
    # Contract of the query of candidates before the draw, if there is one. It is sent only with
    # ``select.losses = "query"``.
    query: Algorithm | None = None
    stages: tuple[str, ...] = ()  # stages that every training has with it (`task.catalogue.stages`)
    # Whether clients are drawn in proportion to n_k, so that means take equal weights.
    by_examples: bool = False
    ring: bool = False  # whether the model goes from client to client within a round
    reads: tuple[str, ...] = ()  # its own run-config keys

    @property
    def needs_losses(self) -> bool:
        """Whether it goes by the clients' losses of the received model."""
        return self.query is not None or bool(self.stages)


_CHO = paper("2010.01243", "section 4")

_BY_SIZE = replace(LI_PROX, where="Algorithm 2, line 2")
_TITLE = "Power-of-Choice, query of the candidates"
_QUERY = Algorithm("power-of-choice", _TITLE, _CHO, solver="", up=(), up_scalars=(LOSS,), work="loss")
_OORT = (
    "select.penalty", "select.exploration", "select.exploration-decay", "select.exploration-min",
    "select.cut-off", "select.clip", "select.pace", "select.pacer-step", "select.pacer-window",
)  # fmt: skip
_ALL = (
    Selection(
        "cycle",
        "Cyclic weight transfer",
        paper("1709.05929", "cyclical weight transfer"),
        ring=True,
        reads=("select.order",),
    ),
    Selection("fedcs", "FedCS", paper("1804.08333", "Algorithm 3"), reads=("select.deadline",)),
    Selection("oort", "Oort", paper("2010.06081"), stages=("loss",), reads=_OORT),
    Selection(
        "power-of-choice",
        "Power-of-Choice",
        _CHO,
        query=_QUERY,
        by_examples=True,
        reads=("select.candidates", "select.losses"),
    ),
    Selection("proportional", "in proportion to n_k", _BY_SIZE, by_examples=True),
    Selection("uniform", "uniform", MCMAHAN),
)
SELECTIONS: dict[str, Selection] = {selection.name: selection for selection in _ALL}


def with_selection(entry: Algorithm, selection: str) -> Algorithm:
    """Return an algorithm's contract under a policy: its weights and its query.

    Raises:
        ConfigError: There is no such policy.
    """
    if selection not in SELECTIONS:
        raise ConfigError(choose_from('run-config key "selection"', selection, SELECTIONS))
    chosen = SELECTIONS[selection]
    weight = "uniform" if chosen.by_examples else entry.weight
    if weight == entry.weight and chosen.query is None:
        return entry
    phases = {name: replace(phase, weight=weight) for name, phase in entry.phases.items()}
    if chosen.query is not None:
        phases[CANDIDATES] = chosen.query
    return replace(entry, weight=weight, phases=phases)


def cohort_size(fraction: float, population: int) -> int:
    """Return m = max(floor(C K), 1), how many clients train; 0 of none."""
    # 0.29 * 100 is 28.999999999999996
    return max(math.floor(fraction * population + 1e-9), 1) if population else 0
