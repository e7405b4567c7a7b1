"""DP-SGD: clipped gradients equal those of one example after the other; ledgers say what was spent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.app import make_app
from client_app.memory.example_ledger import SECRET as SECRET_FILE
from client_app.memory.example_ledger import StepLedger
from client_app.training.private import PrivateSteps, private_program
from client_app.training.programs import Batch, Single
from client_app.training.stacked import Perceptron
from strategies.stages.example_privacy import ExamplePrivacyStage
from task.config.knobs import Config
from task.config.read import as_run_config
from task.config.run_name import MACHINE, OF_A_NODE, all_terms
from task.datasets import Dataset
from task.errors import ConfigError, FieldError, StateError
from task.models import build_model
from task.numerics.arrays import sha256, state_of
from task.privacy import noise
from task.privacy.accounting import epsilon
from task.privacy.noise import Stream, derived
from task.privacy.noise_ledger import FILE, NoiseLedger, TakenSteps
from task.privacy.secret import secret_in
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire.checks import check_scalars
from tests.privacy.test_central import Ledger
from tests.support.federation import SIZES, Played, owners_config, play, write_owners
from tests.support.grid import LocalGrid
from tests.test_privacy import Recording

SECRET = bytes(range(32))
MODELS = {"logistic": Perceptron, "mlp": Perceptron, "cnn": Single}


def steps(bound: float, z: float = 1.0, expected: int = 10) -> PrivateSteps:
    return PrivateSteps(bound, z, expected, Stream(derived(SECRET, "test")))


def batch_of(b: int) -> Batch:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(1, b, 1, 28, 28, generator=rng)
    y = torch.randint(0, 10, (1, b), generator=rng)
    return Batch(x, y, torch.tensor([0.1]))


def naive(model: nn.Module, batch: Batch, bound: float) -> list[torch.Tensor]:
    """Return the sum over examples of their clipped gradients, each by a backward pass of its own."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    for x, y in zip(batch.x[0], batch.y[0], strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        each = [g.double() for g in torch.autograd.grad(loss, parameters)]
        norm = math.sqrt(sum(float((g**2).sum()) for g in each))
        for into, g in zip(total, each, strict=True):
            into += g * min(1.0, bound / norm)
    return total


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [0.05, 2.0, 1e6])
def test_clipped_gradients_are_those_of_one_example_after_the_other(name: str, bound: float) -> None:
    torch.manual_seed(3)
    model = build_model(name, (1, 28, 28), 10, 4)
    program = private_program(model, Single(model))
    assert isinstance(program, MODELS[name])
    params = program.load(state_of(model), 1)
    batch = batch_of(7)
    want = naive(model, batch, bound)
    got = steps(bound).clipped(program, params, batch)
    top = max(float(w.abs().max()) for w in want)
    for g, w in zip(got, want, strict=True):
        assert float((g[0].double() - w).abs().max()) < 2e-6 * top
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in got))
    assert norm <= 7 * bound


def test_one_example_never_counts_more_than_the_bound() -> None:
    model = build_model("mlp", (1, 28, 28), 10, 4)
    program = private_program(model, Single(model))
    params = program.load(state_of(model), 1)
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.randn(1, 1, 1, 28, 28) * 10.0 ** float(torch.randint(-3, 4, ()))
        batch = Batch(x, torch.randint(0, 10, (1, 1)), torch.ones(1))
        got = steps(0.7).clipped(program, params, batch)
        assert math.sqrt(sum(float(g.double().square().sum()) for g in got)) <= 0.7


def test_an_empty_batch_is_noise_alone() -> None:
    for name in MODELS:
        model = build_model(name, (1, 28, 28), 10, 4)
        program = private_program(model, Single(model))
        params = program.load(state_of(model), 1)
        _, gradient = steps(0.5, z=2.0, expected=4).gradient(program, params, batch_of(0))
        flat = torch.cat([g.reshape(-1) for g in gradient.tensors()]).double()
        assert float(flat.std()) == pytest.approx(2.0 * 0.5 / 4, rel=5 / math.sqrt(2 * flat.numel()))
        assert abs(float(flat.mean())) < 5 * 0.25 / math.sqrt(flat.numel())


