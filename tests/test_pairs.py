"""Two keys that do not go together are refused before round 1, with a reason (here written by hand)."""

from __future__ import annotations

import pytest

from strategies.membership.stock_clients import check_loop, why_stock_clients_cannot_join
from task.errors import ConfigError
from task.features import FEATURES
from task.resolve.read import read_config

Keys = dict[str, bool | int | float | str]

BASE: Keys = {
    "dataset": "digits",
    "model": "mlp",
    "num-clients": 10,
    "fraction-train": 1.0,
    "fraction-evaluate": 0.0,
    "local-test-fraction": 0.2,
}
TABLE: Keys = {"dataset": "breast-cancer", "model": "logistic"}
CENTRAL: Keys = {"dp.noise": 1.0, "dp.delta": 0.001}
# What a run sets so that it has the key at a value that something else does not stand.
SETS: dict[str, Keys] = {
    "ala": {"ala": True},
    "arrive.share": {"arrive.share": 0.3},
    "attack.kind": {"attack.kind": "little-is-enough", "attack.fraction": 0.4},
    "audit.canaries": {**CENTRAL, "audit.canaries": 1},
    "codec.down": {"codec.down": "fp16"},
    "codec.up": {"codec.up": "top-k"},
    "contribution.measure": {"contribution.measure": "leave-one-out"},
    "cross-evaluation": {"cross-evaluation": True},
    "dataset": {"dataset": "shakespeare", "model": "char-lstm"},
    "device": {"device": "cuda"},
    "devices.watts-compute": {"devices.watts-compute": 2.0},
    "dp.clip-quantile": {"dp.clip-quantile": 0.5, "dp.noise-by": "nodes", "secagg": True},
    "dp.colluding": {**CENTRAL, "dp.noise-by": "nodes", "secagg": True, "dp.colluding": 9},
    "dp.noise": CENTRAL,
    "dp.noise-by": {**CENTRAL, "dp.noise-by": "nodes"},
    "dp.unit": {**CENTRAL, "dp.unit": "example"},
    "dropout-width": {"dropout-width": 0.5},
    "width.scheme": {"width.levels": "1,0.5", "width.scheme": "rolling"},
    "drift.examples": {
        "drift.kind": "invert",
        "drift.round": 2,
        "drift.examples": "new",
        "stream.start": 0.5,
        "stream.per-round": 0.1,
    },
    "drift.kind": {"drift.kind": "invert"},
    "enough-replies": {"enough-replies": 1},
    "evaluate-every": {"evaluate-every": 0},
    "fedprox.adaptive": {"algorithm": "fedprox", "fedprox.adaptive": True},
    "fraction-evaluate": {"fraction-evaluate": 1.0},
    "fraction-train": {"fraction-train": 0.0},
    "gradient-dissimilarity": {"gradient-dissimilarity": True},
    "he": {"he": True},
    "fraction-heldout": {"fraction-heldout": 0.2},
    "initial-model": {"initial-model": "model.safetensors"},
    "groups": {"groups": "sex(f|m)"},
    "lora.average": {"lora.average": "product"},
    "max-update-norm": {"max-update-norm": 3.0},
    "min-replies": {"min-replies": 2},
    "missing": {**TABLE, "missing": "mean"},
    "models.levels": {"algorithm": "feddf", "models.levels": "logistic,mlp", "models.features": 8},
    "norms": {"norms": True},
    "num-server-rounds": {"num-server-rounds": 0, "initial-model": "m.pt", "fraction-evaluate": 1.0},
    "optimizer": {"optimizer": "adam"},
    "personal.epochs": {"algorithm": "ditto", "personal.epochs": 1},
    "plateau-rounds": {"plateau-rounds": 3},
    "portable": {"portable": True},
    "precision": {"precision": "bfloat16"},
    "sam.rho": {"sam.rho": 0.1},
    "scaffold.option": {"algorithm": "scaffold", "scaffold.option": "I"},
    "secagg": {"secagg": True},
    "secagg-bits": {"secagg": True, "secagg-bits": 32, "max-update-norm": 10.0},
    "selection": {"selection": "oort"},
    "standardise": {**TABLE, "standardise": True},
    "stragglers": {"stragglers": 0.3, "local-epochs": 2},
    "stream.own-data": {"stream.own-data": True, "dataset": "csv", "num-classes": 2, "num-clients": 0},
    "stream.start": {"stream.start": 0.5, "stream.per-round": 0.1},
    "stream.window": {"stream.window": 5},
    "structured.kind": {"structured.kind": "low-rank"},
    "target-accuracy": {"target-accuracy": 0.9},
    "threads": {"threads": 2},
    "transcript": {"transcript": "full"},
}
NARROW = ("width.levels", "dropout-width")
PARTS = ("models.levels", *NARROW)
SETS["width.levels"] = {"width.levels": "1,0.5"}

