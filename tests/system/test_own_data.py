"""Three nodes with files of their own: what their runs end in is what one process makes of all files.

Other tasks and texts run on nodes in this process for every commit, and over gRPC in the full suite, as all
others here do. One federation serves all tests of this file: each writes files of its own, which a run reads
as they are.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.datasets import make_regression

from server_app.deploy.link import follow
from server_app.deploy.link.jobs import FINISHED, RUNNING, Job, Jobs
from server_app.deploy.link.status import read_status
from server_app.engines.federation import Federation, federation
from server_app.results.folder import RunFolder
from tests.own_folder import found
from tests.support import parties
from tests.support.federation import in_one_process
from tests.vertical import test_logistic

pytestmark = pytest.mark.system
NAMES = parties.NAMES


def write_wards(files: Mapping[str, Path]) -> None:
    """Write tables with four measurements and a label that depends on them."""
    for i, path in enumerate(files.values()):
        rng, rows = np.random.default_rng(i), 60 + 20 * i
        x = rng.normal(size=(rows, 4))
        y = (x[:, 0] + 2 * x[:, 1] > 0).astype(int)
        with path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["a", "b", "c", "d", "label"])
            out.writerows([*map(repr, map(float, row)), label] for row, label in zip(x, y, strict=True))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The nodes' files, by name; whatever is in them, their names end in csv."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"{name}.csv" for name in NAMES}
    write_wards(paths)
    return paths


@pytest.fixture(scope="module")
def fed(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    nodes = {name: ["--data", str(path)] for name, path in files.items()}
    runs = tmp_path_factory.mktemp("own") / "runs"
    with federation(nodes, runs, policy={"min-examples": 1}) as made:
        yield made


Runs = Callable[[dict[str, Any]], Path]  # does the run of keys; returns its result folder


def over_grpc(fed: Federation) -> Runs:
    """Return what does runs on a federation."""

    def run(keys: dict[str, Any]) -> Path:
        fed.run(keys)
        return Path(fed.kit.runs / keys["run-name"])

    return run


@pytest.fixture(params=["here", pytest.param("grpc", marks=pytest.mark.full)])
def on_nodes(request: pytest.FixtureRequest, files: dict[str, Path], tmp_path: Path) -> Runs:
    """What does runs on the three nodes: in this process, or over gRPC."""
    if request.param == "grpc":
        return over_grpc(request.getfixturevalue("fed"))
    return lambda keys: in_one_process(keys, tmp_path / "there", files=files)


def hold(
    run: Runs, tmp_path: Path, name: str, keys: Mapping[str, Any], pooled: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Hold a run on nodes to that of one process, whose data `pooled` names; return both result folders."""
    there = run({**keys, "run-name": name})
    here = in_one_process({**keys, **pooled, "run-name": "here"}, tmp_path / "here")
    assert found(there) == found(here)
    return there, here


@pytest.mark.full
def test_tables_with_gaps_end_as_the_pooled_run(
    fed: Federation, files: dict[str, Path], tmp_path: Path
) -> None:
    """Moments and model of files that nobody brings together are those of the files together.

    The tables have 60 to 100 houses, columns of very different size; more is missing in each.
    """
    sites = files["ada"].parent
    x, y = make_regression(240, 6, noise=5.0, random_state=1)
    x = x * [1, 1e4, 1e-3, 20, 1, 1] + [0, 3e5, 0, 40, 5, -2]
    rng, sizes = np.random.default_rng(1), (60, 80, 100)
    for i, (path, end) in enumerate(zip(files.values(), np.cumsum(sizes), strict=True)):
        with path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*(f"x{j}" for j in range(6)), "near:category(sea|lake)", "price:target", "split"])
            for row in range(end - sizes[i], end):
                gone = rng.random(7) < i / 10
                cells = [*map(repr, map(float, x[row])), "sea" if x[row, 0] > 0 else "lake"]
                cells = ["NA" if lost else cell for lost, cell in zip(gone, cells, strict=True)]
                out.writerow([*cells, repr(float(y[row] / 100)), "test" if row % 5 == 0 else "train"])
    keys: dict[str, Any] = {
        "dataset": "csv", "model": "logistic", "task": "regression", "missing": "mean", "standardise": True,
        "missing-indicator": True, "learning-rate": 0.02, "num-server-rounds": 5, "fraction-evaluate": 1.0,
        "progress": "none",
    }  # fmt: skip
    pooled = {"data-path": str(sites), "partition": "natural", "num-clients": 0}
    there, here = hold(over_grpc(fed), tmp_path, "tables", keys, pooled)
    got, want = (json.loads((at / "config.json").read_text())["columns"] for at in (there, here))
    assert {k: got[k] for k in ("count", "mean", "std")} == {k: want[k] for k in ("count", "mean", "std")}
    assert len(set(got["count"][:6])) > 1
    assert got["count"][6:] == [0] * 9  # two of the category, seven indicators
    losses = [row["client_loss"] for row in RunFolder(there).rounds()[1:]]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.full
