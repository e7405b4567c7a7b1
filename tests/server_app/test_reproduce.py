"""Published tables: reading them, what a cell needs next, the queue without processes, and the pages."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.extras.reproduce import work
from server_app.extras.reproduce.announce import Announcements
from server_app.extras.reproduce.choice import seconds_of
from server_app.extras.reproduce.measures import counted_accuracy, values_of
from server_app.extras.reproduce.pages import as_html, counts, markdown, notes, rows_of, verdict
from server_app.extras.reproduce.plan import standing
from server_app.extras.reproduce.records import (
    RESULTS,
    RunRecord,
    RunRecords,
    folder_name,
    results_of,
    run_id,
)
from server_app.extras.reproduce.tables import PublishedTable, RunSeed, read_table, tables
from server_app.extras.reproduce.work import Remaining, TableQueue
from server_app.results.folder import RunFolder
from server_app.results.summary import summarise
from server_app.sweep import pool
from task.config.read import as_run_config
from task.errors import ConfigError, DataError, StateError
from task.resolve.read import read_config
from task.storage.locks import locked

TINY = """
title = "A tiny table"
paper = "Nobody 2026"
where = "Table 7"
metric = "rounds"
seeds = [1, 2, 3]
learning-rates = [0.01, 0.1, 1.0, 10.0]
start = 0.1
round-seconds = 3600

[keys]
dataset = "digits"
model = "logistic"
num-clients = 4
local-test-fraction = 0.0
num-server-rounds = 20
target-accuracy = 0.9

[cells.big]
setting = "B = 10"
published = 8

[cells.small]
setting = "B = 5"
published = 4
keys = {batch-size = 5}
"""
SPEED = {0.01: 0.02, 0.1: 0.1, 1.0: 0.2, 10.0: 0.0}  # accuracy gained in a round, by learning rate
# Keys of runs whose rounds follow from how many there are: the rates, the noise or the shares.
HORIZONS: list[dict[str, Any]] = [{"lr-schedule": "cosine"}, {"algorithm": "nbafl"}, {"algorithm": "fedphp"}]
Play = Callable[[dict[str, Any]], list[dict[str, Any]]]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY, "utf-8")
    return path


def curve(keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rounds in which the accuracy rises linearly, more slowly with a higher seed."""
    rows = list[dict[str, Any]]()
    for round_ in range(keys["num-server-rounds"] + 1):
        accuracy = 0.1 + SPEED[keys["learning-rate"]] * round_ / keys["seed"]
        rows.append({"round": round_, "accuracy": accuracy, "seconds": {"total": 1.0}})
        if accuracy >= keys.get("target-accuracy", 2.0):
            break
    return rows


class Instantly:
    """Forks whose children do all their work when they start, in this process, and end one by one."""

    most = 0  # children at the same time

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._codes: list[int] = []  # by process id

    def fork(self, start: Callable[[], int]) -> int:
        pid = len(self._codes)
        self._codes.append(start())
        self.pids.add(pid)
        Instantly.most = max(Instantly.most, len(self.pids))
        return pid

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        pid = min(self.pids)
        self.pids.remove(pid)
        return [(pid, self._codes[pid])]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace runs by `curve`; return the keys of each that was started."""
    seen = list[dict[str, Any]]()

    def run(keys: dict[str, Any], nodes: int, log: Path) -> int:
        seen.append(keys)
        config = as_run_config(read_config(keys))
        folder = RunFolder.create(Path(keys["runs-dir"]) / keys["run-name"], {"run": config}, resume=False)
        rows = curve(keys)
        for row in rows:
            folder.append_round(row)
        folder.finish(summarise(rows, [], config), {})
        return 0

    monkeypatch.setattr(pool, "one_run", run)
    monkeypatch.setattr(pool, "Forks", Instantly)
    Instantly.most = 0
    return seen


def worked(
    path: Path, budget_s: float = 1e9, runs: str = "runs", jobs: int = 1, *, gpu: bool = False
) -> Remaining:
    table = read_table(str(path))
    cells = [(table, cell) for cell in table.cells.values()]
    return TableQueue(cells, path.parent / runs, 1, jobs=jobs, gpu=gpu).work(budget_s)


def tried(keys: list[dict[str, Any]], batch: int) -> list[tuple[float, int, int]]:
    chosen = [k for k in keys if k.get("batch-size", 10) == batch]
    return [(k["learning-rate"], k["seed"], k["num-server-rounds"]) for k in chosen]


# the queue


def test_seeds_of_the_data_are_crossed_with_the_seeds(tiny: Path, started: list[dict[str, Any]]) -> None:
    text = TINY.replace("[1, 2, 3]", "[1, 2]\ndata-seeds = [5, 6]").replace("[0.01, 0.1, 1.0, 10.0]", "[0.1]")
    tiny.write_text(text, "utf-8")
    worked(tiny)
    assert [(k["seed"], k["data-seed"]) for k in started[:4]] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    row = rows_of(read_table(str(tiny)))[0]
    assert (row.seeds, row.ours) == ("1/5: 8.0, 1/6: 8.0, 2/5: 16.0, 2/6: 16.0", "12.0 ± 4.6")
    lines = results_of(tiny).read_text().splitlines()
    assert [json.loads(line)["data_seed"] for line in lines[:4]] == [5, 6, 5, 6]


def test_the_rate_is_chosen_on_the_first_seed_and_a_run_that_cannot_be_best_ends_early(
    tiny: Path, started: list[dict[str, Any]]
) -> None:
    left = worked(tiny)
    assert all(at.done for at in left.standings)
    assert Instantly.most == 1
    # From 0.1, 0.9 is crossed at round 8; the neighbours have as many; 1.0 needs 4; 10.0 ends after 4.
    want = [(0.1, 1, 20), (0.01, 1, 8), (1.0, 1, 8), (10.0, 1, 4), (1.0, 2, 20), (1.0, 3, 20)]
    assert tried(started, 10) == tried(started, 5) == want
    at = next(at for at in left.standings if at.cell.name == "big")
    assert at.values == pytest.approx([4, 8, 12])
    assert (at.rate, at.mean, at.std) == pytest.approx((1.0, 8, 4))
    assert len((tiny.parent / RESULTS).read_text().splitlines()) == len(started) == 12


@pytest.mark.parametrize(
    ("key", "least"), [('lr-schedule = "cosine"', 20), ('algorithm = "nbafl"', 20), ("lr-warmup = 6", 7)]
)
def test_a_run_that_cannot_be_best_does_the_rounds_that_it_cannot_do_without(
    key: str, least: int, tiny: Path, started: list[dict[str, Any]]
) -> None:
    tiny.write_text(TINY.replace("[keys]", f"[keys]\n{key}"), "utf-8")
    assert all(at.done for at in worked(tiny).standings)
    want = [(0.1, 1, 20), (0.01, 1, max(8, least)), (1.0, 1, max(8, least)), (10.0, 1, least)]
    assert tried(started, 10)[:4] == want


@pytest.mark.parametrize("jobs", [2, 3, 9])
def test_runs_at_the_same_time_are_those_of_one_after_the_other(
    jobs: int, tiny: Path, started: list[dict[str, Any]]
) -> None:
    left = worked(tiny, jobs=jobs)
    assert all(at.done for at in left.standings)
    assert Instantly.most == min(jobs, 4)  # two neighbours of two cells; before them, their starts
    want = [(0.01, 1, 8), (0.1, 1, 20), (1.0, 1, 8), (1.0, 2, 20), (1.0, 3, 20), (10.0, 1, 4)]
    assert sorted(tried(started, 10)) == sorted(tried(started, 5)) == want
    assert len((tiny.parent / RESULTS).read_text().splitlines()) == len(started) == 12


def test_nothing_is_run_twice_with_or_without_the_results_file(
    tiny: Path, started: list[dict[str, Any]]
) -> None:
    worked(tiny)
    before, lines = len(started), sorted((tiny.parent / RESULTS).read_text().splitlines())
    worked(tiny)
    (tiny.parent / RESULTS).unlink()  # the run folders say the same
    worked(tiny, budget_s=0)
    assert len(started) == before
    assert sorted((tiny.parent / RESULTS).read_text().splitlines()) == lines
    worked(tiny, runs="elsewhere")  # and the results file alone does, too
    assert len(started) == before


def test_a_higher_limit_goes_on_with_the_runs_that_missed_the_target(
    tiny: Path, started: list[dict[str, Any]]
) -> None:
    text = TINY.replace("num-server-rounds = 20", "num-server-rounds = 10").replace(
        "[0.01, 0.1, 1.0, 10.0]", "[0.1]"
    )
    tiny.write_text(text, "utf-8")
    left = worked(tiny)
    at = next(at for at in left.standings if at.cell.name == "big")
    assert at.done
    assert at.missed == 2
    assert at.mean is None
    row = next(row for row in rows_of(read_table(str(tiny))) if row.at.cell.name == "big")
    assert (row.ours, row.seeds) == (">10 in 2 of 3 seeds", "1: 8.0, 2: >10, 3: >10")
    tiny.write_text(text.replace("num-server-rounds = 10", "num-server-rounds = 30"), "utf-8")
    del started[:]
    worked(tiny)
    assert tried(started, 10) == [(0.1, 2, 30), (0.1, 3, 30)]
    assert all(keys["resume"] for keys in started)


def test_checkpoints_go_by_the_measured_seconds_of_a_round(tiny: Path, started: list[dict[str, Any]]) -> None:
    """The table's estimate is an hour; the first run takes 9 seconds for 8 rounds. A minute is 53 of them."""
    worked(tiny)
    assert [k["checkpoint-every"] for k in started[:2]] == [1, 53]


