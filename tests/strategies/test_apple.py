"""APPLE: what each client receives, its steps by hand, and the pipeline against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.solvers.apple import coefficient
from task.config.knobs import Config
from task.config.personal_sections import AppleConfig
from task.models import MODELS, ModelSpec
from task.numerics.arrays import Arrays, sha256
from task.wire import messages as wire
from tests.reference import apple, mlp
from tests.reference.apple import Apple
from tests.strategies.test_models import held
from tests.support.federation import SIZES, write_owners
from tests.support.kept import losing
from tests.support.models import OneNumber, sigmoid, task_on
from tests.support.personal import (
    case_of,
    close,
    reference_of,
    small_bn,
)
from tests.support.rules import w

# --------------------------------------------------------------------------------------- the client


def solve(
    models: dict[str, Arrays], ratios: dict[str, float], *, rounds: int = 1, train: Any = None, **knobs: Any
) -> tuple[float, dict[str, float], float]:
    """Return core model, p and own model of client b among a, b and c, with x = 2 of class 1, w^0 = 0.5."""
    task = task_on(OneNumber(0.5), torch.tensor([2.0]), torch.tensor([1]), lr=0.5, epochs=2, **train or {})
    order = wire.TrainOrder(rounds, {}, {}, ("b",), (2,), population=("a", "b", "c"))
    p0 = {"start-ratios": {"clients": np.array([0.25, 0.5, 0.25], np.float32)}}
    kept = {"ratios": {c: np.array(p) for c, p in ratios.items()}} if ratios else {}
    solver = SOLVERS["apple"](
        Config(apple=AppleConfig(**knobs)), {}, p0, [kept], [{"models": models}], order
    )  # fmt: skip
    solver.begin(task)
    ((upload, keep),) = solver.finish(task, solver.run(task))
    p = {c: float(v) for c, v in keep["ratios"].items()}
    return float(upload.arrays["arrays"]["w"][0]), p, float(keep["personal"]["w"][0])


def test_two_steps_by_hand() -> None:
    """w = (2, 1, 0.5 = w^0 of c, who sent none); p starts at p0 = (1/4, 1/2, 1/4), mu lambda(1) = 4 * 1/2."""
    got, p_got, own = solve({"a": w(2.0), "b": w(1.0)}, {}, rounds=2, dr_lr=0.1, mu=4.0, decay_rounds=2)
    p0 = np.array([0.25, 0.5, 0.25])
    core, p = np.array([2.0, 1.0, 0.5]), p0
    for _ in range(2):
        g = -2 * sigmoid(-2 * float(p @ core))
        old = core.copy()
        core[1] -= 0.5 * p[1] * g
        p = p - 0.1 * (g * old + 2.0 * (p - p0))
    assert got == pytest.approx(core[1], rel=1e-6)
    assert list(p_got) == ["a", "b", "c"]
    assert list(p_got.values()) == pytest.approx(p, rel=1e-6)
    assert own == pytest.approx(p @ core, rel=1e-6)


def test_kept_relationships_go_on_and_make_room_for_those_of_clients_that_joined() -> None:
    """p0 = (1/4, 1/2, 1/4), of which c has joined: the others have 3/4 of their sum from now on."""
    _, p, _ = solve({}, {"a": 0.6, "b": 0.4}, dr_lr=0.0)
    assert p == pytest.approx({"a": 0.45, "b": 0.3, "c": 0.25})
    _, p, _ = solve({}, {"a": 0.6, "b": 0.3, "c": 0.3}, dr_lr=0.0)
    assert p == {"a": 0.6, "b": 0.3, "c": 0.3}


def test_momentum_and_weight_decay_are_those_of_the_core_model() -> None:
    """With p fixed: v <- 0.5 v + p_ii g + 0.1 w_i; w_i <- w_i - 0.5 v."""
    ratios = {"a": 0.0, "b": 2.0, "c": 0.0}
    train = {"momentum": 0.5, "weight_decay": 0.1}
    got, _, own = solve({"b": w(1.0)}, ratios, dr_lr=0.0, train=train)
    x, v = 1.0, 0.0
    for _ in range(2):
        v = 0.5 * v + 2.0 * -2 * sigmoid(-2 * 2 * x) + 0.1 * x
        x -= 0.5 * v
    assert (got, own) == pytest.approx((x, 2 * x), rel=1e-6)


def test_the_pull_fades_by_half_a_cosine() -> None:
    assert [coefficient(r, 4) for r in (0, 2, 4, 9)] == pytest.approx([1, 0.5, 0, 0])
    assert coefficient(0, 0) == 0


# ------------------------------------------------------------------------------------- the pipeline


def test_what_each_client_is_told(tmp_path: Path) -> None:
    """p0, and the core models of all that sent one; once a node. Nothing to be evaluated."""
    case = case_of(tmp_path, "apple", nodes=2, local_test_fraction=0.0, fraction_evaluate=0.0)
    names, n = list(case.played.names), sum(SIZES.values())
    for m in case.played.messages():
        t = int(m.metadata.group_id)
        seen = sorted({c for cohort in case.cohorts[: t - 1] for c in cohort})
        records, config = m.content.array_records, m.content.config_records["config"]
        assert set(records) == {"start-ratios"} | {f"models.{c}" for c in seen}
        assert config["population"] == names
        assert all(config[f"models:{c}"] == seen for c in config["clients"])  # type: ignore[union-attr]
        (p0,) = wire.read_arrays(records["start-ratios"]).values()
        assert p0.dtype == np.float32
        assert p0.tolist() == pytest.approx([SIZES[c] / n for c in names], rel=1e-6)
        for client, model in held(case.played, t - 1).items():
            assert sha256(wire.read_arrays(records[f"models.{client}"])) == sha256(model)
    assert len(case.played.messages()) == 2 * 3


def test_who_lost_its_relationships_begins_at_p0_with_the_core_model_that_the_server_has(
    tmp_path: Path,
) -> None:
    def lose(server_round: int) -> None:
        if server_round == 3:
            for path in tmp_path.glob("*/*/*/dora*"):
                path.unlink()

    more: dict[str, Any] = {"apple__dr_lr": 0.05, "fraction_train": 1.0}
    case = case_of(tmp_path, "apple", grid=losing(lose), **more)
    here = [*case.cohorts[:2], [c for c in case.cohorts[2] if c != "dora"]]
    undisturbed = reference_of(case, Apple)(case.cohorts)
    ends = held(case.played, 3)
    assert all(close(ends[c], undisturbed.core[3][c]) for c in here[2])
    # dora by hand: from the core models of round 2, hers included, and p0
    core, (x, y) = dict(undisturbed.core[2]), case.train["dora"]
    n = sum(len(y) for _, y in case.train.values())
    p0 = p = {c: len(y) / n for c, (_, y) in case.train.items()}
    pull = 0.1 * apple.coefficient(2, 100)
    for rows in mlp.passes(case.batches(), 3, "dora", 0, 3):
        g = mlp.gradient(apple.mix(core, p), x[rows], y[rows])
        by_p = apple.p_gradient(g, core, p, p0, pull)
        core["dora"] = mlp.plus(core["dora"], g, -0.2 * 0.9**2 * p["dora"])
        p = {c: p[c] - 0.05 * by_p[c] for c in p}
    assert close(ends["dora"], core["dora"])
    assert close(case.kept()["dora"], apple.mix(core, p))
    assert not close(ends["dora"], undisturbed.core[3]["dora"], 1e-3)


def test_alone_it_is_local_training_with_the_running_statistics_of_the_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec("", "features", small_bn, lambda *_: True, frozenset({"features"}))
    monkeypatch.setitem(MODELS, "small-bn", spec)
    write_owners(tmp_path / "owners.npz", {"zoe": 20})
    arrays = dict(np.load(tmp_path / "owners.npz"))
    arrays["y"][::2] = 0  # of one class nothing is learnt
    np.savez(tmp_path / "owners.npz", **arrays)
    more: dict[str, Any] = {"model": "small-bn", "apple__dr_lr": 0.0, "fraction_train": 1.0}
    case, alone = (case_of(tmp_path, name, **more) for name in ("apple", "local-only"))
    (zoe,), (other,) = case.kept().values(), alone.kept().values()
    assert close(zoe, other, 1e-6)
    assert close(held(case.played, 3)["zoe"], zoe, 1e-6)
    assert int(zoe["2.num_batches_tracked"]) > 3
    for one, two in zip(case.lines("evaluate"), alone.lines("evaluate"), strict=True):
        assert one[2] == pytest.approx(two[2], rel=1e-6)