def test_plain_tables_whose_columns_the_run_declares_end_as_the_pooled_run(
    fed: Federation, files: dict[str, Path], tmp_path: Path
) -> None:
    """The nodes read files that have text and no types, and took part in runs of others before."""
    for i, path in enumerate(files.values()):
        rng = np.random.default_rng(i)
        lines = ["age,sex,seen on,ward,fold,outcome"]
        for day, (age, man) in enumerate(zip(rng.integers(20, 80, 40), rng.random(40) < 0.5, strict=True)):
            label = "ill" if age + 10 * man > 55 else "well"
            part = "test" if day % 5 == 0 else "train"
            lines.append(f"{age},{'fm'[int(man)]},day {day},{path.stem},{part},{label}")
        path.write_text("\n".join(lines) + "\n")
    types = "sex:category(f|m), seen on:ignore, ward:client, fold:split, outcome:target(ill|well)"
    keys = {
        "dataset": "csv", "model": "logistic", "standardise": True, "num-server-rounds": 3,
        "fraction-evaluate": 1.0, "progress": "none", "column-types": types,
    }  # fmt: skip
    pooled = {"data-path": str(files["ada"].parent), "partition": "natural", "num-clients": 0}
    there, _ = hold(over_grpc(fed), tmp_path, "plain", keys, pooled)
    assert json.loads((there / "config.json").read_text())["run"]["column-types"] == types


OTHER_TASKS: dict[str, dict[str, Any]] = {
    "multi-label": {"algorithm": "ditto", "metrics": "f1-macro,auroc"},
    "reconstruction": {"algorithm": "scaffold", "model": "autoencoder", "loss": "mae", "metrics": "mae,rmse"},
}


@pytest.mark.parametrize("task", ["multi-label", pytest.param("reconstruction", marks=pytest.mark.full)])
def test_other_tasks_than_classification(
    task: str, on_nodes: Runs, files: dict[str, Path], tmp_path: Path
) -> None:
    """The files have numbers [N, 6] and four labels each.

    The server's test set stands in the pool, which would else give a tenth of all examples for it.
    """
    rng = np.random.default_rng(5)
    owners = np.repeat(NAMES, (60, 80, 100))
    x = rng.normal(size=(len(owners), 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 4)) > 0.3).astype(np.int64)
    for name, path in files.items():
        with path.open("wb") as file:
            np.savez(file, x=x[owners == name], y=y[owners == name])
    np.savez(tmp_path / "pool.npz", x=x, y=y, client=owners, x_test=x[:6], y_test=y[:6])
    keys = {
        "dataset": "npz", "num-classes": 4, "task": task, "num-server-rounds": 2, "data-seed": 3,
        "local-test-fraction": 0.25, "fraction-evaluate": 1.0, "device": "cpu", "progress": "none",
    }  # fmt: skip
    pooled = {"data-path": str(tmp_path / "pool.npz"), "partition": "natural", "num-clients": 0}
    hold(on_nodes, tmp_path, task, keys | OTHER_TASKS[task], pooled)


