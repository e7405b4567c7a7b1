"""The catalogue of stages: what stands around a client's training, with any algorithm that allows it.

A stage is named by a run-config key and says here what it adds to the contract; its work is the class of the
same name in `client_app.stages`. The stages of a run are applied in the order of `STAGES`, which is

    ala  ->  training  ->  loss  ->  attack

What does not go together is refused before round 1 (`task.resolve.composition`).
"""

from collections.abc import Callable
from dataclasses import replace

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


def _with_ala(entry: Algorithm) -> Algorithm:
    return replace(entry, personal=True, keeps=(*entry.keeps, *ALA_KEEPS))


def _with_loss(entry: Algorithm) -> Algorithm:
    return replace(entry, up_scalars=(*entry.up_scalars, LOSS_RMS))


def _with_attack(entry: Algorithm) -> Algorithm:
    phases = {n: _added(p, "attack") if p.work == "train" else p for n, p in entry.phases.items()}
    return replace(entry, phases=phases)


# In the order in which they are applied: what each adds to a contract (records, scalars, kept state).
STAGES: dict[str, Callable[[Algorithm], Algorithm]] = {
    "ala": _with_ala,
    "loss": _with_loss,
    "attack": _with_attack,
}


def _added(entry: Algorithm, name: str) -> Algorithm:
    """Return a contract with a stage; one that has it already stays as it is."""
    return entry if name in entry.stages else replace(STAGES[name](entry), stages=(*entry.stages, name))


def with_stages(entry: Algorithm, names: frozenset[str]) -> Algorithm:
    """Return a contract with the named stages, in the declared order."""
    for name in STAGES:
        if name in names:
            entry = _added(entry, name)
    return entry