# By the key that the error names: the other key, and a phrase of the reason. `OTHER` has what the other key
# is set to where `SETS` says something else.
REFUSED: dict[str, dict[str, str]] = {
    "algorithm": {"num-server-rounds": "do not share one model"},
    "sam.rho": {"dp.unit": "the ascent takes a second one"},
    "threads": {"portable": "split alike on all machines"},
    "device": {"portable": "clients train on processors"},
    "personal.epochs": {"stragglers": "slow ones do fewer epochs"},
    "initial-model": {"ala": "the model drawn from the seed"},
    "ala": {"dp.unit": "learned from the examples without noise"},
    "scaffold.option": {"dp.unit": "a full gradient would go up"},
    "precision": {"dp.unit": "not computed in 16 bits"},
    "dataset": {"dp.unit": "what one example of a text is"},
    "optimizer": {"structured.kind": "along a restricted gradient"},
    "structured.kind": {"ala": "start from a mixture", "dp.noise": "the integers that noise is added to"},
    "codec.up": {
        "structured.kind": "already decides what is sent",
        "dp.noise": "a code's error is not clipped",
    },
    "stream.start": {
        "algorithm": "parties have the same rows",
        "algorithm: fedfomo": "it would have trained on some of them",
        "dp.unit": "its ledger has one sampling rate",
        "standardise": "even those that have not arrived",
        "missing": "even those that have not arrived",
        "audit.canaries": "canaries claim examples",
    },
    "stream.own-data": {
        "algorithm": "parties have the same rows",
        "algorithm: fedfomo": "it would have trained on some of them",
        "dp.unit": "its ledger has one sampling rate",
    },
    "arrive.share": {"algorithm": "parties have the same rows", "audit.canaries": "canaries claim examples"},
    "drift.kind": {"algorithm": "parties have the same rows"},
    "drift.examples": {"public.data": "public examples are taken from it"},
    "dp.colluding": {"secagg-min-nodes": "the noise of at least one node must stay unknown"},
    "dp.noise-by": {"dp.noise": "before other nodes add noise"},
    "dp.clip-quantile": {"dp.noise": "only the server can add the noise of its bits"},
    "devices.watts-compute": {"dp.noise": "tells who took part"},
    "selection": {"dp.noise": "its own secret coin", "dp.unit": "losses over the examples"},
    "fraction-train": {"dp.noise": "the probability that a client joins"},
    "fraction-evaluate": {"dp.noise": "losses and accuracies on clients' own data"},
    "fraction-heldout": {
        "dp.noise": "losses and accuracies on clients' own data",
        "dp.unit": "adapt to their examples without noise",
    },
    "min-replies": {"dp.noise": "how many clients took part"},
    "enough-replies": {"dp.noise": "which clients a round leaves out"},
    "stragglers": {"dp.noise": "which clients are slow"},
    "max-update-norm": {"dp.noise": "bounds every update"},
    "fedprox.adaptive": {
        "dp.noise": "mu would follow the clients' losses",
        "dp.unit": "mu would follow losses",
    },
    "standardise": {"dp.noise": "means of the clients' columns", "dp.unit": "means of columns"},
    "missing": {"dp.noise": "means of the clients' columns", "dp.unit": "means of columns"},
    "contribution.measure": {
        "secagg": "the server learns sums only",
        "he": "cannot decrypt",
        "dp.noise": "values of single clients",
        **dict.fromkeys(PARTS, "parts of the model"),
        "transcript": "data that a transcript does not hold",
        "evaluate-every": "when the server evaluates",
        "codec.up": "untested",
        "structured.kind": "untested",
        "selection: cycle": "replaces the previous one's",
    },
    "groups": {
        "algorithm": "none of its clients has all that the model reads",
        "algorithm: least-squares": "no model is trained",
        "dp.noise": "not protected by noise",
        "dp.unit": "not protected by noise",
        "he": "untested",
        "transcript": "data that a transcript does not hold",
    },
    "gradient-dissimilarity": {
        "secagg": "the server learns sums only",
        "he": "cannot decrypt",
        "dp.noise": "values of single clients",
        **dict.fromkeys(PARTS, "parts of the model"),
        "transcript": "data that a transcript does not hold",
        "evaluate-every": "when the server evaluates",
        "dp.unit": "full gradients",
        "algorithm: fedbuff": "never all have the same model",
    },
    "lora.average": {
        **dict.fromkeys(("secagg", "he", "dp.noise"), "two sums is not the sum of products"),
        "transcript": "from which products do not follow",
        "codec.up": "as the residuals of codes",
        "codec.down": "copies of the model",
        "structured.kind": "changes of the received factors",
        "ala": "weights of its layers",
        "selection: cycle": "replaces the previous one's",
        "contribution.measure": "means of factors",
        "dropout-width": "a client trains drawn ones",
        "width.scheme": "a client trains others",
    },
    "he": {
        "secagg": "masks cost less",
        "dp.noise": "has only ciphertexts",
        "dp.unit": "untested",
        "codec.up": "every number in full",
        "codec.down": "no model to encode",
        "structured.kind": "every number in full",
        **dict.fromkeys(NARROW, "cannot cut parts out of a ciphertext"),
        "standardise": "go up in clear",
        "missing": "go up in clear",
    },
    "secagg": {
        "selection": "single clients' losses",
        "selection: cycle": "each client's model on its way",
        "codec.up": "every number in full",
        "structured.kind": "every number in full",
        **dict.fromkeys(NARROW, "which part it trained"),
        "fraction-heldout": "measured one by one",
        "dp.unit": "which masks would hide",
        "enough-replies": "once all nodes have answered",
    },
    "secagg-bits": {"max-update-norm": "could wrap"},
    "cross-evaluation": {
        **dict.fromkeys(("secagg", "he", "dp.noise", "dp.unit"), "own model would leave it"),
        **dict.fromkeys(PARTS, "parts of the model"),
        "fraction-heldout": "no models of their own",
        "transcript": "ends with the last round",
        **dict.fromkeys(("codec.down", "structured.kind"), "untested"),
    },
    "transcript": {
        "dp.noise": "have no noise",
        "algorithm": "each party's part",
        "algorithm: fedbuff": "which client began when",
        "algorithm: feddf": "public examples",
        "he": "are ciphertexts",
        "secagg-bits": "a coarser grid",
        "dp.noise-by": "that nodes noise",
    },
}
REFUSED["stream.window"] = REFUSED["stream.start"]
for part in PARTS:
    REFUSED[part] = {
        "selection": "no whole model is sent",
        "codec.down": "no whole model is sent",
        "transcript": "sums of whole models",
        "attack.kind": "models that have different ones",
        "dp.unit": "untested with parts",
    }
