"""Secure aggregation: the server sees sums over nodes alone."""

from task.catalogue.entry import Algorithm
from task.catalogue.record import PARAMETERS, SHARED
from task.config.knobs import Config
from task.features.feature import Feature, Tensors
from task.features.reasons import no_base, pooled, unsafe
from task.features.refusals import Choice, Setting, pairs
from task.features.settings import (
    BY_LOSS,
    COARSE,
    CODEC_UP,
    DP_STEPS,
    ENOUGH,
    HELD_OUT,
    PARTS,
    RING,
    SECURE,
    STRUCTURED,
)
from task.secagg.fixed_point import EXACT

_WHOLE = "a masked sum has every number in full, so a code saves nothing"
_UNBOUNDED = Setting("max-update-norm", lambda c: not (c.server.max_update_norm or c.dp.central))


def _stages(config: Config) -> tuple[str, ...]:
    # Under noise updates are integers of a grid already.
    return ("grid",) if COARSE.on(config) and not config.dp.central else ()


def _secure(entry: Algorithm) -> str:
    if why := pooled(entry):
        return f"{why}, so there is nothing to hide"
    if entry.repeats:
        return "the server would see the sums of single edges, which may have too few nodes"
    for contract in (entry, *entry.phases.values()):
        if single := [r.name for r in contract.up if r.reduce == "collect"]:
            return f"the rule needs each client's {single[0]!r}, and the server learns sums only"
        if single := [s.name for s in contract.up_scalars if s.reduce in ("collect", "max")]:
            return f"the rule needs single clients' {single[0]!r}, and the server learns sums only"
    return ""


def _rounded(entry: Algorithm) -> str:
    if why := _secure(entry) or no_base(entry):
        return why
    for r in (r for c in (entry, *entry.phases.values()) if c.work == "train" for r in c.up):
        if r.reduce != "mean" or r.code or r.per or r.layout not in (SHARED, PARAMETERS):
            return f"its clients send {r.name!r}, and the bound on updates does not apply to its numbers"
    return ""


def _refuses_model(config: Config, tensors: Tensors) -> str:
    if not (_stages(config) and tensors.integers):
        return ""
    return (
        f'"secagg-bits": the model shares {len(tensors.integers)} tensors of integers, such as '
        f"{tensors.integers[0]!r}, which max-update-norm does not bound; expected a model without, "
        f'algorithm = "fedbn", which keeps them at the client, or secagg-bits = {EXACT}'
    )


FEATURE = Feature(
    "secure_aggregation",
    place=110,
    active=lambda config, _: config.server.secagg,
    stages=_stages,
    nodes=lambda config: (
        max(config.server.secagg_min_nodes, config.server.secagg_threshold),
        "secagg = true",
    ),
    choices=(
        Choice("secagg-bits", (64, 32), lambda entry: unsafe(entry, _rounded(entry)), COARSE),
        Choice("secagg", (True,), lambda entry: unsafe(entry, _secure(entry)), of_sums=True),
    ),
    pairs=(
        *pairs(
            SECURE,
            (BY_LOSS, "the policy uses single clients' losses"),
            (RING, "the server sees each client's model on its way"),
            (CODEC_UP, _WHOLE),
            (STRUCTURED, _WHOLE),
            (PARTS, "which numbers a client sends would show which part it trained"),
            (HELD_OUT, "they are measured one by one"),
            (DP_STEPS, "the server adds up the private steps of each client, which masks would hide"),
            (ENOUGH, "a sum is opened once all nodes have answered or the time is up"),
        ),
        *pairs(
            COARSE,
            (_UNBOUNDED, "without a bound on updates a sum of so few bits could wrap"),
        ),
    ),
    refuses_model=_refuses_model,
    stock_clients=(((SECURE,), "cannot mask its numbers, which secagg = true needs"),),
    stock_loops=(((SECURE,), "with secagg = true no node sends its own model"),),
)
