"""The audit by canary clients: honest runs keep their promise, and each planted bug is caught."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from client_app.stages import privacy as clipping
from server_app.cli.main import app
from server_app.extras.audit.epsilon import judge
from server_app.extras.audit.statistics import (
    jeffreys_low,
    lower_bound,
    one_run_bound,
    p_value,
    two_gaussians,
)
from strategies.stages import privacy
from task.errors import ConfigError
from task.numerics.seeds import NOISE, rng_for
from task.privacy.bounded_integers import ClipBound
from task.privacy.canaries import CLAIMED, canary_names, direction, is_in
from task.privacy.noise import Stream
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.privacy.test_central import Ledger
from tests.support.federation import owners_config, play, write_owners

KEYS = {
    "dp__noise": 1.0,
    "dp__clip": 0.1,
    "dp__delta": 1e-4,
    "fraction_train": 0.5,
    "num_server_rounds": 6,
    "audit__canaries": 200,
}


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of which a logistic model has 1,203 numbers."""
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, features=400)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twice as many numbers, along which canaries stand out: bounds are twice those of `owners`.

    There a bug's bound is within a tenth of what is promised, and kernels of another processor decide.
    """
    path = tmp_path_factory.mktemp("wide") / "owners.npz"
    write_owners(path, features=800)
    return path


def audited(owners: Path, before: Callable[[], object] = lambda: None, **more: Any) -> dict[str, Any]:
    """Run twice, with a secret for each or one for both, and judge; `before` is called before each run."""
    secret = more.pop("secret", b"")
    runs = []
    for swap in (False, True):
        before()
        keys = owners_config(owners, **{**KEYS, "audit__swap": swap, **more}, state_dir=str(owners.parent))
        runs.append(play(keys, journal=Ledger(secret or sha256(f"{swap}{more}".encode()).digest()), nodes=1))
    config = read_config(owners_config(owners, **{**KEYS, **more}))
    last = len(runs[0].rows) - 1
    return judge(config, runs[0].arrays(0), [r.arrays(last) for r in runs], [r.rows for r in runs])


def broken(found: dict[str, Any]) -> set[str]:
    return {name for name, check in found["checks"].items() if not check["holds"]}


# ---------------------------------------------------------------------- honest runs


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 20), marks=pytest.mark.full)])
def test_honest_runs_hold_in_20_seeds(seeds: range, owners: Path) -> None:
    for seed in seeds:
        found = audited(owners, seed=seed, num_server_rounds=3, audit__canaries=100)
        assert found["holds"], found["checks"]


def test_the_estimate_is_near_the_truth_and_the_parameters_are_those_promised(owners: Path) -> None:
    """With all clients in every round, T rounds of noise z are one of z / sqrt(T): mu = sqrt(T) / z."""
    found = audited(owners, fraction_train=1.0, num_server_rounds=4, dp__noise=2.0, audit__canaries=400)
    checks = found["checks"]
    assert checks["weight"]["measured"] == pytest.approx(1.0, abs=4 * checks["weight"]["error"])
    # Canaries add N q T^2 C^2 to the z^2 C^2 d T of the noise: so much longer is the model's way.
    longer = math.sqrt(1 + found["canaries"]["in"] * 4 / (2.0**2 * found["numbers"]))  # of N, T, z, d
    assert checks["released"]["mean"] == pytest.approx(1.0 / longer, abs=0.2)
    assert 0 < checks["released"]["at_least"] < found["epsilon"]
    assert checks["released"]["estimate"] == pytest.approx(found["epsilon"], rel=0.5)
    assert "cohorts" not in checks


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("scaffold", {"algorithm": "scaffold"}),
        ("fsvrg", {"algorithm": "fsvrg"}),
        ("adaptive", {"dp__clip_quantile": 0.5}),
    ],
)
def test_other_rules_and_records_are_audited_too(name: str, keys: dict[str, Any], owners: Path) -> None:
    found = audited(owners, **keys)
    assert found["holds"], found["checks"]
    assert ("weight" in found["checks"]) == (name == "adaptive")
    assert found["checks"]["released"]["mean"] > 0.1  # the canaries are there


# ---------------------------------------------------------------------- planted bugs


def weigh_by_examples(patch: pytest.MonkeyPatch) -> None:
    """Let clients count n_k times, as under FedAvg."""
    clip = clipping.Clipping._clipped

    def counted(self: Any, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        n, sent = int(upload.scalars[wire.NUM_EXAMPLES]), clip(self, client, upload)
        return replace(
            sent, arrays={r: {k: a * n for k, a in given.items()} for r, given in sent.arrays.items()}
        )

    patch.setattr(clipping.Clipping, "_clipped", counted)
    patch.setattr(ClipBound, "check", lambda *args, **kwargs: None)


def clip_nothing(patch: pytest.MonkeyPatch) -> None:
    right = clipping.clipped
    patch.setattr(clipping, "clipped", lambda changes, bound, grid: right(changes, 100 * bound, grid))
    patch.setattr(ClipBound, "check", lambda *args, **kwargs: None)


def a_tenth_of_the_noise(patch: pytest.MonkeyPatch) -> None:
    right = Stream.integers
    patch.setattr(Stream, "integers", lambda self, size, std: right(self, size, std / 10))


def divide_by_survivors(patch: pytest.MonkeyPatch) -> None:
    right, expected = privacy.Privacy.release, privacy.Privacy.expected

    def release(self: Any, phase: Any, replies: Any, *rest: Any) -> Any:
        self.survivors = max(len(replies.clients), 1)
        return right(self, phase, replies, *rest)

    patch.setattr(privacy.Privacy, "release", release)
    either = property(lambda self: getattr(self, "survivors", None) or expected.fget(self))
    patch.setattr(privacy.Privacy, "expected", either)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "weights n_k": (weigh_by_examples, {"released", "weight"}),
    "no clipping": (clip_nothing, {"released", "weight"}),
    "sigma / 10": (a_tenth_of_the_noise, {"released", "noise"}),
    "survivors' denominator": (divide_by_survivors, {"weight"}),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, caught = BUGS[name]
    plant(monkeypatch)
    assert broken(audited(wide, audit__canaries=400)) >= caught


def test_noise_from_the_public_seed_is_caught(owners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run alone looks private: only who repeats it can subtract the noise."""
    numbers = count()

    class Public(Stream):
        def __init__(self, key: bytes) -> None:
            self.rng = rng_for(3, NOISE, next(numbers))

        def normal(self, size: int) -> np.ndarray:
            return self.rng.standard_normal(size)

    def again() -> None:
        nonlocal numbers
        numbers = count()

    monkeypatch.setattr(privacy, "Stream", Public)
    found = audited(owners, again)
    assert broken(found) == {"repeated", "noise"}
    assert (
        found["checks"]["repeated"]["at_least"] > found["epsilon"] > found["checks"]["released"]["at_least"]
    )