for part in NARROW:
    REFUSED[part] |= {
        "ala": "arrays of the whole model",
        "codec.up": "the residuals of their codes",
        "structured.kind": "applies to the whole model",
        "dp.noise": "how many clients train a unit",
    }
REFUSED["models.levels"] |= {
    "codec.up: int8": "the combination is untested",
    "fraction-heldout": "no kind of model of its own",
}
for key in (
    "arrive.share", "attack.kind", "audit.canaries", "codec.down", "codec.up", "contribution.measure",
    "cross-evaluation", "dp.noise", "dp.unit", "drift.kind", "enough-replies", "gradient-dissimilarity", "he",
    "fraction-heldout",
    "max-update-norm", "norms", "plateau-rounds", "selection", "stragglers", "structured.kind",
    "target-accuracy", "transcript", *PARTS,
):  # fmt: skip
    REFUSED[key] = {**REFUSED.get(key, {}), "num-server-rounds": "nothing is trained"}
# None of our algorithms that take kinds of models goes with one of these; a rule of a user's own may.
UNREACHED = {
    *(("models.levels", other) for other in ("ala", "codec.up", "structured.kind", "dp.noise")),
    *((key, "models.levels") for key in ("he", "secagg")),
}
OTHER: dict[tuple[str, str], Keys] = {
    ("algorithm", "num-server-rounds"): {**SETS["num-server-rounds"], "algorithm": "d-psgd"},
    ("drift.examples", "public.data"): {"algorithm": "fedmd", "models.levels": ""},
    ("dp.colluding", "secagg-min-nodes"): {},
    ("secagg-bits", "max-update-norm"): {"max-update-norm": 0.0},
    ("transcript", "dp.noise-by"): {**SETS["dp.noise-by"], "secagg": True, "transcript": "sums"},
}
ROWS = [(key, other, why) for key, others in REFUSED.items() for other, why in others.items()]


def keys_of(key: str, other: str) -> Keys:
    name, _, value = other.partition(": ")
    algorithm: Keys = {"algorithm": value or "vertical-logistic"} if name == "algorithm" else {}
    if (key, other) in OTHER:
        second = OTHER[key, other]
    else:
        second = algorithm or ({name: value} if value else SETS[name])
    keys = {**BASE, "algorithm": "fedavg", **SETS.get(key, {}), **second}
    return {k: v for k, v in keys.items() if k != "model" or "models.levels" not in keys}


