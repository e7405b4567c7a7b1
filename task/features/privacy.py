"""Differential privacy of clients: noise on exact sums.

Noise covers the records that a round sums. What else would leave a client, or would make one client's update
depend on who the others are, is refused.
"""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import PARAMETERS, SHARED
from task.config.knobs import Config
from task.features.feature import Feature, Tensors
from task.features.reasons import unaccounted, unsafe
from task.features.refusals import SOME, Choice, Setting, pairs, refused_by
from task.features.settings import (
    CODEC_UP,
    COLLUDING,
    DP_CENTRAL,
    ENOUGH,
    HELD_OUT,
    MEANS_FILLED,
    OWN_MU,
    PARTS,
    STANDARDISED,
    STRAGGLERS,
    STRUCTURED,
)
from task.privacy.accounting import delta_too_large
from task.privacy.bounded_integers import LEAST_NOISE

_UNPROTECTED = "losses and accuracies on clients' own data are not protected"
_INTEGERS = "updates are sent as the integers that noise is added to"
_MEANS = "means of the clients' columns are not protected"


def _stages(config: Config) -> tuple[str, ...]:
    if not config.dp.central:
        return ()
    canaries = ("canary",) if config.audit.canaries > 0 else ()
    return (*canaries, "adaptive-dp" if config.dp.adaptive else "dp")


def _why_not(entry: Algorithm) -> str:
    if why := unaccounted(entry):
        return why
    if not entry.up:
        return "its clients send nothing that noise could protect"
    contracts = [entry, *(p for p in entry.phases.values() if p.work == "train")]
    for r in (r for c in contracts for r in c.up):
        if r.reduce == "collect":
            return f"its rule needs each client's {r.name!r}, and noise protects sums only"
        if r.layout not in (SHARED, PARAMETERS):
            return f"its clients also send {r.name!r}, whose share of the noise is not defined"
        if r.code or r.per:
            return f"its clients send {r.name!r} in a form that clipping to a norm would distort"
        if r.base and r.base not in {d.name for d in entry.down if d.to == "all"}:
            return "the clients receive no common model from which to measure the change of their own"
    needed = [s.name for c in contracts for s in c.up_scalars if s.required]
    if needed:
        return f"its rule needs each client's {needed[0]!r}, and no bound makes that number safe"
    if any(s.name == "mean-examples" for s in entry.down_scalars):
        return "it weighs clients by the example counts that they registered, which are not protected"
    return ""


def too_little(config: Config) -> str:
    """Return why the noise is too little to protect anyone; "" = it is enough."""
    if config.dp.noise >= LEAST_NOISE:
        return ""
    least = f"expected 0 or at least {LEAST_NOISE:g}, below which it protects no one"
    return f'"dp.noise": {least}; got {config.dp.noise:g}'


def _refuses(config: Config, _: Algorithm) -> str:
    if why := too_little(config):
        return why
    clients = config.data.num_clients
    return delta_too_large(config.dp.delta, clients, f"the {clients} clients")


def _refuses_model(_: Config, tensors: Tensors) -> str:
    if not (others := tensors.untrained):
        return ""
    return (
        f'"dp.noise": the model shares {len(others)} tensors that are not trained, such as {others[0]!r}: '
        "averages over the clients' data, or constants, which clipped updates do not cover; expected a model "
        'without buffers, or algorithm = "fedbn", which keeps them at the client'
    )


FEATURE = Feature(
    "privacy",
    place=60,
    active=lambda config, _: config.dp.central,
    stages=_stages,
    choices=(Choice("dp.noise", (SOME,), lambda entry: unsafe(entry, _why_not(entry)), DP_CENTRAL),),
    pairs=(
        *refused_by(
            Setting("secagg-min-nodes", lambda c: c.dp.distributed),
            (COLLUDING, "the noise of at least one node must stay unknown"),
        ),
        *refused_by(
            replace(DP_CENTRAL, shown=False),
            (
                Setting("dp.noise-by", lambda c: c.dp.distributed and not c.server.secagg, '"server"'),
                "without secagg = true the server sees each client's update before other nodes add noise",
            ),
            (
                Setting("dp.clip-quantile", lambda c: c.dp.distributed and c.dp.clip_quantile > 0, "0"),
                'only the server can add the noise of its bits, which dp.noise-by = "nodes" excludes',
            ),
            (
                Setting("selection", lambda c: c.server.selection != "uniform", '"uniform"'),
                "each client joins a round by its own secret coin",
            ),
            (
                Setting("fraction-train", lambda c: c.server.fraction_train == 0, "above 0"),
                "it is the probability that a client joins a round",
            ),
            (Setting("fraction-evaluate", lambda c: c.server.fraction_evaluate > 0, "0"), _UNPROTECTED),
            (HELD_OUT, _UNPROTECTED),
            (
                Setting("min-replies", lambda c: c.server.min_replies > 1, "1"),
                "whether a round counts would say how many clients took part",
            ),
            (ENOUGH, "which clients a round leaves out would depend on the others"),
            (STRAGGLERS, "which clients are slow would depend on the others"),
            (
                Setting("max-update-norm", lambda c: c.server.max_update_norm > 0, "0"),
                '"dp.clip" bounds every update, and refuses none',
            ),
            (CODEC_UP, f"{_INTEGERS}, and a code's error is not clipped"),
            (STRUCTURED, _INTEGERS),
            (PARTS, "how many clients train a unit depends on who takes part"),
            (OWN_MU, "mu would follow the clients' losses, which are not protected"),
            (STANDARDISED, _MEANS),
            (MEANS_FILLED, _MEANS),
        ),
        *pairs(
            Setting("transcript", lambda c: c.server.transcript == "full", '"sums" or "none"'),
            (DP_CENTRAL, "uploads, and sums of masked uploads, have no noise"),
        ),
    ),
    refuses=_refuses,
    refuses_model=_refuses_model,
    stock_clients=(((DP_CENTRAL,), "cannot clip and add noise as the run requires"),),
    stock_loops=(((DP_CENTRAL,), 'only its own server and clients clip and add noise for "dp.noise"'),),
)
