"""The catalogue of stages: what stands around a client's training, with any algorithm that allows it.

A stage is named by a run-config key and says here what it adds to the contract; its work is the class of the
same name in `client_app.stages`. The stages of a run are applied in the order of `STAGES`, which is

    ala -> structured -> example-dp -> training -> loss -> momentum -> attack -> canary -> codec -> grid | dp

What does not go together is refused before round 1 (`task.features`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from task.catalogue.entry import Algorithm
from task.catalogue.record import FREE, ONE, PARAMETERS, SHARED, TOP, Record, Scalar

ALA_KEEPS = (
    Record("local-model", SHARED, "Theta_i^{t-1}, what the client last sent up"),
    Record("ala-weights", TOP, "W_i, weights of the last p layers"),
    Record("ala-started", FREE, "1 once the start phase of W is over"),
)
LOSS_RMS = Scalar("loss-rms", "sqrt(mean of l^2) of the received model over the training examples", low=0)


def _with_ala(entry: Algorithm) -> Algorithm:
    return replace(entry, personal=True, keeps=(*entry.keeps, *ALA_KEEPS))


def _with_structured(entry: Algorithm) -> Algorithm:
    return entry  # the same model goes up, but fewer of its numbers differ


def _with_loss(entry: Algorithm) -> Algorithm:
    return replace(entry, up_scalars=(*entry.up_scalars, LOSS_RMS))


# Of Karimireddy, He and Jaggi 2021, arXiv 2012.10333, section 4.
SENT_MOMENTUM = Record("sent-momentum", PARAMETERS, "m_k, running mean of the client's own updates")


def _with_momentum(entry: Algorithm) -> Algorithm:
    return replace(entry, keeps=(*entry.keeps, SENT_MOMENTUM))


def _with_attack(entry: Algorithm) -> Algorithm:
    attacked = {n: p for n, p in entry.phases.items() if p.work == "train" and not p.trusted}
    phases = {**entry.phases, **{n: _added(p, "attack") for n, p in attacked.items()}}
    return replace(entry, phases=phases)


def _with_canary(entry: Algorithm) -> Algorithm:
    phases = {n: _added(p, "canary") if p.work == "train" else p for n, p in entry.phases.items()}
    return replace(entry, phases=phases)


def coded_in(entry: Algorithm) -> tuple[Record, ...]:
    """Return the upward records whose parameters a codec may replace by a code."""
    return tuple(r for r in entry.up if r.layout in (SHARED, PARAMETERS) and not (r.exact or r.code))


@lru_cache(maxsize=64)
def residual_of(record: Record) -> Record:
    """Return what a client keeps of a record under a code with error feedback."""
    return Record(f"residual-{record.name}", PARAMETERS, "A_k, what its codes have left out so far")


# The mass of the last code: it returns to the residual if the server did not use the reply.
LAST_CODE = Record("last-code", FREE, "entries and values of the client's last code, and its round")


def _with_codec(entry: Algorithm) -> Algorithm:
    chosen = {r.name for r in coded_in(entry)}
    return replace(entry, up=tuple(replace(r, coded=r.name in chosen) for r in entry.up))


def _with_feedback(entry: Algorithm) -> Algorithm:
    coded = _with_codec(entry)
    residuals = tuple(residual_of(r) for r in coded.up if r.coded)
    return replace(coded, keeps=(*coded.keeps, *residuals, LAST_CODE))


def _with_grid(entry: Algorithm) -> Algorithm:
    """Clients send weighted updates as fixed-point integers."""
    phases = {n: _added(p, "grid") if p.work == "train" else p for n, p in entry.phases.items()}
    return replace(entry, up=tuple(replace(r, rounded=True) for r in entry.up), phases=phases)


# Of adaptive clipping, Andrew et al. 2021, arXiv 1905.03871: b_k - 1/2, b_k = 1 if |Delta_k| <= C, else 0.
UNCLIPPED = Record(
    "unclipped", ONE, "b_k - 1/2, whether the update's norm was within the bound C", "sum", clipped=True
)


def _with_dp(entry: Algorithm) -> Algorithm:
    """Let clients send integers of a bounded norm, and no number beside them; all of them count alike."""
    up = tuple(replace(r, clipped=True) for r in entry.up)
    phases = {n: _added(p, "dp") if p.work == "train" else p for n, p in entry.phases.items()}
    return replace(entry, up=up, up_scalars=(), phases=phases, weight="uniform")


def _with_adaptive_dp(entry: Algorithm) -> Algorithm:
    clipped = _with_dp(entry)
    return replace(clipped, up=(*clipped.up, UNCLIPPED))


DP_STEPS = Scalar(
    "dp-steps",
    "private steps of the client in the run so far",
    low=1,
    high=1e6,  # the server accounts for what a client says: a second and 0.1 GB at most
    whole=True,
    reduce="max",
)
DP_SAMPLING = Scalar(
    "dp-sampling",
    "q_k = B / n_k, probability of an example to join a step",
    low=1e-12,  # of 0 there is no epsilon
    high=1,
    reduce="max",
)


def _with_example_dp(entry: Algorithm) -> Algorithm:
    """Let clients train by DP-SGD and send what it has cost, and no number that their examples decide."""
    needed = tuple(s for s in entry.up_scalars if s.required)
    return replace(entry, up_scalars=(*needed, DP_STEPS, DP_SAMPLING), batched=False)


# In the order in which they are applied: what each adds to a contract (records, scalars, kept state).
STAGES: dict[str, Callable[[Algorithm], Algorithm]] = {
    "ala": _with_ala,
    "structured": _with_structured,
    "example-dp": _with_example_dp,
    "loss": _with_loss,
    "momentum": _with_momentum,
    "attack": _with_attack,
    "canary": _with_canary,
    "codec": _with_codec,
    "codec-with-feedback": _with_feedback,
    "grid": _with_grid,
    "dp": _with_dp,
    "adaptive-dp": _with_adaptive_dp,
}


def _added(entry: Algorithm, name: str) -> Algorithm:
    """Return a contract with a stage; one that has it already stays as it is."""
    if name in entry.stages:
        return entry
    named = {*entry.stages, name}
    return replace(STAGES[name](entry), stages=tuple(stage for stage in STAGES if stage in named))


def with_stages(entry: Algorithm, names: frozenset[str]) -> Algorithm:
    """Return a contract with the named stages, in the declared order."""
    for name in STAGES:
        if name in names:
            entry = _added(entry, name)
    return entry