def test_a_budget_starts_no_run_that_does_not_fit(tiny: Path, started: list[dict[str, Any]]) -> None:
    # `small` is estimated at 4 rounds of an hour, `big` at 8.
    left = worked(tiny, budget_s=3.9 * 3600)
    assert not started
    assert left.over_budget
    assert sorted(at.hours_left for at in left.standings) == pytest.approx([5 * 4, 5 * 8])
    worked(tiny, budget_s=4.1 * 3600)  # the first run takes 8 s: further ones are cheap
    assert tried(started, 5)[0] == (0.1, 1, 20)


def test_quoted_cells_without_a_value_come_first_where_a_gpu_is_at_hand(
    tiny: Path, started: list[dict[str, Any]]
) -> None:
    """Batch sizes: `big` 10 and `small` 5 are quoted, `free` 2 is not; `small` has the fewest hours left."""
    text = TINY + '[cells.free]\nsetting = "B = 2"\nunquoted = "curves only"\nkeys = {batch-size = 2}\n'
    tiny.write_text(text + "learning-rates = [0.1]\nround-seconds = 1\n", "utf-8")
    worked(tiny, gpu=True)
    order = [k.get("batch-size", 10) for k in started]
    assert order.index(5) < order.index(10) < order.index(2)
    # A cell whose first seed has chosen its rate has a value: what has none goes before its other seeds.
    first = next(i for i, k in enumerate(started) if k["seed"] > 1)
    assert {5, 10} <= set(order[:first])