def test_examples_join_by_coins_of_their_own() -> None:
    batches = steps(1.0, expected=25).batches(500, 400)
    sizes = np.array([len(b) for b in batches])
    assert sizes.mean() == pytest.approx(25, abs=5 * math.sqrt(25 * 0.95 / 400))
    assert sizes.var() == pytest.approx(25 * 0.95, rel=0.4)
    often = np.bincount(np.concatenate(batches), minlength=500)
    assert often.mean() == pytest.approx(20, rel=0.05)
    assert often.max() < 20 + 6 * math.sqrt(20)
    assert [len(b) for b in steps(1.0, expected=9).batches(5, 3)] == [5, 5, 5]


# ---------------------------------------------------------------------------------------- runs


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


def keys_of(owners: Path, state: str = "state", **more: Any) -> dict[str, Any]:
    given = {"dp__noise": 1.5, "dp__clip": 0.5, "dp__delta": 0.01, "dp__unit": "example", "batch_size": 4}
    given |= {"num_server_rounds": 3, "state_dir": str(owners.parent / state)}
    return owners_config(owners, **{**given, **more})


def last(played: Played) -> str:
    return sha256(played.arrays(len(played.rows) - 1))


def worst(rounds: int) -> float:
    """Return the largest epsilon of the owners after some rounds of one pass each, B = 4."""
    found = [epsilon([(min(1.0, 4 / n), 1.5)] * (rounds * math.ceil(n / 4)), 0.01) for n in SIZES.values()]
    return max(found)


def test_the_model_depends_on_the_node_s_secret(owners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "draw_secret", lambda: SECRET)
    for algorithm in ("fedavg", "scaffold", "fedper", "krum"):
        own = {"algorithm": algorithm, "model": "mlp"}
        own |= {"local_test_fraction": 0.2, "fraction_evaluate": 1.0} if algorithm == "fedper" else {}
        own |= {"robust__byzantine": 0.0} if algorithm == "krum" else {}
        made = {
            last(play(keys_of(owners, f"{algorithm}-{n}", **own), nodes=n, journal=Ledger(before=first)))
            for first in [Ledger()]
            for n in (1, 5)
        }
        assert len(made) == 1, algorithm
        other = keys_of(owners, f"{algorithm}-other", **own)
        assert last(play(other, nodes=5, journal=Ledger())) not in made  # another run draws other noise


def test_without_noise_and_clipping_it_is_fedavg(owners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "normal", lambda self, size: np.zeros(size))
    plain = owners_config(owners, batch_size=0, num_server_rounds=3, local_epochs=2)
    private = keys_of(owners, batch_size=0, local_epochs=2, dp__clip=1e6)
    a, b = play(plain).arrays(3), play(private).arrays(3)
    for name, want in a.items():
        assert b[name] == pytest.approx(want, abs=2e-6)


def test_rows_say_what_the_client_that_spent_most_has_spent(owners: Path) -> None:
    grid: Any = (played := play(keys_of(owners), nodes=5, grid_type=Recording, journal=Ledger())).grid
    assert [row["epsilon"] for row in played.rows] == pytest.approx([0.0, worst(1), worst(2), worst(3)])
    assert played.rows[2]["epsilon_next"] == played.rows[3]["epsilon"]
    assert played.rows[1]["train_loss"] is None
    assert len(played.rows[1]["selected"]) == 5
    for kind, content in grid.up:
        for record in content.metric_records.values() if kind == "train" else ():
            assert set(record) == {"num-examples", "dp-steps", "dp-sampling"}