def test_texts_of_ids_whose_form_the_server_is_told(
    on_nodes: Runs, files: dict[str, Path], tmp_path: Path
) -> None:
    """Texts of 8 tokens, of which some predict none; a client counts each token that it predicts."""
    rng = np.random.default_rng(5)
    owners = np.repeat(NAMES, (12, 14, 16))
    x = (np.arange(8) * 3 + rng.integers(0, 20, len(owners))[:, None]) % 20
    y = np.where(rng.random(x.shape) < 0.2, -100, (x + 3) % 20)
    for name, path in files.items():
        with path.open("wb") as file:
            np.savez(file, x=x[owners == name], y=y[owners == name])
    np.savez(tmp_path / "pool.npz", x=x, y=y, client=owners, x_test=x[:6], y_test=y[:6])
    keys = {
        "dataset": "npz", "num-classes": 256, "task": "language", "inputs": "int64[8]", "model": "char-lstm",
        "num-server-rounds": 2, "local-steps": 1, "data-seed": 3, "local-test-fraction": 0.25,
        "fraction-evaluate": 1.0, "metrics": "perplexity", "device": "cpu", "progress": "none",
    }  # fmt: skip
    pooled = {"data-path": str(tmp_path / "pool.npz"), "partition": "natural", "num-clients": 0}
    hold(on_nodes, tmp_path, "ids", keys, pooled)


@pytest.mark.full
def test_the_next_characters_of_roles(tmp_path: Path, data_folder: Path) -> None:
    keys = {
        "dataset": "shakespeare", "model": "char-lstm", "partition": "natural", "num-clients": 3,
        "metrics": "perplexity", "local-steps": 5, "algorithm": "fedprox", "fedprox.mu": 0.1,
        "num-server-rounds": 2, "local-test-fraction": 0.25, "fraction-evaluate": 1.0, "device": "cpu",
        "progress": "none", "data-seed": 3,
    }  # fmt: skip
    nodes = {f"node-{i}": ["--partition", f"{i}/3"] for i in range(3)}
    with federation(nodes, tmp_path / "runs") as made:
        hold(over_grpc(made), tmp_path, "roles", keys, {})


ORDERS = {"ada": [*range(5, 35), 1, 2], "bob": [0, 1, *range(5, 35)], "cyd": [*range(5, 35), 38]}
PARTIES = parties.config(vertical__parties="ada,bob,cyd", roll_call_timeout=2.0, progress="none")


def write_parties(files: Mapping[str, Path]) -> None:
    """Write a file for each party, in an order of its own, with 30 common rows."""
    rng = np.random.default_rng(0)
    orders = {name: rng.permutation(rows).tolist() for name, rows in ORDERS.items()}
    parties.owners(files["ada"].parent, orders)


def same_parties(folder: Path, files: Mapping[str, Path], keys: Mapping[str, Any]) -> None:
    """Compare with the run of one process."""
    rows, want = RunFolder(folder).rounds(), parties.play_own(files, keys).rows
    for key in ("model_sha256", "client_accuracy", "metrics", "answered"):
        assert [row[key] for row in rows] == [row[key] for row in want], key


@pytest.mark.full
def test_three_parties_with_own_files_end_as_in_one_process(fed: Federation, files: dict[str, Path]) -> None:
    write_parties(files)
    fed.run(PARTIES | {"run-name": "split"})
    same_parties(fed.kit.runs / "split", files, PARTIES)
    # Of 30 common rows, 8 are for the test.
    assert RunFolder(fed.kit.runs / "split").rounds()[2]["metrics"]["rows"] == 22


@pytest.mark.full
def test_logistic_regression_on_ciphertexts_ends_as_in_one_process_in_clear(
    fed: Federation, files: dict[str, Path]
) -> None:
    test_logistic.owners(files["ada"].parent, ("ada", "cyd"), rows=16)
    keys = test_logistic.config(num_server_rounds=2, progress="none")
    fed.run(keys | {"vertical.key-bits": 2048, "run-name": "sealed", "nodes": "ada,cyd"})
    same_parties(fed.kit.runs / "sealed", {name: files[name] for name in ("ada", "cyd")}, keys)


@pytest.mark.full  # a link tries again after half a minute or more
def test_a_lost_party_is_named_and_the_run_goes_on_when_it_is_back(
    fed: Federation, files: dict[str, Path]
) -> None:
    write_parties(files)
    bob = fed.node("bob")
    bob.terminate()
    bob.wait()
    job = follow.submit(fed.kit, PARTIES | {"run-name": "lost", "min-nodes": 2})
    deadline = time.monotonic() + 200
    while "bob" not in (why := reason(fed, "lost")):
        assert time.monotonic() < deadline, why
        time.sleep(0.5)
    fed.start("bob", "node", str(fed.kit.path.parent / "bob"), "--data", str(files["bob"]))
    follow.follow(fed.kit, job)
    assert "expected" in why
    assert "Start the nodes of" in why
    same_parties(fed.kit.runs / "lost", files, PARTIES)