def test_a_gpus_budget_ends_the_run_at_work_and_the_next_call_goes_on(
    tiny: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(Instantly):
        def fork(self, start: Callable[[], int]) -> int:
            self.pids.add(1)
            return 1

        def wait(self, timeout_s: float) -> list[tuple[int, int]]:
            time.sleep(0.01)
            return []

        def kill(self, pid: int) -> None:
            self.pids.remove(pid)
            killed.append(pid)

    killed = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(pool, "Forks", Endless)
        left = worked(tiny, budget_s=1.0, gpu=True)
    assert (killed, left.over_budget, left.failed) == ([1], True, {})
    assert not worked(tiny, gpu=True).over_budget  # no lock is left


def test_only_cells_with_seconds_on_a_gpu_are_in_its_plan(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task.numerics.devices.gpu_model", lambda: "NVIDIA H100")
    asked = ["reproduce", str(tiny), "--plan", "gpu", "--list"]
    refused = CliRunner().invoke(app, asked)
    assert "gpu-round-seconds" in str(refused.exception)
    tiny.write_text(TINY + "gpu-round-seconds = 3.6\n", "utf-8")
    shown = CliRunner().invoke(app, asked).output
    assert "small" in shown
    assert "big" not in shown
    assert "0:01:12" in shown  # five runs of 4 rounds


def test_without_a_gpu_its_plan_has_the_hours_of_a_cpu(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("task.numerics.devices.gpu_model", lambda: "")
    tiny.write_text(TINY + "gpu-round-seconds = 3.6\n", "utf-8")
    shown = CliRunner().invoke(app, ["reproduce", str(tiny), "--plan", "gpu", "--list"])
    assert shown.output.count("torch sees no GPU here") == 1
    assert "20:00:00" in shown.output  # five runs of 4 rounds, an hour each
    assert "big" not in shown.output


def test_seconds_measured_on_a_gpu_say_nothing_about_a_cpu(tiny: Path, started: list[dict[str, Any]]) -> None:
    worked(tiny, budget_s=1e9)
    path = results_of(tiny)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for row in lines:
        row["hours"], row["machine"] = row["rounds"] / 3600, "Processor, x86_64, AVX512, NVIDIA H100"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines if row["seed"] == 1), "utf-8")
    cell = read_table(str(tiny)).cells["big"]
    records = RunRecords(path)
    records.read()
    on_cpu = standing(cell, records.by_run)
    on_gpu = standing(replace(cell, on_gpu=True), records.by_run)
    assert {run.round_seconds for run in on_cpu.wanted} == {3600}
    assert {run.round_seconds for run in on_gpu.wanted} == {1}


@pytest.mark.parametrize("others", [False, True])
def test_missing_data_are_said_once_before_anything_runs(
    tiny: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: bool
) -> None:
    """Both cells need the data set; with a third one, which needs none, that one runs all the same."""
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "nowhere"))
    text = TINY.replace('dataset = "digits"\n', 'dataset = "femnist"\n').replace("num-clients = 4\n", "")
    if others:
        text += (
            '[cells.free]\nsetting = "B = 2"\nunquoted = "no"\nkeys = {dataset = "digits", num-clients = 4}\n'
        )
    tiny.write_text(text, "utf-8")
    shown = CliRunner().invoke(app, ["reproduce", str(tiny), "--runs-dir", str(tmp_path / "runs")])
    assert isinstance(shown.exception, DataError)
    words = shown.output + str(shown.exception)
    assert words.count(str(tmp_path / "nowhere" / "femnist")) == 1
    assert {keys["dataset"] for keys in started} == ({"digits"} if others else set())
    assert ("2 of 3 cells" in words) == others


def test_a_run_of_another_process_is_left_to_it(tiny: Path, started: list[dict[str, Any]]) -> None:
    table = read_table(str(tiny))
    name = folder_name(table.cells["big"].keys_of(0.1, RunSeed(1)))
    with locked(tiny.parent / "runs" / work.CLAIMS / name):
        left = worked(tiny)
    assert not tried(started, 10)
    assert len(tried(started, 5)) == 6
    assert left.busy == 1
    assert not left.over_budget


@pytest.mark.parametrize("result", [{"stopped": "by the user"}, {"rounds": None}])
def test_a_result_of_a_stopped_run_is_none_and_a_damaged_one_is_named(
    result: dict[str, Any], tiny: Path, started: list[dict[str, Any]]
) -> None:
    tiny.write_text(TINY.replace('"rounds"', '"accuracy"').replace("target-accuracy = 0.9\n", ""), "utf-8")
    worked(tiny)
    (tiny.parent / RESULTS).unlink()
    path = tiny.parent / "runs" / started[-1]["run-name"] / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | result), "utf-8")
    before = len(started)
    if "stopped" not in result:
        with pytest.raises(StateError, match=r'result.json: key "rounds": expected a number.*Delete the run'):
            worked(tiny)
        return
    worked(tiny)
    assert [(k["run-name"], k["resume"]) for k in started[before:]] == [(path.parent.name, True)]


def test_a_failed_run_is_reported_and_the_others_go_on(
    tiny: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = pool.one_run

    def fail(keys: dict[str, Any], nodes: int, log: Path) -> Any:
        if keys.get("batch-size") != 5:
            return right(keys, nodes, log)  # type: ignore[func-returns-value]
        log.write_text("error: no data\n")
        return 1

    monkeypatch.setattr(pool, "one_run", fail)
    left = worked(tiny)
    assert list(left.failed.values()) == ["no data"]
    assert len(tried(started, 10)) == 6


@pytest.mark.full
@pytest.mark.system
def test_killed_and_started_again(tmp_path: Path) -> None:
    path = tmp_path / "digits.toml"
    rounds = ("num-server-rounds = 20\ntarget-accuracy = 0.9", "num-server-rounds = 80")
    text = TINY.replace(*rounds).replace('"rounds"', '"accuracy"').replace("[0.01, 0.1, 1.0, 10.0]", "[0.1]")
    path.write_text(text.replace("[1, 2, 3]", "[1, 2]").replace("round-seconds = 3600", "round-seconds = 30"))
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "server_app.cli.main", "reproduce", str(path), "--runs-dir", str(runs)]

    def lines() -> list[RunRecord]:
        return list(RunRecords(tmp_path / RESULTS).by_run.values())

    def at_work() -> list[Path]:
        found = [p.parent for p in runs.glob("*/rounds.jsonl") if p.read_bytes().count(b"\n") > 20]
        return [p for p in found if any((p / "checkpoint").iterdir()) and not (p / "result.json").exists()]

    with subprocess.Popen([*command, "--nodes", "1"], stderr=subprocess.DEVNULL) as first:
        try:
            until = time.monotonic() + 240
            while not (lines() and at_work()):
                assert first.poll() is None
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            os.kill(first.pid, signal.SIGKILL)
    done, begun = lines(), at_work()
    again = subprocess.run([*command, "--jobs", "2"], capture_output=True, text=True, timeout=240, check=True)
    assert "goes on" in again.stderr
    assert all(json.loads((p / "config.json").read_text())["resumed"] for p in begun)
    after = {record.run: record for record in lines()}
    assert len(after) == 4
    assert all(after[record.run] == record for record in done)
    assert [row.status for row in rows_of(read_table(str(path)))] == ["full", "full"]
    assert (runs / "digits.html").exists()
    assert "| `big` |" in (runs / "digits.md").read_text()


# what a cell counts, and which runs are one