def test_each_client_has_a_ledger(owners: Path) -> None:
    play(keys_of(owners), journal=Ledger())
    files = {p.name.partition(".")[0]: p for p in (owners.parent / "state").rglob("*.ledger.jsonl")}
    assert files.keys() == SIZES.keys()
    for name, path in files.items():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["round"], line["steps"]) for line in lines] == [
            (t, math.ceil(SIZES[name] / 4)) for t in (1, 2, 3)
        ]
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_repeated_order_costs_nothing_and_another_one_does(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(owners)
    whole = Ledger()
    played = play(keys, journal=whole)
    again = Ledger(before=whole, restore=whole.snapshots[1])
    play(keys, journal=again)
    assert [r["model_sha256"] for r in again.rows] == [r["model_sha256"] for r in whole.rows[2:]]
    assert again.rows[-1]["epsilon"] == whole.rows[-1]["epsilon"]
    # The same round from another model: independent noise, and paid for.
    other = Ledger(before=whole, restore=whole.snapshots[2])
    assert other.snapshot is not None
    other.snapshot.arrays["arrays/1.bias"] = other.snapshot.arrays["arrays/1.bias"] + np.float32(1e-3)
    play(keys, journal=other)
    assert other.rows[-1]["epsilon"] == pytest.approx(worst(4))
    # The same order on other examples: noise that does not cancel in the difference, and paid for.
    inputs = Dataset.inputs
    monkeypatch.setattr(Dataset, "inputs", lambda self, *given: inputs(self, *given) + 1e-3)
    changed = Ledger(before=whole, restore=whole.snapshots[2])
    play(keys, journal=changed)
    assert changed.rows[-1]["epsilon"] == pytest.approx(worst(5))
    gaps = [changed.snapshots[0].arrays[n] - a for n, a in whole.snapshots[3].arrays.items()]
    assert max(float(np.abs(gap).max()) for gap in gaps) > 1e-3
    assert played.rows[-1]["epsilon"] == pytest.approx(worst(3))


def test_no_other_steps_have_the_noise_of_a_run_of_the_same_name(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server gives two runs one name, so that noise that both have would cancel in the difference."""
    drawn: list[bytes] = []
    purposes = derived

    def spy(secret: bytes, *purpose: Any) -> bytes:
        drawn.append(made := purposes(secret, *purpose))
        return made

    monkeypatch.setattr("client_app.stages.example_privacy.derived", spy)
    first = Ledger()
    same = {"num_server_rounds": 1, "run_name": "one"}
    play(keys_of(owners, **same), journal=first)
    before: set[bytes] = set(drawn)
    for n, more in enumerate(({"loss": "focal"}, {"momentum": 0.5}), start=2):
        drawn.clear()
        again = Ledger(before=first)
        play(keys_of(owners, **same, **more), journal=again)
        assert len(drawn) == 2 * len(SIZES)
        assert not before & set(drawn), more
        before |= set(drawn)
        # A client has one ledger of a run of that name, and this is its n-th training.
        assert again.rows[1]["epsilon"] == pytest.approx(worst(n))


def test_all_run_config_keys_but_those_of_a_machine_are_part_of_what_noise_follows_from() -> None:
    """A key that is added later is, too: nobody has to think of it."""
    keys = as_run_config(Config())
    left = {*MACHINE, *OF_A_NODE} - {"task"}
    for key, value in keys.items():
        other = not value if isinstance(value, bool) else value + ("x" if isinstance(value, str) else 1)
        assert (all_terms({**keys, key: other}) == all_terms(keys)) == (key in left), key


class Sites(LocalGrid):
    """Nodes with an owner each, who has a ledger; the last one's limits epsilon."""

    limits: dict[str, Any]

    def __init__(self, app: object, node_configs: Any, run_config: Any = None, **more: Any) -> None:
        folder = Path(str(run_config["state-dir"])).parent
        own = [
            {**c, "run-paths": True, "state-dir": str(folder / f"site-{i}")}
            for i, c in enumerate(node_configs)
        ]
        own[-1] |= self.limits
        super().__init__(make_app(), own, run_config, **more)


def test_a_site_limits_what_all_private_trainings_of_its_examples_cost(owners: Path) -> None:
    """Under whatever names and seeds a server asks for them."""
    size = SIZES["emil"]
    once = epsilon([(4 / size, 1.5)] * math.ceil(size / 4), 1e-3)
    twice = epsilon([(4 / size, 1.5)] * (2 * math.ceil(size / 4)), 1e-3)
    grid = type("Limited", (Sites,), {"limits": {"max-epsilon": (once + twice) / 2, "delta": 1e-3}})
    answered = []
    for seed in (1, 2):
        keys = keys_of(owners, num_server_rounds=1, seed=seed)
        row = play(keys, nodes=5, grid_type=grid, journal=Ledger()).rows[1]
        answered.append(row["answered"])
    assert answered == [5, 4]
    (bad,) = row["quarantined"]
    assert (bad["client"], bad["got"][:20]) == ("emil", "policy: max-epsilon ")
    found = [json.loads(s) for s in (owners.parent / "site-4" / FILE).read_text().splitlines()]
    assert [(line["client"], line["steps"], line["noise"]) for line in found] == [
        ("emil", math.ceil(size / 4), 1.5)
    ]
    # Each site has a ledger; without a limit it counts, and allows all.
    assert len((owners.parent / "site-0" / FILE).read_text().splitlines()) == 2


def test_under_a_limit_nothing_leaves_without_noise(owners: Path) -> None:
    grid = type("Limited", (Sites,), {"limits": {"max-epsilon": 1e6, "delta": 1e-3}})
    keys = keys_of(owners, num_server_rounds=1, local_test_fraction=0.3, fraction_evaluate=1.0)
    grid_ = play(keys, nodes=5, grid_type=grid, journal=Ledger())
    assert grid_.rows[1]["answered"] == 5
    bad = [line for line in grid_.keep.lines if "policy: max-epsilon" in line.got]
    assert {line.client for line in bad} == {"emil"}
    assert "have no noise" in bad[0].got


@pytest.mark.parametrize("says", [{"steps": 9}, {"noise": 9.0}, {"noise": 0.0}, {"client": "anna"}], ids=str)
def test_a_line_of_a_site_that_contradicts_another_or_what_is_drawn_is_refused(
    says: dict[str, Any], tmp_path: Path
) -> None:
    ledger, taken = NoiseLedger(tmp_path / FILE), TakenSteps("emil", 4, 0.25, 1.5)
    ledger.charge_steps("a", taken, 1e-3, {})
    ledger.charge_steps("a", taken, 1e-3, {})  # once more, which costs nothing
    (line,) = [json.loads(s) for s in (tmp_path / FILE).read_text().splitlines()]
    (tmp_path / FILE).write_text(json.dumps(line | says) + "\n")
    with pytest.raises(StateError, match="Restore the file"):
        ledger.charge_steps("a", taken, 1e-3, {})


def test_a_run_stops_before_a_client_spends_too_much(owners: Path) -> None:
    journal = Ledger()
    played = play(keys_of(owners, dp__max_epsilon=worst(2) + 1e-6, num_server_rounds=9), journal=journal)
    assert [row["round"] for row in played.rows] == [0, 1, 2]
    assert "stops before round 3" in journal.remarks[0]


def test_a_client_refuses_what_would_cost_too_much(owners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server does."""
    monkeypatch.setattr(ExamplePrivacyStage, "finished", lambda self: False)
    limit = worst(1) - 1e-3
    rows = play(keys_of(owners, dp__max_epsilon=limit, num_server_rounds=1), journal=Ledger()).rows
    spent = {n: epsilon([(min(1.0, 4 / k), 1.5)] * math.ceil(k / 4), 0.01) for n, k in SIZES.items()}
    dear = {n for n, cost in spent.items() if cost > limit}
    assert dear
    assert {q["client"] for q in rows[1]["quarantined"]} == dear
    assert "dp.max-epsilon" in rows[1]["quarantined"][0]["expected"]


def test_a_delta_too_large_for_a_client_is_the_run_s_mistake(owners: Path) -> None:
    played = play(keys_of(owners, dp__delta=0.9, num_server_rounds=1), journal=Ledger())
    lines = played.rows[1]["quarantined"]
    assert {line["client"] for line in lines} == SIZES.keys()
    assert all(line["got"].startswith('config: run-config key "dp.delta": expected less') for line in lines)


def test_nodes_that_start_at_once_share_one_secret(tmp_path: Path) -> None:
    secret = secret_in(tmp_path / SECRET_FILE)
    assert secret_in(tmp_path / SECRET_FILE) == secret
    assert (tmp_path / "privacy-secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "privacy-secret").write_bytes(b"short")
    with pytest.raises(StateError, match="32 bytes"):
        secret_in(tmp_path / SECRET_FILE)


def test_half_a_line_is_of_steps_that_were_not_taken(tmp_path: Path) -> None:
    ledger = StepLedger(tmp_path / "anna.ledger.jsonl")
    ledger.charge(1, "a", 5)
    with (tmp_path / "anna.ledger.jsonl").open("a") as file:
        file.write('{"round": 2, "or')
    assert ledger.steps() == {"a": 5}
    ledger.charge(2, "b", 7)
    assert ledger.steps() == {"a": 5, "b": 7}


@pytest.mark.parametrize(("field", "value"), [("dp-sampling", 0.0), ("dp-steps", 10**12), ("dp-steps", 0)])
def test_what_cannot_be_accounted_for_is_no_reply(field: str, value: float, owners: Path) -> None:
    contract = contract_of(read_config(keys_of(owners)))
    said = {"num-examples": 7, "dp-steps": 2, "dp-sampling": 4 / 7}
    check_scalars(contract, said)
    with pytest.raises(FieldError) as refused:
        check_scalars(contract, said | {field: value})
    assert refused.value.field == field


def test_a_model_with_buffers_is_refused(owners: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'"dp\.unit": the model has \d+ buffers, such as.*group normalisation'
    ):
        play(keys_of(owners, model="tests.privacy.test_central:normalised"), journal=Ledger())
