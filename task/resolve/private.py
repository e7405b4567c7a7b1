"""What goes together with differential privacy: what could not be promised is refused before round 1.

At the level of clients (``dp.unit = "client"``) noise covers the records that a round sums. Whatever else
would leave a client, or make one client's update depend on who the others are, is refused.
"""

from collections.abc import Sequence

from task.catalogue.entry import Algorithm
from task.catalogue.record import PARAMETERS, SHARED
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.datasets import spec_of
from task.errors import ConfigError
from task.privacy.bounded_integers import LEAST_NOISE


def why_not_central(entry: Algorithm) -> str:
    """Return why noise on sums cannot protect the clients of an algorithm; "" = it can."""
    if entry.pooled:
        return "its clients train on everybody's data"
    if entry.repeats:
        return "its clients train several times in a round, and a round is accounted for once"
    if not entry.up:
        return "nothing goes up that noise could protect"
    contracts = [entry, *(p for p in entry.phases.values() if p.work == "train")]
    for r in (r for c in contracts for r in c.up):
        if r.reduce == "collect":
            return f"its rule needs each client's {r.name!r}, and noise protects sums only"
        if r.layout not in (SHARED, PARAMETERS):
            return f"its clients send {r.name!r} as well, whose share in the noise is not defined"
        if r.code or r.per:
            return f"its clients send {r.name!r} in a form that clipping to a norm would spoil"
        if r.base and r.base not in {d.name for d in entry.down if d.to == "all"}:
            return "the clients receive no common model that the change of their own could be measured from"
    needed = [s.name for c in contracts for s in c.up_scalars if s.required]
    if needed:
        return f"its rule needs the number {needed[0]!r} of each client, which no bound makes safe"
    if any(s.name == "mean-examples" for s in entry.down_scalars):
        return "it weighs clients by the example counts that they registered, which are not protected"
    return ""


def why_not_local(entry: Algorithm) -> str:
    """Return why DP-SGD cannot protect the examples of an algorithm's clients; "" = it can."""
    if entry.pooled:
        return "its clients train on everybody's data"
    if entry.repeats:
        return "its clients train several times in a round, and a round is accounted for once"
    if entry.phases or not entry.traits.steps_alone:
        return "its clients use their examples in other ways than in steps along the gradients of batches"
    if entry.private == "norm":
        return "batch normalisation lets each example change the gradients of the others"
    if any(r.of != "steps" for r in entry.up):
        return "its clients send what is computed from their examples without noise"
    if "ala" in entry.stages:
        return "its clients learn from their examples, before they train, how to mix models"
    needed = [s.name for s in entry.up_scalars if s.required]
    if needed:
        return f"its rule needs the number {needed[0]!r} of each client, which follows from its examples"
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
            f"nobody; got {dp.noise:g}"
        )
    if dp.delta * config.data.num_clients >= 1 and dp.central:
        raise ConfigError(
            f'run-config key "dp.delta": expected less than one over the {config.data.num_clients} clients; '
            f"got {dp.delta:g}"
        )
    if dp.central:
        _check_central(config)
    else:
        _check_local(config)


def _check_local(config: Config) -> None:
    train, server, data = config.train, config.server, config.data
    owns = algorithm_of(config.algorithm).owns
    for key, expected, got, on, why in (
        ("ala", "false", "true", train.ala, "its weights are learnt from the examples without noise"),
        ("scaffold.option", '"II"', "I", owns("scaffold.option") and config.scaffold.option == "I",
         "a full gradient would go up without noise"),
        ("selection", '"uniform"', server.selection, server.selection in ("oort", "power-of-choice"),
         "losses over the examples are not protected"),
        ("heldout-clients", "0", server.heldout_clients, server.heldout_clients > 0,
         "clients held out adapt to their examples without noise before they are measured"),
        ("precision", '"float32"', train.precision, train.precision != "float32",
         "gradients of single examples are not computed in 16 bits"),
        (config.part_key, config.part_whole, config.part_levels, config.parted,
         "it was not verified with parts of a model"),
        ("fedprox.adaptive", "false", "true", owns("fedprox.adaptive") and config.fedprox.adaptive,
         "mu would follow losses over the examples, which are not protected"),
        ("standardise", "false", "true", data.standardise, "means of columns are not protected"),
        ("missing", '"zero"', data.missing, data.missing == "mean", "means of columns are not protected"),
        ("dataset", "one whose examples have one target", data.dataset, spec_of(data.dataset).targets > 1,
         "what an example is in a text is not defined"),
    ):  # fmt: skip
        _refuse(on, key, expected, 'dp.unit = "example"', why, got)


def _check_central(config: Config) -> None:
    server, data = config.server, config.data
    owns = algorithm_of(config.algorithm).owns
    nodes, dp = config.dp.distributed, config.dp
    for key, expected, got, on, why in (
        ("dp.noise-by", '"server"', "nodes", nodes and not server.secagg,
         "without secagg = true the server sees each client's update before other nodes add noise"),
        ("dp.clip-quantile", "0", dp.clip_quantile, nodes and dp.clip_quantile > 0,
         'the server alone knows what noise its bits need, and dp.noise-by = "nodes" has none of it'),
        ("dp.colluding", f"less than secagg-min-nodes = {server.secagg_min_nodes}", dp.colluding,
         nodes and dp.colluding >= server.secagg_min_nodes,
         "the noise of one node at least must stay unknown"),
        ("selection", '"uniform"', server.selection, server.selection != "uniform",
         "each client joins a round by a secret coin of its own"),
        ("fraction-train", "above 0", server.fraction_train, server.fraction_train == 0,
         "it is the probability with which a client joins a round"),
        ("fraction-evaluate", "0", server.fraction_evaluate, server.fraction_evaluate > 0,
         "losses and accuracies on clients' own data are not protected"),
        ("heldout-clients", "0", server.heldout_clients, server.heldout_clients > 0,
         "losses and accuracies on clients' own data are not protected"),
        ("min-replies", "1", server.min_replies, server.min_replies > 1,
         "whether a round counts would say how many clients took part"),
        ("enough-replies", "0", server.enough_replies, server.enough_replies > 0,
         "whom a round leaves out would depend on the other clients"),
        ("stragglers", "0", server.stragglers, server.stragglers > 0,
         "who is slow would depend on who else takes part"),
        ("max-update-norm", "0", server.max_update_norm, server.max_update_norm > 0,
         '"dp.clip" bounds every update, and refuses none'),
        ("codec.up", '"none"', config.codec.up, config.codec.up != "none",
         "updates go up as the integers that noise is added to, and what a code leaves out, or adds, is not "
         "clipped"),
        ("structured.kind", '"none"', config.structured.kind, config.structured.kind != "none",
         "updates go up as the integers that noise is added to"),
        (config.part_key, config.part_whole, config.part_levels, config.parted,
         "how many clients train a unit depends on who takes part"),
        ("fedprox.adaptive", "false", "true", owns("fedprox.adaptive") and config.fedprox.adaptive,
         "mu would follow the clients' losses, which are not protected"),
        ("standardise", "false", "true", data.standardise, "means of the clients' columns are not protected"),
        ("missing", '"zero"', data.missing, data.missing == "mean",
         "means of the clients' columns are not protected"),
    ):  # fmt: skip
        _refuse(on, key, expected, "dp.noise", why, got)


def _refuse(on: bool, key: str, expected: str, given: str, why: str, got: object) -> None:
    if on:
        raise ConfigError(f'run-config key "{key}": expected {expected} with {given}, as {why}; got {got}')
