"""What goes together, runs; what does not, is refused before round 1; and the docs say which is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task import trust
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.features import CHOICES
from task.features.refusals import OWN, Choice
from task.resolve.read import read_config
from task.resolve.validate import check_names
from tests.pages import composition
from tests.support.federation import play, write_owners
from tests.test_contract import config

ADAPTED = "tests.support.adapted:Adapted"
ROOT = Path(__file__).resolve().parents[1]
CELLS = [(name, choice) for name in ALGORITHMS for choice in CHOICES]
# `tests.classical` runs those that train no model.
ALLOWED = [(n, c) for n, c in CELLS if not (c.why_not(ALGORITHMS[n]) or ALGORITHMS[n].statistics)]

# Each reason, the choices that are refused for it, and an algorithm that is.
REASONS: dict[str, dict[str, str]] = {
    "the server finds new factors in each round, and what is kept in the coordinates of the old ones, as by "
    "its clients, means nothing then": {"lora.average = product": "scaffold"},
    "the server finds new factors in each round, and what is kept in the coordinates of the old ones, as the "
    "clients' own models, means nothing then": {"lora.average = product": "fine-tune"},
    "its server needs more than one mean of local models, and only that is taken of products": {
        "lora.average = product": "fedatt"
    },
    "its server does more than take the mean, in the coordinates of the round's old factors": {
        "lora.average = product": "fedavgm"
    },
    "adaptive local aggregation is tested only with ditto, fedala, fedavg, fedprox, fedrep": {
        "ala = true": "adaptive-tau"
    },
    "its clients are parties, which hold columns and parts of the model; this is not defined for them": {
        "ala = true": "splitnn",
        "optimizer = adam": "vertical-logistic",
        "clip-norm > 0": "splitnn",
        "sam.rho > 0": "vertical-logistic",
        "dropout-width < 1": "splitnn",
        "width.levels = 1,0.5": "vertical-logistic",
        "models.levels = logistic,mlp": "splitnn",
        "initial-model = FILE": "vertical-logistic",
        "lora.average = product": "splitnn",
        "fraction-heldout > 0": "splitnn",
        "cross-evaluation = true": "vertical-logistic",
        "attack.kind = sign-flip": "vertical-logistic",
        "attack.kind = label-flip": "splitnn",
        "attack.kind = little-is-enough": "vertical-logistic",
        "codec.up = fp16": "splitnn",
        "codec.up = top-k": "vertical-logistic",
        "codec.down = fp16": "splitnn",
        "structured.kind = low-rank": "vertical-logistic",
        "dp.noise > 0": "splitnn",
        "dp.unit = example": "vertical-logistic",
        "secagg-bits = 64": "splitnn",
        "secagg = true": "vertical-logistic",
        "he = true": "splitnn",
        "transcript = sums": "vertical-logistic",
        "selection = cycle": "splitnn",
        "selection = fedcs": "vertical-logistic",
        "selection = oort": "splitnn",
        "selection = power-of-choice": "vertical-logistic",
        "selection = proportional": "splitnn",
    },
    "its clients send exact sums over all their rows, and no model is trained": {
        "ala = true": "glm",
        "optimizer = adam": "least-squares",
        "clip-norm > 0": "glm",
        "sam.rho > 0": "least-squares",
        "dropout-width < 1": "glm",
        "width.levels = 1,0.5": "least-squares",
        "models.levels = logistic,mlp": "glm",
        "initial-model = FILE": "least-squares",
        "fraction-heldout > 0": "glm",
        "cross-evaluation = true": "least-squares",
        "attack.kind = sign-flip": "glm",
        "attack.kind = label-flip": "least-squares",
        "attack.kind = little-is-enough": "glm",
        "codec.up = fp16": "least-squares",
        "codec.up = top-k": "glm",
        "codec.down = fp16": "least-squares",
        "structured.kind = low-rank": "glm",
        "dp.noise > 0": "least-squares",
        "secagg-bits = 64": "least-squares",
        "he = true": "glm",
        "lora.average = product": "least-squares",
        "transcript = sums": "least-squares",
        "selection = cycle": "glm",
        "selection = fedcs": "least-squares",
        "selection = oort": "glm",
        "selection = power-of-choice": "least-squares",
        "selection = proportional": "glm",
    },
    "its clients send trees: there is no model whose changes could be coded, clipped or added up": {
        "ala = true": "xgb-bagging",
        "optimizer = adam": "xgb-cyclic",
        "clip-norm > 0": "xgb-bagging",
        "sam.rho > 0": "xgb-cyclic",
        "dropout-width < 1": "xgb-bagging",
        "width.levels = 1,0.5": "xgb-cyclic",
        "models.levels = logistic,mlp": "xgb-bagging",
        "initial-model = FILE": "xgb-cyclic",
        "fraction-heldout > 0": "xgb-bagging",
        "cross-evaluation = true": "xgb-cyclic",
        "attack.kind = sign-flip": "xgb-bagging",
        "attack.kind = label-flip": "xgb-cyclic",
        "attack.kind = little-is-enough": "xgb-bagging",
        "codec.up = fp16": "xgb-cyclic",
        "codec.up = top-k": "xgb-bagging",
        "codec.down = fp16": "xgb-cyclic",
        "structured.kind = low-rank": "xgb-bagging",
        "dp.noise > 0": "xgb-cyclic",
        "dp.unit = example": "xgb-bagging",
        "secagg-bits = 64": "xgb-cyclic",
        "secagg = true": "xgb-bagging",
        "he = true": "xgb-bagging",
        "lora.average = product": "xgb-cyclic",
        "transcript = sums": "xgb-cyclic",
        "selection = cycle": "xgb-bagging",
        "selection = fedcs": "xgb-cyclic",
        "selection = oort": "xgb-bagging",
        "selection = power-of-choice": "xgb-cyclic",
        "selection = proportional": "xgb-bagging",
    },
    "its bound on the worth of a step holds for gradient steps": {
        "optimizer = adam": "adaptive-tau",
        "clip-norm > 0": "adaptive-tau",
    },
    "its clients derive their mean gradient from the length of their steps": {
        "optimizer = adam": "feddc",
        "clip-norm > 0": "feddc",
    },
    "it divides an update by the weight that SGD gives to each of its steps": {"optimizer = adam": "fednova"},
    "its clients send one gradient and take no step": {
        "optimizer = adam": "fedsgd",
        "clip-norm > 0": "qfedsgd",
    },
    "its steps are variance-reduced gradients, and the rule sets their scale": {
        "optimizer = adam": "fsvrg",
        "clip-norm > 0": "fsvrg-sparse",
    },
    "1 / eta stands for the Lipschitz constant of a gradient step": {
        "optimizer = adam": "qfedavg",
        "clip-norm > 0": "qfedavg",
    },
    "its control variates correct steps that are linear in the gradient": {
        "optimizer = adam": "scaffold",
        "clip-norm > 0": "scaffold",
    },
    "its steps mix a gradient with the momentum of all clients": {"optimizer = adam": "fedcm"},
    "p_ii scales a client's steps, which other optimizers undo": {"optimizer = adam": "apple"},
    "its steps follow theta, which is found by gradient steps with their own rate": {
        "optimizer = adam": "pfedme"
    },
    "its clients do not step along the gradient of the loss on one batch, or this is untested": {
        "sam.rho > 0": "d-psgd"
    },
    "its clients keep arrays of the whole model from round to round": {
        "dropout-width < 1": "feddyn",
        "width.levels = 1,0.5": "moon",
    },
    "its rule needs more than the mean of local models, and only that is known per coordinate": {
        "dropout-width < 1": "fedasync",
        "width.levels = 1,0.5": "fedatt",
    },
    "its rule compares numbers of the clients' whole models": {
        "dropout-width < 1": "fedexp",
        "width.levels = 1,0.5": "fedexp",
    },
    "its clients have their own models, which stay whole": {
        "dropout-width < 1": "apfl",
        "width.levels = 1,0.5": "cfl",
    },
    "one client trains on all clients' data, so smaller models would save no bytes": {
        "dropout-width < 1": "centralised",
        "width.levels = 1,0.5": "centralised",
    },
    "its clients send models, or parts of one, that the server averages or compares": {
        "models.levels = logistic,mlp": "fedadagrad"
    },
    "its clients begin with the model drawn from the seed, which is never sent": {
        "initial-model = FILE": "ensemble"
    },
    "its clients mix the received model with the model drawn from the seed": {
        "initial-model = FILE": "fedala"
    },
    "it trains on all clients' data": {
        "fraction-heldout > 0": "centralised",
        "cross-evaluation = true": "centralised",
        "attack.kind = sign-flip": "centralised",
        "attack.kind = label-flip": "centralised",
        "dp.noise > 0": "centralised",
        "dp.unit = example": "centralised",
    },
    "the clients receive no common model from which to measure the change of their own": {
        "attack.kind = sign-flip": "fedbuff",
        "attack.kind = little-is-enough": "fedamp",
        "codec.up = fp16": "fedfomo",
        "codec.up = top-k": "ifca",
    },
    "its clients send nothing that they could falsify": {
        "attack.kind = sign-flip": "local-only",
        "attack.kind = little-is-enough": "local-only",
        "secagg-bits = 64": "local-only",
    },
    (
        "its clients train several times in a round, each edge separately, and an edge may have no "
        "benign clients to imitate"
    ): {"attack.kind = little-is-enough": "hierfavg"},
    "its clients train several times in a round, but codes and their residuals are per round": {
        "codec.up = fp16": "hierfavg",
        "codec.up = top-k": "hierfavg",
    },
    "its clients send nothing that a code could replace": {
        "codec.up = fp16": "signsgd",
        "codec.up = top-k": "fedmd",
    },
    "the rule compares the clients' models entry by entry, and most entries of a sparse code are not sent": {
        "codec.up = top-k": "feddf"
    },
    "the clients receive no common model that codes could update": {"codec.down = fp16": "fedacg"},
    "its clients do more than take steps from the received model; no restriction is defined for that": {
        "structured.kind = low-rank": "nbafl"
    },
    "its rule compares whole models, and a restriction leaves most of a model unchanged": {
        "structured.kind = low-rank": "bulyan"
    },
    "its rule needs each client's 'gradient', and noise protects sums only": {"dp.noise > 0": "adaptive-tau"},
    "its rule needs each client's 'arrays', and noise protects sums only": {"dp.noise > 0": "afl"},
    "it weighs clients by the example counts that they registered, which are not protected": {
        "dp.noise > 0": "feddc"
    },
    "its rule needs each client's 'square-norm', and no bound makes that number safe": {
        "dp.noise > 0": "fedexp"
    },
    "its clients send 'update' in a form that clipping to a norm would distort": {"dp.noise > 0": "fednova"},
    "its clients also send 'frequency', whose share of the noise is not defined": {
        "dp.noise > 0": "fsvrg-sparse"
    },
    "its clients train several times in a round, but a round is accounted for once": {
        "dp.noise > 0": "hierfavg",
        "dp.unit = example": "hierfavg",
    },
    "its noise follows from the run's seed and from a disproved sensitivity, so it is no protection": {
        "dp.noise > 0": "nbafl",
        "dp.unit = example": "nbafl",
        "secagg-bits = 64": "nbafl",
        "secagg = true": "nbafl",
        "he = true": "nbafl",
    },
    "its clients also send 'buffers', whose share of the noise is not defined": {"dp.noise > 0": "qfedavg"},
    "its rule needs each client's 'loss-before', and no bound makes that number safe": {
        "dp.noise > 0": "qfedsgd"
    },
    "its clients send 'sign' in a form that clipping to a norm would distort": {"dp.noise > 0": "signsgd"},
    "its rule needs each client's 'step-weight', and no bound makes that number safe": {
        "dp.noise > 0": "fedcm"
    },
    "its clients also send 'features', whose share of the noise is not defined": {"dp.noise > 0": "feddbe"},
    "its clients also send 'logits', whose share of the noise is not defined": {"dp.noise > 0": "fedmd"},
    "its clients also send 'prototypes', whose share of the noise is not defined": {
        "dp.noise > 0": "fedproto"
    },
    "its clients send nothing that noise could protect": {"dp.noise > 0": "local-only"},
    "its sums over rows have no bound on what a row adds, by which noise would be chosen": {
        "dp.unit = example": "glm"
    },
    "its clients use their examples for more than steps along the gradients of batches": {
        "dp.unit = example": "fedlc"
    },
    "before they train, its clients learn from their examples how to mix models": {
        "dp.unit = example": "fedala"
    },
    "batch normalisation lets each example change the gradients of the others": {
        "dp.unit = example": "fedbn"
    },
    "the rule needs each client's 'gradient', and the server learns sums only": {
        "secagg-bits = 64": "adaptive-tau",
        "secagg = true": "adaptive-tau",
    },
    "the rule needs each client's 'arrays', and the server learns sums only": {
        "secagg-bits = 64": "term",
        "secagg = true": "centered-clipping",
    },
    "its clients send 'update', and the bound on updates does not apply to its numbers": {
        "secagg-bits = 64": "fednova"
    },
    "its clients send 'frequency', and the bound on updates does not apply to its numbers": {
        "secagg-bits = 64": "fsvrg-sparse"
    },
    "the server would see the sums of single edges, which may have too few nodes": {
        "secagg-bits = 64": "hierfavg",
        "secagg = true": "hierfavg",
    },
    "the rule needs single clients' 'loss-before', and the server learns sums only": {
        "secagg-bits = 64": "qfedsgd",
        "secagg = true": "qfedavg",
    },
    "its clients send 'sign', and the bound on updates does not apply to its numbers": {
        "secagg-bits = 64": "signsgd"
    },
    "what answers for a client is more than one model": {"cross-evaluation = true": "knn-per"},
    "its clients add noise to what they send": {"cross-evaluation = true": "nbafl"},
    "its clients train from different versions of the model": {"cross-evaluation = true": "fedasync"},
    "its clients end a round without a model of their own": {"cross-evaluation = true": "fedsgd"},
    "it trains on all clients' data, so there is nothing to hide": {
        "secagg-bits = 64": "centralised",
        "secagg = true": "centralised",
        "he = true": "centralised",
    },
    "its clients send 'features', and the bound on updates does not apply to its numbers": {
        "secagg-bits = 64": "feddbe"
    },
    "its clients send 'logits', and the bound on updates does not apply to its numbers": {
        "secagg-bits = 64": "fedmd"
    },
    "its clients send 'prototypes', and the bound on updates does not apply to its numbers": {
        "secagg-bits = 64": "fedproto"
    },
    "its rule needs each client's 'gradient', and the server cannot decrypt it": {
        "he = true": "adaptive-tau"
    },
    "its rule needs each client's 'arrays', and the server cannot decrypt it": {"he = true": "dnc"},
    "its server computes with the mean, and ciphertexts can only be added": {"he = true": "fedadam"},
    "its clients receive or send other records than models, and the server computes with them": {
        "he = true": "mime"
    },
    "its clients send nothing that could be encrypted": {"he = true": "local-only"},
    "the rule needs each client's 'gradient', which only \"full\" publishes": {
        "transcript = sums": "adaptive-tau"
    },
    "the rule needs each client's 'arrays', which only \"full\" publishes": {"transcript = sums": "fltrust"},
    "the policy passes one model from client to client, and the rule needs several replies at once": {
        "selection = cycle": "geometric-median"
    },
    "a step takes the updates that arrive first, so a policy cannot choose its clients": {
        "selection = cycle": "fedasync",
        "selection = fedcs": "fedbuff",
        "selection = oort": "fedasync",
        "selection = power-of-choice": "fedbuff",
        "selection = proportional": "fedasync",
    },
    "its clients train several times in a round": {"selection = cycle": "hierfavg"},
    "the policy uses the loss of the received model, and no whole model is sent": {
        "selection = oort": "fedbabu",
        "selection = power-of-choice": "fedem",
    },
    "the policy draws by n_k, and the rule counts features with weights n_k": {
        "selection = power-of-choice": "fsvrg-sparse",
        "selection = proportional": "fsvrg-sparse",
    },
}


def label(choice: Choice) -> str:
    """Return what `REASONS` calls a choice: the first of its values."""
    return str(choice).partition(" | ")[0].replace('"', "")


BY_LABEL = {label(choice): choice for choice in CHOICES}
REFUSED = [(name, at, why) for why, choices in REASONS.items() for at, name in choices.items()]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


def keys_of(owners: Path, name: str, choice: Choice) -> dict[str, object]:
    value = choice.values[list(ALGORITHMS).index(name) % len(choice.values)]
    value = {OWN: "torch.optim:SGD", "> 0": 0.4, "< 1": 0.5}.get(str(value), value)
    extra: dict[str, object] = {choice.key: value}
    if choice.key == "attack.kind":
        extra |= {"attack.fraction": 0.4}
    if choice.key in ("dp.noise", "dp.unit"):
        # Clients' losses are not protected, and mu must not follow them.
        extra = {"dp.noise": 0.4, **extra, "dp.delta": 0.01, "fedprox.adaptive": False}
    if choice.key == "secagg-bits":
        extra |= {"secagg": True, "max-update-norm": 100.0}
    if choice.key in ("dropout-width", "width.levels"):
        extra |= {"model": "mlp"}  # which has units to leave out
    if choice.key == "lora.average":
        extra |= {"model": ADAPTED}
        trust.user_named([ADAPTED])
    given = config(owners, name, num_server_rounds=2, local_test_fraction=0.3) | extra
    if choice.key == "models.levels":  # in place of one model
        del given["model"]
        given |= {"models.features": 8}
    return given


def on_every_commit() -> list[Any]:
    """Return the allowed cells: one in nine runs on every commit, and one at least of a name or choice."""
    seen, cases = set[str](), []
    for name, choice in sorted(ALLOWED, key=lambda cell: turn(*cell) != 0):
        new = {name, str(choice)} - seen
        if turn(name, choice) == 0 or new:
            seen |= new
            cases.append(pytest.param(name, choice))
        else:
            cases.append(pytest.param(name, choice, marks=pytest.mark.full))
    return cases


def turn(name: str, choice: Choice) -> int:
    """Return a number below 9 that differs from choice to choice and from algorithm to algorithm."""
    return (list(ALGORITHMS).index(name) + CHOICES.index(choice)) % 9


@pytest.mark.parametrize(("name", "choice"), on_every_commit(), ids=str)
def test_what_goes_together_runs(name: str, choice: Choice, owners: Path) -> None:
    keys = keys_of(owners, name, choice)
    assert choice.chosen(read_config(keys))
    rows = play(keys, nodes=3 if choice.key.startswith("secagg") else 1).rows
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["quarantined"] for row in rows[1:]] == [[], []]
    assert rows[2]["answered"] > 0


@pytest.mark.parametrize(("name", "at", "why"), REFUSED, ids=str)
def test_what_does_not_is_refused_with_the_reason(name: str, at: str, why: str, owners: Path) -> None:
    choice = BY_LABEL[at]
    with pytest.raises(ConfigError) as refused:
        check_names(read_config(keys_of(owners, name, choice)))
    text = str(refused.value)
    assert f'"{choice.key}"' in text
    assert name in text
    assert why in text


def test_nothing_is_refused_for_another_reason() -> None:
    cells = {(label(choice), choice.why_not(ALGORITHMS[name])) for name, choice in CELLS}
    assert {(at, why) for at, why in cells if why} == {(at, why) for _, at, why in REFUSED}


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/reference/composition.md").read_text() == composition(), "run make docs"