def test_rounds_to_the_target_by_hand() -> None:
    accuracies = [0.10, 0.60, 0.55, 0.80]  # running maximum 0.10, 0.60, 0.60, 0.80
    rows = [{"round": i, "accuracy": a} for i, a in enumerate(accuracies)]
    assert values_of(summarise(rows, [], {"target-accuracy": 0.7}), 0.7)["rounds"] == pytest.approx(2.5)
    assert values_of(summarise(rows, [], {"target-accuracy": 0.9}), 0.9) == {
        "accuracy": 80.0,
        "best-accuracy": 80.0,
    }


def test_clients_are_counted_in_points() -> None:
    found = values_of({"clients": {"mean": 0.5, "worst_decile": 0.25, "std": 0.2}}, 0)
    assert found == {"clients-mean": 50, "clients-worst": 25, "clients-variance": pytest.approx(400)}


@pytest.mark.parametrize(
    ("losses", "last"),
    [
        ({0: 2.0, 5: 1.0, 10: 1.5, 15: 2.0, 20: 2.1}, 20),  # 1 above round 5, and not more
        ({0: 2.0, 5: 1.0, 10: 1.5, 15: 2.01, 20: 0.5}, 15),  # diverges within ten rounds
        ({0: 1.0, 5: 2.5, 10: 1.2, 15: 1.2}, 15),  # before round 10 there is no f_{t-10}
        ({0: 2.0, 3: 1.0, 6: 1.0, 9: 2.5, 12: 2.5, 15: 0.5}, 12),  # round 2 was not evaluated, round 3 was
        ({0: 2.0, 5: 1.0, 10: 1.0, 15: 1.0}, 15),  # rounds that are not neighbours show no convergence
        ({0: 2.0, 1: 1.0, 2: 0.99991, 3: 0.5}, 2),  # converges
        ({0: 2.0, 1: 1.0, 2: math.inf, 3: 0.5}, 2),  # diverges beyond what is a number
    ],
)
def test_where_fedprox_ends_a_comparison(losses: dict[int, float], last: int) -> None:
    rows = [{"round": t, "loss": loss, "accuracy": t / 100} for t, loss in losses.items()]
    rows.insert(1, {"round": next(t for t in range(1, 9) if t not in losses)})  # one that was not evaluated
    assert counted_accuracy(rows) == pytest.approx(last)
    assert values_of({}, 0, rows)["counted-accuracy"] == pytest.approx(last)
    assert counted_accuracy(rows[1:2]) is None


def test_which_runs_are_one() -> None:
    keys = {"dataset": "digits", "seed": 1, "learning-rate": 0.1, "num-server-rounds": 20}
    target = keys | {"target-accuracy": 0.9}
    assert run_id(target) == run_id(target | {"num-server-rounds": 99})  # a limit
    assert run_id(keys) != run_id(keys | {"num-server-rounds": 99})  # what is asked for
    assert run_id(keys) == run_id(keys | {"checkpoint-every": 7, "runs-dir": "x"})
    different = [{"seed": 2}, {"learning-rate": 0.2}, {"target-accuracy": 0.8}, {"batch-size": 5}]
    assert len({run_id(target), *(run_id(target | one) for one in different)}) == 5
    for more in HORIZONS:
        assert run_id({**target, **more}) != run_id({**target, **more, "num-server-rounds": 99})


# claims


def with_results(tiny: Path, **values: list[float]) -> PublishedTable:
    """Write results of the table's cells, one a seed at the one learning rate."""
    table = read_table(str(tiny))
    records = RunRecords(results_of(tiny))
    for name, of_seeds in values.items():
        for seed, value in enumerate(of_seeds, start=1):
            records.add(measured(table, name, seed, 0.1, values={"rounds": value}))
    return table


@pytest.mark.parametrize(
    ("claim", "big", "small", "words"),
    [
        ('of = "ratio"\nlow = 2', [2, 4, 6], [10, 11, 12], "holds: 2.75"),  # 11 / 4
        ('of = "ratio"\nlow = 3', [2, 4, 6], [10, 11, 12], "does not hold (below 3): 2.75"),
        ('of = "ratio"\nlow = 1\nhigh = 2', [2, 4, 6], [10, 11, 12], "does not hold (above 2): 2.75"),
        ('of = "ratio"\nlow = 2', [2, 4, 6], [10], "holds: 2.5; 1 of 2 cells lack seeds"),
        ('of = "ratio"\nlow = 2', [2], [], "open: 1 of 2 cells have no value"),
        ('of = "difference"\nhigh = -6', [2, 4, 6], [10, 11, 12], "holds: -7"),
        ('of = "over-best"\nhigh = 0.3', [2, 4, 6], [10, 11, 12], "does not hold (above 0.3): 0.364"),
        ('of = "over-best"\nhigh = 0.3', [2, 4, 6], [0, 0, 0], "open: a mean is 0"),
        ('of = "ratio"\nlow = 2', [0, 0, 0], [10, 11, 12], "open: a mean is 0"),
        ('of = "difference"\nhigh = -6', [0, 0, 0], [10, 11, 12], "holds: -11"),
    ],
)
def test_verdicts_by_hand(tiny: Path, claim: str, big: list[float], small: list[float], words: str) -> None:
    text = TINY.replace("[0.01, 0.1, 1.0, 10.0]", "[0.1]")
    says = 'says = "fewer"\nwhere = "abstract"\ncells = ["big"]\nbase = ["small"]'
    tiny.write_text(f"{text}\n[claims.fewer]\n{says}\n{claim}\n", "utf-8")
    table = with_results(tiny, big=big, small=small)
    assert verdict(table.claims[0], rows_of(table)) == words


# tables

AT_CLIENTS = 'published = 8\nmetric = "clients-mean"\nkeys = {target-accuracy = 0.0}'
CLAIM = (
    """[claims.x]\nsays = "y"\nwhere = "z"\nof = "over-best"\n{}\nbase = [{}]\ncells = [{}]\n[cells.big]"""
)


@pytest.mark.parametrize("name", sorted(tables()))
def test_bundled_tables_are_valid_and_their_results_are_of_todays_cells(name: str) -> None:
    table = read_table(name)
    for record in RunRecords(results_of(table.path)).by_run.values():
        if record.table == name:
            seed = RunSeed(record.seed, record.data_seed)
            keys = table.cells[record.cell].keys_of(record.learning_rate, seed)
            assert run_id(keys) == record.run, f"{record.cell}: a setting changed; run it again"


