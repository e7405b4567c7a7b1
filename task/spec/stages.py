"""The catalogue of stages: what stands around a client's training, with any algorithm that allows it.

A stage is named by a run-config key and says here what it adds to the contract; its work is the class of the
same name in `client_app.stages`. The stages of a run are applied in the order of `STAGES`, which is

    ala  ->  training  ->  loss  ->  attack

What does not go together is refused before round 1 (`task.resolve.composition`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from task.spec.entry import Algorithm
from task.spec.record import FREE, SHARED, TOP, Record, Scalar

ALA_KEEPS = (
    Record("local-model", SHARED, "Theta_i^{t-1}, what the client last sent up"),
    Record("ala-weights", TOP, "W_i, weights of the last p layers"),
    Record("ala-started", FREE, "1 once the start phase of W is over"),
)
# Algorithms in front of which ``ala = true`` may stand: those that it was verified with.
ALA_FITS = ("ditto", "fedala", "fedavg", "fedprox", "fedrep")
LOSS_RMS = Scalar("loss-rms", "sqrt(mean of l^2) of the received model over the training examples", low=0)


@dataclass(frozen=True)
class StageSpec:
    """One stage."""

    name: str  # its name, also of its class in `client_app.stages.STAGES`
    title: str  # its name in words
    # Returns a contract with what the stage adds to it: records, scalars, kept state.
    extend: Callable[[Algorithm], Algorithm] = lambda entry: entry

    def added(self, entry: Algorithm) -> Algorithm:
        """Return a contract with this stage; one that has it already stays as it is."""
        if self.name in entry.stages:
            return entry
        return replace(self.extend(entry), stages=(*entry.stages, self.name))


def _with_ala(entry: Algorithm) -> Algorithm:
    return replace(entry, personal=True, keeps=(*entry.keeps, *ALA_KEEPS))


def _with_loss(entry: Algorithm) -> Algorithm:
    return replace(entry, up_scalars=(*entry.up_scalars, LOSS_RMS))


def _with_attack(entry: Algorithm) -> Algorithm:
    attack = STAGES["attack"]
    phases = {n: attack.added(p) if p.work == "train" else p for n, p in entry.phases.items()}
    return replace(entry, phases=phases)


# By name, in the order in which they are applied.
STAGES: dict[str, StageSpec] = {
    "ala": StageSpec("ala", "Adaptive local aggregation", _with_ala),
    "loss": StageSpec("loss", "Loss of the received model, for selection by loss", _with_loss),
    "attack": StageSpec("attack", "Simulated attack", _with_attack),
}


def with_stages(entry: Algorithm, names: frozenset[str]) -> Algorithm:
    """Return a contract with the named stages, in the declared order."""
    for name, stage in STAGES.items():
        if name in names:
            entry = stage.added(entry)
    ordered = tuple(name for name in STAGES if name in entry.stages)
    return replace(entry, stages=ordered) if ordered != entry.stages else entry
