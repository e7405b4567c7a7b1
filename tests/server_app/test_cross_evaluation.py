"""Each client's own model, tested at every client: right figures, by consent, once, and without effect."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from client_app.solvers import solver_of
from client_app.solvers.sgd import Solver
from server_app.results.headline import headline
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.resolve.kept_model import find_kept_model, read_kept_model
from task.resolve.read import read_config
from tests.support.federation import in_one_process, owners_config, write_owners
from tests.support.wards import HEADER, WARDS, deployed, table

Cells = dict[tuple[str, str], dict[str, str]]


def cells(folder: Path) -> Cells:
    """Return the table by model and client."""
    with open(folder / "cross-evaluation.csv", encoding="utf-8", newline="") as file:
        return {(line["model"], line["client"]): line for line in csv.DictReader(file)}


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def keys(path: Path, **more: Any) -> dict[str, Any]:
    """Return the run of the owners of a file; natural sizes, evaluated at the clients."""
    own = {"num_server_rounds": 2, "local_test_fraction": 0.3, "fraction_evaluate": 1.0, "progress": "none"}
    return owners_config(path, run_name="cross", cross_evaluation=True, **(own | more))


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


def test_the_matrix_is_right(tmp_path: Path) -> None:
    """Inputs are 0, so that only the biases (b, -b) learn; each owner has one class, and half are for tests.

    One step of all examples at rate 1 moves b by 1 - p, up for class 0 and down for class 1, where p is the
    probability of the owner's class. Round 1 begins at b = 0, and its mean is the start of the own models.
    """
    names, y = ["anna"] * 8 + ["ben"] * 4, np.array([0] * 8 + [1] * 4)
    x = np.zeros((12, 2), np.float32)
    np.savez(tmp_path / "owners.npz", x=x, y=y, client=names, x_test=x, y_test=y)
    save_file(
        {"1.weight": np.zeros((2, 2), np.float32), "1.bias": np.zeros(2, np.float32)},
        tmp_path / "zero.safetensors",
    )
    run = keys(
        tmp_path / "owners.npz", num_server_rounds=1, local_test_fraction=0.5, learning_rate=1.0,
        batch_size=0, local_epochs=1, initial_model=str(tmp_path / "zero.safetensors"),
    )  # fmt: skip
    folder = in_one_process(run, tmp_path)
    mean = (4 * 0.5 - 2 * 0.5) / 6
    right = 1 / (1 + math.exp(-2 * mean))  # probability of class 0 at the mean
    biases = {"anna": mean + (1 - right), "ben": mean - right}
    for model, b in biases.items():
        for client, sign, examples in (("anna", 1, 4), ("ben", -1, 2)):
            line = cells(folder)[model, client]
            assert float(line["loss"]) == pytest.approx(math.log(1 + math.exp(-2 * sign * b)), rel=1e-5)
            assert float(line["accuracy"]) == (1.0 if sign * b > 0 else 0.0)
            assert int(line["examples"]) == examples
    found = result(folder)["cross_evaluation"]
    assert (found["models"], found["clients"]) == (["anna", "ben"], ["anna", "ben"])
    assert found["accuracy"] == [[1.0, 0.0], [0.0, 1.0]]
    assert dict(headline(result(folder)))["Own models at home"] == "mean accuracy 1.000"
    assert dict(headline(result(folder)))["Own models at others"] == "mean accuracy 0.000"
    assert (folder / "plots" / "cross-evaluation.svg").exists()


@pytest.mark.parametrize("algorithm", ["local-only", "fedper", "ditto", "d-psgd", "fine-tune", "feddbe"])
def test_at_home_a_personal_model_does_what_its_client_measured(
    algorithm: str, owners: Path, tmp_path: Path
) -> None:
    # A shared part alone, or a model after further training, would measure otherwise.
    folder = in_one_process(keys(owners, algorithm=algorithm, model="mlp"), tmp_path)
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    last = {x["name"]: x["metrics"]["loss"] for x in lines if (x["phase"], x["round"]) == ("evaluate", 2)}
    found = cells(folder)
    assert len(found) == 25
    assert {name: float(found[name, name]["loss"]) for name in last} == pytest.approx(last, rel=1e-6)


def test_the_run_is_the_same_and_so_is_the_matrix_on_other_nodes(owners: Path, tmp_path: Path) -> None:
    run = keys(owners, algorithm="scaffold")
    folder = in_one_process(run, tmp_path / "a", nodes=1)
    other = in_one_process(run, tmp_path / "b", nodes=3)
    without = in_one_process(run | {"cross-evaluation": False}, tmp_path / "c", nodes=1)
    assert (folder / "cross-evaluation.csv").read_bytes() == (other / "cross-evaluation.csv").read_bytes()
    hashes = [result(f)["model_sha256"] for f in (folder, other, without)]
    assert len(set(hashes)) == 1
    assert (folder / "clients.jsonl").read_bytes() == (without / "clients.jsonl").read_bytes()
    assert not (without / "cross-evaluation.csv").exists()


def test_a_longer_run_leaves_the_matrix_of_its_own_end(owners: Path, tmp_path: Path) -> None:
    run = keys(owners, algorithm="ditto")
    folder = in_one_process(run, tmp_path / "a")
    before = (folder / "cross-evaluation.csv").read_bytes()
    longer = in_one_process(run | {"num-server-rounds": 3, "resume": True}, tmp_path / "a")
    whole = in_one_process(run | {"num-server-rounds": 3}, tmp_path / "b")
    after = (longer / "cross-evaluation.csv").read_bytes()
    assert after == (whole / "cross-evaluation.csv").read_bytes()
    assert after != before


def test_a_site_sends_its_model_only_if_its_owner_allows_it(tmp_path: Path) -> None:
    files = {name: table(tmp_path / f"{name}.csv", HEADER, seed=i) for i, name in enumerate(WARDS)}
    policy = {"ward-1": {"own-model": True}, "ward-2": {"own-model": False}}  # ward-3 says nothing
    more = {"local-test-fraction": 0.3, "fraction-evaluate": 1.0, "cross-evaluation": True}
    folder = deployed(tmp_path, files, policy, **more)
    assert cells(folder).keys() == {("ward-1", client) for client in WARDS}
    assert result(folder)["quarantined"] == 0  # it took part in the rounds


def test_figures_of_few_examples_stay_at_the_site(tmp_path: Path) -> None:
    files = {name: table(tmp_path / f"{name}.csv", HEADER, seed=i) for i, name in enumerate(WARDS)}
    policy: dict[str, dict[str, Any]] = {name: {"own-model": True} for name in WARDS}
    policy["ward-2"]["min-examples"] = 10  # of 30 examples, 6 are for tests
    more = {"local-test-fraction": 0.2, "cross-evaluation": True}
    folder = deployed(tmp_path, files, policy, **more)
    assert cells(folder).keys() == {(m, c) for m in WARDS for c in ("ward-1", "ward-3")}
    assert result(folder)["cross_evaluation"]["clients"] == ["ward-1", "ward-3"]


def test_the_others_models_are_no_global_model_that_a_node_keeps(tmp_path: Path) -> None:
    files = {name: table(tmp_path / f"{name}.csv", HEADER, seed=i) for i, name in enumerate(WARDS)}
    policy = {name: {"own-model": True, "keep-models": str(tmp_path / name)} for name in WARDS}
    found = []
    for i, on in enumerate((False, True)):
        more = {
            "local-test-fraction": 0.3,
            "fraction-evaluate": 1.0,
            "cross-evaluation": on,
            "run-name": f"r{i}",
        }
        deployed(tmp_path, files, policy, **more)
        found.append(read_kept_model(find_kept_model(tmp_path / "ward-1"))[1])
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_more_clients_than_can_test_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 32 clients; got 33"):
        read_config({"cross-evaluation": True, "num-clients": 33})
    path = tmp_path / "owners.npz"  # how many owners there are, is known once they register
    write_owners(path, {f"owner-{i}": 4 for i in range(33)})
    with pytest.raises(ConfigError, match="at most 32 clients; got 33"):
        in_one_process(keys(path), tmp_path)
    rounds = (tmp_path / "cross" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 1  # that of the initial model


def test_an_algorithm_is_composite_if_more_than_its_clients_model_answers() -> None:
    # Its model alone would be tested, and would answer otherwise than the client does.
    for name, entry in ALGORITHMS.items():
        if entry.personal and not entry.vertical:
            solver = solver_of(entry.solver)
            more = any(
                getattr(solver, part) is not getattr(Solver, part) for part in ("predictor", "measure")
            )
            assert entry.composite == more, name