def test_a_secret_that_both_runs_have_is_caught(owners: Path) -> None:
    """Noise depends on the sum, too, and differs; the coins are the same."""
    assert broken(audited(owners, secret=bytes(32))) == {"cohorts"}


# ---------------------------------------------------------------------- canaries


def test_canaries_are_orthogonal_units_half_of_them_in() -> None:
    config = read_config({"audit.canaries": 400, "dp.noise": 1.0})
    names = canary_names(config)
    assert (names[0], names[-1], len(set(names))) == ("canary-000", "canary-399", 400)
    inside = [is_in(config, n) for n in names]
    assert 160 < sum(inside) < 240
    assert [is_in(replace(config, audit=replace(config.audit, swap=True)), n) for n in names] == [
        not i for i in inside
    ]
    like = {"arrays": {"w": np.zeros((40, 25), np.float32)}, "control-delta": {"w": np.zeros(500)}}
    drawn = [direction(config, n, like) for n in names[:50]]
    flat = np.stack([np.concatenate([d["arrays"]["w"].ravel(), d["control-delta"]["w"]]) for d in drawn])
    gram = flat @ flat.T
    assert_allclose(np.diag(gram), 1.0, rtol=1e-12)
    assert np.abs(gram - np.eye(50)).max() < 5 / math.sqrt(1500)
    alone = direction(config, names[0], {"arrays": like["arrays"]})["arrays"]["w"]
    part = drawn[0]["arrays"]["w"]
    assert_allclose(alone, part / np.linalg.norm(part))


def test_a_canary_goes_up_as_integers_of_norm_c_that_count_once(owners: Path) -> None:
    keys = owners_config(owners, **KEYS, state_dir=str(owners.parent), seed=4)
    played = play(keys, journal=Ledger(), nodes=1)
    row = played.rows[1]
    assert row["population"] == 205
    failed = [line.client for line in played.keep.lines if line.round == 1]
    config = read_config(keys)
    assert row["asked"] - row["answered"] == len(failed) > 30
    assert not any(is_in(config, name) for name in failed)
    assert CLAIMED > 100  # so that a weight n_k would show