@pytest.mark.parametrize(
    ("change", "into", "said"),
    [
        ('metric = "rounds"', 'metric = "round"', 'cell big: key "metric".*Did you mean "rounds"'),
        ("published = 8", "publisher = 8", 'cell big: key "publisher".*Did you mean "published"'),
        ("published = 8", 'published = "8"', 'cell big: key "published": expected int or float'),
        ("published = 8", "", 'cell big: expected "published".*got neither'),
        ("start = 0.1", 'start = 0.1\nspeed-up-over = "bog"', 'cell big: key "speed-up-over".*got "bog"'),
        ("start = 0.1", "start = 0.2", 'cell big: key "start": expected one of the learning-rates; got 0.2'),
        ("[0.01, 0.1, 1.0, 10.0]", "[1.0, 0.1]", 'key "learning-rates": expected rising numbers'),
        ("[1, 2, 3]", "[1, 1]", 'key "seeds": expected finite numbers, each once'),
        ("[1, 2, 3]", "[true]", 'key "seeds": expected an array of int'),
        ("batch-size = 5", "batch-sise = 5", 'cell small.*"batch-sise"'),
        ("batch-size = 5", "seed = 5", 'cell small: key "keys.seed": the command sets it'),
        ("batch-size = 5", "fedprox.mu = 5.0", "cell small.*nothing in this run reads it"),
        ("target-accuracy = 0.9", "", 'key "keys.target-accuracy": expected the target'),
        ("num-clients = 4", "num-clients = 4\nfedprox.mu = 1.0", 'key "keys.fedprox.mu".*no cell reads it'),
        ('title = "A tiny table"', "", 'key "title": expected it at the top'),
        ("round-seconds = 3600", "round-seconds = 0", 'key "round-seconds": expected a finite number > 0'),
        ("round-seconds = 3600", "round-seconds = inf", 'key "round-seconds": expected a finite number > 0'),
        ("published = 8", "published = 0", 'cell big: key "published": expected a finite number > 0; got 0'),
        ("published = 8", "published = 8\npublished-sd = -1", 'key "published-sd": expected a finite'),
        ("published = 8", "published = 8\npublished-sd = nan", 'key "published-sd": expected a finite'),
        ("published = 8", f"published = 1{'0' * 400}", 'cell big: key "published": expected a finite'),
        ("[1, 2, 3]", "[1, -2]", r'cell big: key "seeds": expected numbers >= 0; got \[1, -2\]'),
        ("[1, 2, 3]", "[1]\ndata-seeds = [-1]", 'cell big: key "data-seeds": expected numbers >= 0'),
        ("start = 0.1", 'start = 0.1\nrecipe = "x"', 'cell big: key "recipe": expected one of'),
        ("published = 8", AT_CLIENTS, 'cell big: key "keys.fraction-evaluate": expected > 0'),
        ("[cells.big]", CLAIM.format("high = 1", "", '"big"'), 'claim x: key "base": expected one cell'),
        ("[cells.big]", CLAIM.format("high = 1", '["big"]', '"big"'), 'claim x: keys "cells" and "base"'),
        ("[cells.big]", CLAIM.format("high = nan", '"small"', '"big"'), 'claim x: key "high": expected'),
        ("[cells.big]", CLAIM.format("high = 1\nlow = 2", '"small"', '"big"'), 'x: key "low": expected at'),
        ("start = 0.1", 'start = 0.1\ngrid = "line"', 'key "grid": expected one of full, walk'),
        ("[cells.big]", '[claims.x]\nsays = "y"\n[cells.big]', 'claim x: key "where": expected it'),
    ],
)
def test_mistakes_in_a_table(tiny: Path, change: str, into: str, said: str) -> None:
    assert change in TINY
    tiny.write_text(TINY.replace(change, into, 1), "utf-8")
    with pytest.raises(ConfigError, match=f"(?s)tiny.toml.*{said}"):
        read_table(str(tiny))


def test_a_table_that_is_not_in_utf_8(tiny: Path) -> None:
    tiny.write_bytes(TINY.replace("tiny table", "täble").encode("latin-1"))
    with pytest.raises(ConfigError, match=r"tiny.toml: not a TOML file"):
        read_table(str(tiny))


def extending(tiny: Path, text: str) -> PublishedTable:
    path = tiny.with_name("more.toml")
    path.write_text('extends = "tiny"\n' + text, "utf-8")
    return read_table(str(path))


def test_a_table_that_extends_another_has_its_cells_but_for_what_it_sets_itself(tiny: Path) -> None:
    text = TINY.replace("published = 8", "published = 8\nstart = 0.01\nkeys = {size-skew = 2.0}", 1)
    text = text.replace("published = 4", "published = 4\nstart = 0.01", 1)
    tiny.write_text(text.replace("num-clients", 'partition = "quantity"\nnum-clients', 1), "utf-8")
    own = 'title = "Another"\nkeys.pixels = "centred"\nstart = 1.0\n'
    base, table = (
        read_table(str(tiny)),
        extending(tiny, own + "[cells]\nbig.keys.batch-size = 2\nbig.start = 10.0"),
    )
    assert (table.name, table.title, table.paper) == ("more", "Another", base.paper)
    assert list(table.cells) == ["big", "small"]
    big, small = table.cells["big"], table.cells["small"]
    assert big.keys == {**base.cells["big"].keys, "pixels": "centred", "batch-size": 2}
    assert small.keys == {**base.cells["small"].keys, "pixels": "centred"}
    assert (big.start, small.start, base.cells["big"].start) == (10.0, 1.0, 0.01)
    assert (big.published, small.published, small.where) == (8, 4, "Table 7")
    assert run_id(small.keys_of(0.1, RunSeed(1))) != run_id(base.cells["small"].keys_of(0.1, RunSeed(1)))


def test_mistakes_in_a_table_that_extends_another(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"more.toml: .cells.NAME. of \"tiny\".*Did you mean \"big\""):
        extending(tiny, "[cells]\nbigg.start = 10.0")
    extending(tiny, 'title = "Another"')
    for base in ("more", "nothing", "sub/tiny", ""):
        path = tiny.with_name("third.toml")
        path.write_text(f'extends = "{base}"', "utf-8")
        with pytest.raises(ConfigError, match=rf'third.toml: key "extends": expected a table.*got "{base}"'):
            read_table(str(path))