@pytest.mark.parametrize(("key", "other", "why"), ROWS, ids=str)
def test_two_keys_that_exclude_each_other_are_refused_with_the_reason(key: str, other: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config(keys_of(key, other))
    text = str(refused.value)
    assert text.startswith(f'run-config key "{key}": ')
    assert other.partition(":")[0] in text
    assert why in text


# What a feature refuses by other means than a second key's value.
ALONE: list[tuple[str, Keys, str]] = [
    ("attack.kind", {**SETS["dataset"], "attack.kind": "backdoor", "attack.fraction": 0.4}, "puts a patch"),
    ("groups", {"groups": "sex(f|m)", "task": "regression"}, "one class an example"),
    ("contribution.measure", {**SETS["contribution.measure"], "algorithm": "fedper"}, "one global model"),
    ("contribution.measure", {**SETS["contribution.measure"], "algorithm": "fedsgd"}, "one global model"),
    ("dp.delta", {**CENTRAL, "dp.delta": 0.1}, "less than one over the 10 clients"),
    ("dp.noise", {"dp.noise": 1e-4}, "below which it protects no one"),
    ("dp.noise", {**SETS["dp.unit"], "dp.noise": 1e-4}, "below which it protects no one"),
    ("drift.examples", {**SETS["drift.examples"], "stream.start": 1.0, "stream.per-round": 0.0}, "a stream"),
    ("gradient-dissimilarity", {"gradient-dissimilarity": True, "algorithm": "fedper"}, "one global model"),
    ("gradient-dissimilarity", {"gradient-dissimilarity": True, "algorithm": "splitnn"}, "one global model"),
    ("fraction-heldout", {"fraction-heldout": 0.2, "local-test-fraction": 0.0}, "set that above 0"),
    ("num-server-rounds", {"num-server-rounds": 0}, "or at least 1 round; got neither"),
    ("fraction-evaluate", {"num-server-rounds": 0, "initial-model": "m.pt"}, "clients only evaluate"),
    ("cross-evaluation", {"cross-evaluation": True, "num-clients": 33}, "at most 32 clients; got 33"),
    ("lora.rank", {"lora.rank": 4}, "expected a model of your own"),
    ("norms", {"norms": True, "secagg": True}, "the server learns no client's own numbers"),
    ("norms", {"norms": True, "algorithm": "fedmd"}, "send no model"),
]


@pytest.mark.parametrize(("key", "keys", "why"), ALONE, ids=str)
def test_what_a_feature_refuses_by_itself_is_said(key: str, keys: Keys, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_config({**BASE, "algorithm": "fedavg", **keys})
    text = str(refused.value)
    assert text.startswith(f'run-config key "{key}": ')
    assert why in text


def test_each_pair_that_a_feature_declares_has_a_row() -> None:
    pairs = {(pair.refused.key, pair.other.key, pair.why) for f in FEATURES for pair in f.pairs}
    for key, other, why in pairs:
        if (key, other) in UNREACHED:
            continue
        rows = [row for row in ROWS if row[:1] == (key,) and row[1].partition(":")[0] == other]
        assert any(phrase in why for _, _, phrase in rows), (key, other, why)


# By the key: why a ClientApp that is not Bouquet's cannot join, and why a loop that is not ours cannot drive
# the rounds; "" = it can.
STOCK: dict[str, tuple[str, str]] = {
    "standardise": ("standardise columns", ""),
    "missing": ("standardise columns", ""),
    "stream.start": ("no changing data", "its own examples and rounds"),
    "stream.window": ("no changing data", "its own examples and rounds"),
    "arrive.share": ("no changing data", "its own examples and rounds"),
    "drift.kind": ("no changing data", ""),
    "codec.up": ('the codes of "codec.up"', 'codes, by "codec.up"'),
    "structured.kind": ('the codes of "structured.kind"', 'codes, by "structured.kind"'),
    "dp.noise": ("cannot clip and add noise", "only its own server and clients"),
    "dp.unit": ("cannot clip and add noise", "only its own server and clients"),
    "groups": ("cannot count by groups of people", "made into rates"),
    "lora.average": ("", "averages products of factors"),
    "secagg": ("cannot mask its numbers", "no node sends its own model"),
    "he": ("cannot encrypt its model", "its nodes send ciphertexts"),
    "transcript": ("cannot sign what it sends", "writes no transcript"),
}


@pytest.mark.parametrize("key", STOCK)
def test_what_stock_clients_and_loops_cannot_do_is_said(key: str) -> None:
    config = read_config({**BASE, "algorithm": "fedavg", **SETS[key]})
    client, loop = STOCK[key]
    if client:
        assert client in why_stock_clients_cannot_join(config.entry, config)
    if loop:
        with pytest.raises(ConfigError) as refused:
            check_loop(config.entry, config)
        assert loop in str(refused.value)
    else:
        check_loop(config.entry, config)


def test_each_limit_of_stock_clients_and_loops_has_a_row() -> None:
    limits = [
        (i, s, why)
        for f in FEATURES
        for i, rows in enumerate((f.stock_clients, f.stock_loops))
        for s, why in rows
    ]
    for side, settings, why in limits:
        assert all(STOCK[s.key][side] in why and STOCK[s.key][side] for s in settings), why