def reason(fed: Federation, name: str) -> str:
    """Return what the link's status says of a run."""
    runs = [run for run in read_status(fed.kit)["runs"] if run["name"] == name]
    return "".join(f"{run['waits']}{run['reason']}" for run in runs)


def each_brought_its_own(folder: Path) -> None:
    """Check the run of all nodes, whose clients are the nodes themselves."""
    rounds = RunFolder(folder).rounds()
    assert rounds[1]["selected"] == [*NAMES]
    clients = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {c["name"] for c in clients if c["phase"] == "evaluate" and c["round"] == 10} == {*NAMES}
    assert rounds[10]["client_accuracy"] > 0.8
    assert {c["examples"] for c in clients if c["name"] == "cyd" and c["phase"] == "train"} == {80}


@pytest.mark.full
def test_runs_on_different_nodes_go_on_at_once_and_end_as_each_alone(
    fed: Federation, files: dict[str, Path]
) -> None:
    """Two runs at once, the stop of one, a third that waits for both, a fourth that waits for the third.

    It is the last test of this file: a node and then all of it are stopped.
    """
    write_wards(files)
    keys = {
        "dataset": "csv", "model": "logistic", "num-classes": 2, "num-server-rounds": 10,
        "learning-rate": 0.5, "local-epochs": 3, "progress": "none",
    }  # fmt: skip
    jobs = Jobs(fed.kit.jobs, fed.kit.runs)

    def submit(name: str, **more: object) -> None:
        follow.submit(fed.kit, keys | more | {"run-name": name})

    def until(true: Any) -> None:
        deadline = time.monotonic() + 120
        while not true():
            assert time.monotonic() < deadline, fed.logs()
            time.sleep(0.05)

    def job(name: str) -> Job:
        found = jobs.read(name)
        assert found is not None
        return found

    def rounds(name: str) -> int:
        return len(RunFolder(fed.kit.runs / name).rounds(unfinished=True))

    def written(name: str, file: str) -> int:
        return (fed.kit.runs / name / file).stat().st_mtime_ns

    submit("long", **{"node-names": "cyd"}, **{"num-server-rounds": 5000})
    submit("pair", **{"node-names": "ada,bob", "num-server-rounds": 100})
    submit("all", **{"min-nodes": 3, "fraction-evaluate": 1.0, "local-test-fraction": 0.2})
    submit("late", **{"node-names": "cyd"})
    until(lambda: rounds("long") > 1 and rounds("pair") > 1)
    assert (job("long").state, job("pair").state) == (RUNNING, RUNNING)
    waits = {
        "all": "waits for cyd, where job long runs; for ada, bob, where job pair runs",
        "late": "waits for cyd, where job long runs; for cyd, where job all comes first",
    }
    until(lambda: waits.items() <= {r["name"]: r["waits"] for r in read_status(fed.kit)["runs"]}.items())
    jobs.ask_to_stop("long")
    until(lambda: job("long").ended)
    assert job("pair").state == RUNNING
    until(lambda: job("all").ended)
    until(lambda: job("late").ended)
    assert {(j.state, j.attempts) for j in map(job, ("pair", "all", "late"))} == {(FINISHED, 1)}
    assert written("late", "config.json") > written("all", "result.json")  # which was first for cyd
    submit("late-alone", **{"node-names": "cyd"})
    until(lambda: job("late-alone").ended)
    cyd = fed.node("cyd")
    cyd.terminate()
    cyd.wait()
    # On what is left; without a schedule its rounds are the first of the longer run.
    submit("pair-alone", **{"min-nodes": 2, "min-replies": 2})
    until(lambda: job("pair-alone").ended)
    processes = [p for w in fed.processes.values() for p in psutil.Process(w.pid).children(recursive=True)]
    fed.stop()
    assert len(processes) >= 1 + 3  # the SuperLink, and a warm parent on each machine
    assert not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def models(name: str) -> list[str]:
        return [row["model_sha256"] for row in RunFolder(fed.kit.runs / name).rounds()]

    assert models("pair")[:11] == models("pair-alone")
    assert models("late") == models("late-alone")
    assert len({models(name)[10] for name in ("pair", "late", "all")}) == 3
    assert {row["name"] for row in RunFolder(fed.kit.runs / "pair").nodes()} == {"ada", "bob"}
    each_brought_its_own(fed.kit.runs / "all")