def test_a_table_that_extends_another_sets_keys_of_its_cells_and_joins_its_claims(tiny: Path) -> None:
    claims = "".join(CLAIM.replace("x]", name).format("low = 1", '"small"', '"big"') for name in ("x]", "y]"))
    tiny.write_text(TINY.replace("[cells.big]", claims.replace("[cells.big]", "") + "[cells.big]"), "utf-8")
    table = extending(tiny, "keys.batch-size = 7\n[claims.x]\nlow = 3\n")
    assert [cell.keys["batch-size"] for cell in table.cells.values()] == [7, 7]
    assert [claim.low for claim in table.claims] == [3, 1]
    assert [claim.says for claim in table.claims] == ["y", "y"]


def test_a_mistake_in_the_table_that_another_extends_is_named_there(tiny: Path) -> None:
    tiny.write_text(TINY.replace("published = 4", "published = nan"), "utf-8")
    with pytest.raises(ConfigError, match=r'tiny.toml, cell small: key "published"'):
        extending(tiny, "start = 1.0")


@pytest.mark.parametrize(("fault", "code"), [(KeyboardInterrupt(), 130), (ConfigError("no data"), 1)])
def test_a_queue_that_ends_early_leaves_its_page(
    fault: BaseException, code: int, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(self: TableQueue, budget_s: float) -> Remaining:
        raise fault

    monkeypatch.setattr(TableQueue, "work", end)
    runs = tiny.parent / "runs"
    done = CliRunner().invoke(app, ["reproduce", str(tiny), "--runs-dir", str(runs)])
    assert done.exit_code == code
    assert "| `big` | B = 10 |" in (runs / "tiny.md").read_text("utf-8")


def row(cell: str, output: str) -> list[str]:
    """Return the texts of a cell's row in a table of a terminal."""
    line = next(line for line in output.splitlines() if line.startswith(f"{cell} "))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_recorded_cells_are_measured_once_more_and_compared(
    tiny: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    words = ["reproduce", str(tiny), "--cells", "big", "--runs-dir", str(tiny.parent / "runs")]
    none = CliRunner().invoke(app, [*words, "--again"])
    assert "of which none has its learning rates measured" in str(none.exception)
    assert "1 cell to measure" in CliRunner().invoke(app, words).output
    assert (
        "nothing runs: to measure and compare once more, use --again" in CliRunner().invoke(app, words).output
    )
    results, rates = results_of(tiny), RunRecords(results_of(tiny)).by_run
    best = standing(read_table(str(tiny)).cells["big"], rates).rate
    before = results.read_bytes()
    started.clear()
    same = CliRunner().invoke(app, [*words, "--again"]).output
    assert [(k["learning-rate"], k["seed"]) for k in started] == [(best, seed) for seed in (1, 2, 3)]
    assert same.count(": the same model, to the bit") == 3
    assert results.read_bytes() == before
    assert row("big", same) == ["8", "8.0 ± 4.0", "8.0 ± 4.0", "+0 %", "same bits in 3 of 3 seeds"]
    done = tiny.parent / "runs" / "again"
    again = CliRunner().invoke(app, [*words, "--again"]).output
    assert f"to measure and compare once more, delete {done}" in again
    other = RunRecords(results)
    for record in list(other.by_run.values()):
        other.add(replace(record, model_sha256="0" * 64, machine="another"))
    third = CliRunner().invoke(app, [*words, "--again"]).output
    assert row("big", third)[-1] == "same bits in 0 of 3 seeds"
    here = record.machine
    assert third.count(f": other bits than on another; this machine is {here}: ") == 3
    assert f"results: {done / RESULTS}" in third
    further = CliRunner().invoke(app, [*words, "--again", "--seeds", "9"]).output
    assert "seed 9" in further
    assert "no record to compare with" in further
    assert row("big", further) == ["8", "8.0 ± 4.0", ">20", "no record of 1 seed"]


def test_rounds_of_many_runs_stay_on_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run = standing(read_table(str(tiny)).cells["big"], {}).wanted[0]
    shown = Announcements()
    for rounds in ([7], [7], [8, 9, 10]):
        shown.looked([(run, round_) for round_ in rounds])
    lines = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert lines == ["  round 7 of at most 20 (0:00:00)", "  round 8 of at most 20 (0:00:00), roun"]


def test_a_round_of_a_minute_shows_that_it_runs(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing moved for 40 seconds between two rounds."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    now = [100.0]
    monkeypatch.setattr("server_app.extras.reproduce.announce.time.monotonic", lambda: now[0])
    run = standing(read_table(str(tiny)).cells["big"], {}).wanted[0]
    shown = Announcements()
    for round_, after in ((7, 0.0), (7, 0.5), (7, 41.0), (8, 1.0)):
        now[0] += after
        shown.looked([(run, round_)])
    lines = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert [line[-9:] for line in lines] == ["(0:00:00)", "(0:00:42)", "(0:00:00)"]


def test_mistakes_on_the_command_line(tiny: Path) -> None:
    def error(*words: str) -> str:
        return str(CliRunner().invoke(app, ["reproduce", *words]).exception)

    assert 'Did you mean "mcmahan-table3"' in error("mcmahan-tabel3")
    assert "A table of your own is a file that ends in .toml" in error("digits")
    assert "--cells: got 'bog'. Did you mean \"big\"? Expected one of big, small" in error(
        str(tiny), "--cells", "bog", "--list"
    )
    assert "--seeds: expected different whole numbers" in error(str(tiny), "--seeds", "1,1")
    for text in ("2", "h", "2 weeks", "-1h"):
        assert "--budget: expected a number and s, min, h or d" in error(str(tiny), "--budget", text)
    assert [seconds_of(text) for text in ("90min", "2h", "0", "1.5 d")] == [5400, 7200, 0, 129600]


def test_the_list_says_how_far_each_table_and_cell_is(tiny: Path) -> None:
    lines = CliRunner().invoke(app, ["reproduce", str(tiny), "--list"]).stdout.splitlines()
    assert lines[0].startswith("tiny: 2 cells: 0 full, 0 a fraction, 2 not run;")
    assert [line.split()[0] for line in lines if "not run  " in line] == ["big", "small"]
    listed = CliRunner().invoke(app, ["reproduce", str(tiny), "--cells", "big", "--list"]).stdout
    assert listed.startswith("tiny: 1 cell: 0 full")


def in_seconds(table: Path) -> None:
    """Have each recorded run take a second a round."""
    records = RunRecords(results_of(table))
    for record in list(records.by_run.values()):
        records.add(replace(record, hours=record.rounds / 3600))


def test_a_list_within_a_budget_has_what_takes_no_longer(
    tiny: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`big` has 24 rounds of a second, `small` as many, `free` is estimated at 20 hours."""
    worked(tiny)
    in_seconds(tiny)
    free = '[cells.free]\nsetting = "B = 2"\nunquoted = "no"\nkeys = {batch-size = 2}\n'
    tiny.write_text(TINY + free + "seeds = [1]\nlearning-rates = [0.1]\n")
    monkeypatch.setenv("COLUMNS", "150")

    def listed(*more: str) -> list[str]:
        return CliRunner().invoke(app, ["reproduce", str(tiny), "--list", *more]).output.splitlines()

    def names(*more: str) -> list[str]:
        return [line.split()[0] for line in listed(*more)[2:-1]]

    assert names() == ["big", "small", "free"]
    assert row("big", "\n".join(listed()))[-1] == "24.0 s again"
    assert row("free", "\n".join(listed()))[-1] == "20:00:00 left"
    assert names("--budget", "20.5h") == ["big", "small", "free"]
    assert listed("--budget", "1h")[0] == "tiny: 2 of 3 cells in at most 1:00:00"
    assert names("--budget", "1h") == names("--quoted") == ["big", "small"]
    assert names("--budget", "24s", "--cells", "big", "--again") == ["big"]
    assert listed("--budget", "23s") == ["0 of 3 cells in at most 23.0 s"]
    assert listed("--again")[0] == "1 of 3 cells have no results yet: left out"
    none = CliRunner().invoke(app, ["reproduce", str(tiny), "--cells", "free", "--quoted"])
    assert "--quoted: expected a cell with a value of its paper; got 1 without" in str(none.exception)


def test_what_is_listed_within_a_budget_is_measured_within_it(
    tiny: Path, started: list[dict[str, Any]]
) -> None:
    """Not at the 20 rounds that a run may have, 60 seconds."""
    tiny.write_text(TINY.replace("published = 8", 'unquoted = "no"'), "utf-8")
    worked(tiny)
    in_seconds(tiny)
    started.clear()
    words = ["reproduce", str(tiny), "--cells", "big", "--again", "--budget", "24s"]
    assert "1 of 1 cell in" in CliRunner().invoke(app, [*words, "--list"]).output
    del words[-1]
    words += ["11s"]  # no run takes longer
    CliRunner().invoke(app, [*words, "--runs-dir", str(tiny.parent / "runs")])
    assert [keys["seed"] for keys in started] == [1, 2, 3]


def test_the_list_says_what_a_measured_cell_took_and_which_cannot_run(
    tiny: Path, started: list[dict[str, Any]]
) -> None:
    """Of 8 rounds each, at the median of 45, 13.5 and 600 s: a run that took long may have waited."""
    worked(tiny)
    results = RunRecords(results_of(tiny))
    at = standing(read_table(str(tiny)).cells["big"], results.by_run)
    for record, hours in zip(at.by_seed.values(), (0.05, 0.03, 2.0), strict=True):
        results.add(replace(record, hours=hours))
    lacks = '[cells.lacks]\nsetting = "B = 2"\nunquoted = "no"\nneeds = "LEAF"\nkeys = {batch-size = 2}\n'
    tiny.write_text(TINY + lacks)
    lines = (
        CliRunner()
        .invoke(app, ["reproduce", str(tiny), "--list"], env={"COLUMNS": "150"})
        .stdout.splitlines()
    )
    assert next(line for line in lines if line.startswith("big ")).rstrip().endswith(" 0:18:00 again")
    assert next(line for line in lines if line.startswith("lacks ")).rstrip().endswith("cannot run here")
    assert lines[0] == "tiny: 3 cells: 2 full, 0 a fraction, 1 not run; 1 need what is absent."


@pytest.mark.parametrize(
    "change", [{"run": ["x"]}, {"values": None}, {"values": {"rounds": "8"}}, {"hours": None}, {"more": 1}]
)
def test_a_damaged_results_file_names_the_line(tiny: Path, change: dict[str, Any]) -> None:
    table = read_table(str(tiny))
    right = asdict(measured(table, "big", 1, 0.1))
    (tiny.parent / RESULTS).write_text(f"{json.dumps(right)}\n{json.dumps(right | change)}\n")
    with pytest.raises(StateError, match=rf"results.jsonl, line 2: damaged.*{next(iter(change))}"):
        rows_of(table)


def test_a_record_is_written_whole_or_not_at_all(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, path = read_table(str(tiny)), results_of(tiny)
    first, second = (measured(table, "big", seed, 0.1) for seed in (1, 2))
    path.write_text(json.dumps(asdict(first)))  # edited: without a newline at the end
    records = RunRecords(path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StateError, match=rf"{RESULTS}: expected to write .*No space left.*same command"):
            records.add(second)
    assert RunRecords(path).by_run == {first.run: first}
    assert records.add(second)
    assert not records.add(second)
    assert list(RunRecords(path).by_run.values()) == [first, second]
    monkeypatch.setattr("server_app.extras.reproduce.records.LOCK_WAIT_S", 0.0)
    with locked(path), pytest.raises(StateError, match=rf"{RESULTS}: .*another process holds it"):
        records.add(first)


# pages


def measured(table: PublishedTable, cell: str, seed: int, rate: float, **more: Any) -> RunRecord:
    keys = table.cells[cell].keys_of(rate, RunSeed(seed))
    given = {"rounds": 20, "ended_by": "num-server-rounds", "values": {}, **more}
    return RunRecord(
        run_id(keys), table.name, cell, rate, seed, model_sha256="ab" * 32, hours=0.5,
        machine="a machine", date="2026-11-24", version="1", commit="c0ffee", **given,
    )  # fmt: skip


def test_a_speed_up_stands_behind_both_values(tiny: Path) -> None:
    """Published: 8 rounds to 4; ours: 9 to 6. Without a value of the base there is none of ours."""
    tiny.write_text(TINY.replace("[1, 2, 3]", "[1]") + 'speed-up-over = "big"\n', "utf-8")
    table, records = read_table(str(tiny)), RunRecords(results_of(tiny))

    def shown() -> tuple[str, str]:
        row = rows_of(table)[1]
        return row.published, row.ours

    def add(cell: str, rounds: float) -> None:
        for rate in (0.01, 0.1, 1.0):  # the walk ends at 0.1
            more = 0.0 if rate == 0.1 else 1.0
            records.add(measured(table, cell, 1, rate, values={"rounds": rounds + more}))

    add("small", 6.0)
    assert shown() == ("4 (2x)", "6.0")
    add("big", 9.0)
    assert shown() == ("4 (2x)", "6.0 (1.5x)")
    assert "x)" not in rows_of(table)[0].published


def test_a_page_has_ours_beside_theirs(tiny: Path) -> None:
    text = TINY.replace('metric = "rounds"', 'metric = "accuracy"').replace("target-accuracy = 0.9\n", "")
    text = text.replace("published = 8", "published = 91\npublished-sd = 0.5")
    text = text.replace("[0.01, 0.1, 1.0, 10.0]", "[0.1]")
    text += 'fraction = "a tenth | of it"\n'
    text += '[cells.none]\nsetting = "B = 2"\nunquoted = "a dash there"\nneeds = "data"\n'
    text += "keys = {batch-size = 2}\n"
    text = text.replace('setting = "B = 10"', 'setting = """B =\n10"""')
    text += '[claims.more]\nsays = "big | better"\nwhere = "abstract"\nof = "difference"\n'
    text += 'cells = ["big"]\nbase = ["small"]\nlow = 0\n'
    tiny.write_text(text, "utf-8")
    table = read_table(str(tiny))
    rows = rows_of(table)
    assert [row.status for row in rows] == ["not run", "not run", "not run: data"]
    assert "open: 2 of 2 cells have no value" in markdown(table, rows)
    records = RunRecords(tiny.parent / RESULTS)
    for seed, value in ((1, 90.0), (2, 92.0), (3, 94.0)):
        records.add(measured(table, "big", seed, 0.1, values={"accuracy": value}))
    records.add(measured(table, "small", 1, 0.1, values={"accuracy": 80.0}))
    rows = rows_of(table)
    assert (rows[0].published, rows[0].ours) == ("91.00 ± 0.50", "92.00 ± 2.00")
    assert rows[0].difference == "+1.00 (+2.0 sd)"
    assert rows[0].time == "1:30:00"
    assert [row.status for row in rows[:2]] == ["full", "fraction (a tenth | of it; 1 of 3 seeds)"]
    page = markdown(table, rows)
    assert "3 cells: 1 full, 1 a fraction, 1 not run" in page
    assert "a tenth \\| of it" in page
    assert "Not quoted for none: a dash there." in page
    assert notes(rows[2:])[1] == "Nothing is quoted: a dash there."
    assert "| `big` | B = 10 | 91.00 ± 0.50 |" in page
    assert "| big \\| better | abstract | holds: 12; 1 of 2 cells lack seeds |" in page
    html = as_html(table, rows)
    assert all(f">{word}</td>" in html for word in ("92.00 ± 2.00", "+1.00 (+2.0 sd)", "full"))


def test_a_run_without_the_value_is_said_and_its_cell_a_fraction(tiny: Path) -> None:
    text = TINY.replace('"rounds"', '"loss"').replace("target-accuracy = 0.9\n", "")
    tiny.write_text(text.replace("[0.01, 0.1, 1.0, 10.0]", "[0.1]"), "utf-8")
    table, records = read_table(str(tiny)), RunRecords(tiny.parent / RESULTS)
    for cell, seed, values in (("big", 1, {"loss": 1.0}), ("big", 2, {}), ("big", 3, {}), ("small", 1, {})):
        records.add(measured(table, cell, seed, 0.1, values=values))
    big, small = rows_of(table)
    assert (big.ours, small.ours) == ("none in 2 of 3 seeds", "none")
    assert big.status == "fraction (no value in 2 of 3 seeds)"


def test_runs_that_end_by_themselves_are_estimated_by_those_that_did(tiny: Path) -> None:
    """As where a budget is spent; `measured` takes half an hour."""
    text = TINY.replace("target-accuracy = 0.9\n", "").replace('"rounds"', '"loss"')
    tiny.write_text(text.replace("[0.01, 0.1, 1.0, 10.0]", "[0.1]"), "utf-8")
    table = read_table(str(tiny))
    for ended_by, hours in (("num-server-rounds", 2 * 20 * 0.5 / 4), ("adaptive-tau.budget", 2 * 0.5)):
        run = measured(table, "big", 1, 0.1, rounds=4, ended_by=ended_by, values={"loss": 1.0})
        assert standing(table.cells["big"], {run.run: run}).hours_left == pytest.approx(hours)


def test_a_list_has_whole_names_of_cells_however_narrow() -> None:
    listed = CliRunner().invoke(app, ["reproduce", "fedprox", "--list"], env={"COLUMNS": "80"})
    assert "synthetic-05-05-0-fedavg " in listed.output


def test_runs_that_cells_share_are_counted_once(tiny: Path) -> None:
    text = TINY.replace("target-accuracy = 0.9\n", "").replace('"rounds"', '"accuracy"')
    tiny.write_text(text, "utf-8")
    alone = counts(rows_of(read_table(str(tiny))))
    tiny.write_text(
        text + '[cells.loss]\nsetting = "B = 5"\nunquoted = "no"\nkeys = {batch-size = 5}\nmetric = "loss"\n'
    )
    assert counts(rows_of(read_table(str(tiny)))) == ["3", "0", "0", "3", alone[-1]]


def test_a_best_rate_at_the_edge_is_said(tiny: Path) -> None:
    table = read_table(str(tiny))
    runs = [
        measured(table, "big", 1, 0.1, values={"best-accuracy": 50.0}),
        measured(table, "big", 1, 0.01, values={"best-accuracy": 60.0}),
        measured(table, "big", 1, 1.0, values={"best-accuracy": 40.0}),
    ]
    at = standing(table.cells["big"], {record.run: record for record in runs})
    # No run reached the target, so the best accuracy decides, and every run has all rounds.
    assert at.rate == 0.01
    assert at.at_the_edge
    assert [(run.rate, run.seed.seed, run.rounds) for run in at.wanted] == [(0.01, 2, 20), (0.01, 3, 20)]
    assert asdict(runs[0])["values"] == {"best-accuracy": 50.0}