@pytest.mark.parametrize(
    ("keys", "named"),
    [({"audit.canaries": 10}, "dp.noise"), ({"audit.swap": True, "dp.noise": 1.0}, "audit.canaries")],
)
def test_canaries_without_noise_are_refused(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_config(keys)


# ---------------------------------------------------------------------- statistics


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-5), (1.0, 1e-3), (3.0, 1e-5)])
def test_two_gaussians_agree_with_the_analytic_gaussian_mechanism(mu: float, delta: float) -> None:
    """Balle and Wang 2018: delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    from scipy.stats import norm

    epsilon = two_gaussians(mu, 1.0, delta)
    of = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert of == pytest.approx(delta, rel=1e-3)
    assert two_gaussians(0.0, 1.0, delta) == 0.0


def test_the_lower_bound_is_below_the_truth_in_95_percent_and_not_far_below() -> None:
    rng, delta = np.random.default_rng(1), 1e-5
    truth = two_gaussians(2.0, 1.0, delta)
    found = [lower_bound(rng.normal(2.0, 1.0, 500), delta) for _ in range(200)]
    assert np.mean([f <= truth for f in found]) >= 0.95
    assert np.median(found) > 0.4 * truth
    assert np.mean([lower_bound(rng.normal(0.0, 1.0, 500), delta) > 0 for _ in range(200)]) <= 0.08


def test_jeffreys_interval() -> None:
    assert jeffreys_low(2, 7, 0.025) == pytest.approx(0.065, abs=5e-4)
    assert jeffreys_low(0, 7, 0.025) == 0.0


@pytest.mark.parametrize(
    ("n", "guesses", "share", "epsilon"),
    [(100, 100, 1.0, 3.49), (1000, 1000, 1.0, 5.78), (1000, 1000, 0.9, 2.02), (1000, 200, 1.0, 4.17)],
)
def test_the_one_run_test_certifies_what_its_formula_says(
    n: int, guesses: int, share: float, epsilon: float
) -> None:
    right = round(share * guesses)
    assert (
        p_value(n, guesses, right, epsilon - 0.02, 1e-5)
        < 0.05
        < p_value(n, guesses, right, epsilon + 0.02, 1e-5)
    )


def test_the_one_run_bound_of_perfect_and_of_blind_scores() -> None:
    inside = [True, False] * 500
    perfect = one_run_bound(np.array(inside, float), inside, 1e-5)
    assert perfect["right"] == perfect["guesses"] == 200
    assert perfect["at_least"] == pytest.approx(4.17, abs=0.01)
    assert one_run_bound(np.random.default_rng(0).normal(size=1000), inside, 1e-5)["at_least"] == 0.0


# ---------------------------------------------------------------------- the command


@pytest.mark.full
def test_the_command_runs_twice_and_ends_with_1_if_a_promise_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of its own, on the bundled digits; the same command goes on, which runs nothing again."""
    keys = 'dp.noise=1.0 fraction-train=0.5 num-server-rounds=5 model="mlp" threads=1 dp.delta=1e-4'
    line = [sys.executable, "-m", "server_app.cli.main", "audit", "epsilon", "-c", keys]
    line += ["--canaries", "100", "--runs-dir", str(tmp_path), "--name", "a", "--jobs", "1"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "a" / "audit.json").read_text())
    (found,) = report["audits"]
    assert set(found["checks"]) == {"released", "repeated", "one-run", "weight", "noise", "cohorts"}
    assert found["canaries"]["in"] + found["canaries"]["out"] == 100
    assert found["checks"]["released"]["at_least"] <= found["epsilon"]
    assert {p.name for p in (tmp_path / "a").glob("audit.swap*")} == {found["run"], found["repeated_by"]}

    rows = tmp_path / "a" / found["run"] / "rounds.jsonl"  # as if the accounts said too little
    rows.write_text(re.sub(r'"epsilon": [0-9.]+', '"epsilon": 0.0', rows.read_text()))
    with monkeypatch.context() as patch:
        patch.setattr("server_app.extras.audit.epsilon.lower_bound", lambda *given: 0.5)
        again = CliRunner().invoke(app, line[3:])
    assert again.exit_code == 1
    assert "BROKEN" in again.output


@pytest.mark.parametrize(
    ("options", "named"),
    [(["-c", "seed=1"], "dp.noise"), (["-c", "dp.noise=1.0", "--canaries", "10"], "canaries")],
)
def test_what_cannot_be_audited_is_refused(options: list[str], named: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "epsilon", "--runs-dir", str(tmp_path), *options])
    assert named in str(done.exception)
    assert not list(tmp_path.iterdir())
