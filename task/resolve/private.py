"""What goes together with differential privacy: what could not be promised is refused before round 1.

At the level of clients (``dp.unit = "client"``) noise covers the records that a round sums. Whatever else
would leave a client, or make one client's update depend on who the others are, is refused.
"""

from collections.abc import Sequence
from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import PARAMETERS, SHARED
from task.config.knobs import Config
from task.datasets import spec_of
from task.errors import ConfigError
from task.privacy.bounded_integers import LEAST_NOISE
from task.resolve.refusals import (
    ALA,
    CODEC_UP,
    DP_CENTRAL,
    DP_LOCAL,
    ENOUGH,
    HELD_OUT,
    MEANS_FILLED,
    PARTS,
    QUOTED,
    STANDARDISED,
    STRAGGLERS,
    STRUCTURED,
    Setting,
    policy_is,
    refuse,
    refused_by,
)


def why_not_central(entry: Algorithm) -> str:
    """Return why noise on sums cannot protect the clients of an algorithm; "" = it can."""
    if entry.pooled:
        return "it trains on all clients' data"
    if entry.repeats:
        return "its clients train several times in a round, but a round is accounted for once"
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


def why_not_local(entry: Algorithm) -> str:
    """Return why DP-SGD cannot protect the examples of an algorithm's clients; "" = it can."""
    if entry.pooled:
        return "it trains on all clients' data"
    if entry.repeats:
        return "its clients train several times in a round, but a round is accounted for once"
    if entry.phases or not entry.traits.steps_alone:
        return "its clients use their examples for more than steps along the gradients of batches"
    if entry.private == "norm":
        return "batch normalisation lets each example change the gradients of the others"
    if any(r.of != "steps" for r in entry.up):
        return "its clients send numbers computed from their examples without noise"
    if "ala" in entry.stages:
        return "before they train, its clients learn from their examples how to mix models"
    needed = [s.name for s in entry.up_scalars if s.required]
    if needed:
        return f"its rule needs each client's {needed[0]!r}, which follows from its examples"
    return ""


def check_covered(config: Config, others: Sequence[str], buffers: Sequence[str]) -> None:
    """Refuse a model with tensors that noise does not cover, given by name.

    `others` are shared tensors that are no trained parameters; `buffers` are those of the whole model.

    Raises:
        ConfigError: There are some.
    """
    if config.dp.local and buffers:
        raise ConfigError(
            f'run-config key "dp.unit": the model has {len(buffers)} buffers, such as {buffers[0]!r}: '
            "averages over examples, or constants, which no noise covers; expected a model without, such as "
            f"one with group normalisation; got {config.model!r}"
        )
    if config.dp.central and others:
        raise ConfigError(
            f'run-config key "dp.noise": the model shares {len(others)} tensors that are not trained, such '
            f"as {others[0]!r}: averages over the clients' data, or constants, which clipped updates do not "
            f'cover; expected a model without buffers, or algorithm = "fedbn", which keeps them at the '
            f"client; got {config.model!r}"
        )


_UNPROTECTED = "losses and accuracies on clients' own data are not protected"
_INTEGERS = "updates are sent as the integers that noise is added to"
_MEANS, _CLIENT_MEANS = (
    "means of columns are not protected",
    "means of the clients' columns are not protected",
)
_OWN_MU = Setting(
    "fedprox.adaptive", lambda c: c.entry.owns("fedprox.adaptive") and c.fedprox.adaptive, "false"
)

PRIVATE = (
    *refused_by(
        replace(DP_LOCAL, got=QUOTED),
        (ALA, "its weights are learned from the examples without noise"),
        (
            Setting(
                "scaffold.option",
                lambda c: c.entry.owns("scaffold.option") and c.scaffold.option == "I",
                '"II"',
            ),
            "a full gradient would go up without noise",
        ),
        (policy_is(lambda policy: policy.needs_losses), "losses over the examples are not protected"),
        (HELD_OUT, "held-out clients adapt to their examples without noise before they are measured"),
        (
            Setting("precision", lambda c: c.train.precision != "float32", '"float32"'),
            "gradients of single examples are not computed in 16 bits",
        ),
        (PARTS, "it is untested with parts of a model"),
        (_OWN_MU, "mu would follow losses over the examples, which are not protected"),
        (STANDARDISED, _MEANS),
        (MEANS_FILLED, _MEANS),
        (
            Setting(
                "dataset",
                lambda c: spec_of(c.data.dataset).targets > 1,
                "one whose examples have one target",
            ),
            "it is not defined what one example of a text is",
        ),
    ),
    *refused_by(
        Setting("secagg-min-nodes", lambda c: c.dp.distributed),
        (
            Setting("dp.colluding", lambda c: c.dp.colluding >= c.server.secagg_min_nodes, "less"),
            "the noise of at least one node must stay unknown",
        ),
    ),
    *refused_by(
        replace(DP_CENTRAL, got=""),
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
        (_OWN_MU, "mu would follow the clients' losses, which are not protected"),
        (STANDARDISED, _CLIENT_MEANS),
        (MEANS_FILLED, _CLIENT_MEANS),
    ),
)


def check_private(config: Config) -> None:
    """Refuse keys that differential privacy could not keep its promise with.

    Raises:
        ConfigError: Naming the key, what was expected and why.
    """
    dp = config.dp
    if not dp.noise:
        return
    if dp.noise < LEAST_NOISE:
        raise ConfigError(
            f'run-config key "dp.noise": expected 0 or at least {LEAST_NOISE:g}, below which it protects '
            f"no one; got {dp.noise:g}"
        )
    if dp.delta * config.data.num_clients >= 1 and dp.central:
        raise ConfigError(
            f'run-config key "dp.delta": expected less than one over the {config.data.num_clients} clients; '
            f"got {dp.delta:g}"
        )
    refuse(config, PRIVATE)
