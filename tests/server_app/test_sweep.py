"""Sweeps without processes: which runs there are, the queue on disk, the median rule, and the numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.results.folder import RunFolder
from server_app.results.groups import groups
from server_app.results.paired import paired_difference
from server_app.sweep.points import Plan, SweepPoint, plan, read_axes
from server_app.sweep.pool import PooledRun
from server_app.sweep.queue import FAILED, FINISHED, STOPPED, WAITING, SweepQueue, holding, open_queue
from server_app.sweep.report import curves, over_keys, write_page
from server_app.sweep.results import as_csv, best_words, differences, matched, outcome
from server_app.sweep.scheduler import Followed, Scheduler
from server_app.sweep.stopping import Curve, verdict
from task.errors import BouquetError, ConfigError, StateError


def planned(*options: str, recipe: str = "", **more: Any) -> Plan:
    axes, own = read_axes(recipe, options)
    return plan(axes, own, **more)


# which runs


def test_values_of_an_option() -> None:
    axes, own = read_axes(
        "", ['learning-rate=0.05,0.1,2 seed=1..3,7 algorithm="fedavg","moon" ala=true,false']
    )
    assert axes == {
        "learning-rate": [0.05, 0.1, 2],
        "seed": [1, 2, 3, 7],
        "algorithm": ["fedavg", "moon"],
        "ala": [True, False],
    }
    assert own == set(axes)
    # A comma or a space in quotes is part of a word.
    assert read_axes("", ['node-names="a,b" data-path="x y.csv"'])[0] == {
        "node-names": ["a,b"],
        "data-path": ["x y.csv"],
    }


def test_seeds_are_the_inner_axis_and_names_say_what_differs() -> None:
    found = planned('seed=1,2 learning-rate=0.05,0.1 algorithm="fedavg","scaffold" num-server-rounds=3')
    assert [p.name for p in found.points[:3]] == [
        "fedavg-learning-rate=0.05-seed=1",
        "fedavg-learning-rate=0.05-seed=2",
        "scaffold-learning-rate=0.05-seed=1",
    ]
    assert len(found.points) == 8
    assert all(p.keys["num-server-rounds"] == 3 for p in found.points)


def test_a_key_that_only_some_algorithms_read_is_left_out_of_the_others() -> None:
    found = planned('algorithm="fedavg","fedprox" fedprox.mu=0.1,0.5,1.0 seed=1,2')
    assert [p.name for p in found.points] == [
        "fedavg-seed=1",
        "fedavg-seed=2",
        "fedprox-fedprox.mu=0.1-seed=1",
        "fedprox-fedprox.mu=0.1-seed=2",
        "fedprox-fedprox.mu=0.5-seed=1",
        "fedprox-fedprox.mu=0.5-seed=2",
        "fedprox-fedprox.mu=1-seed=1",
        "fedprox-fedprox.mu=1-seed=2",
    ]
    assert "fedprox.mu is ignored in 6 of 12 combinations" in found.remarks[0]
    assert found.remarks[1] == "12 combinations are 8 different runs"


def test_a_key_that_no_run_reads_is_refused_unless_a_recipe_has_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'"fedprox\.mu": nothing in this run reads it'):
        planned("fedprox.mu=0.1,0.5")
    recipe = tmp_path / "own.toml"
    recipe.write_text("learning-rate = [0.1, 0.2]\n[fedprox]\nmu = 0.5\n")
    found = planned("seed=1,2", recipe=str(recipe))
    assert len(found.points) == 4
    assert "fedprox.mu" in found.remarks[0]


def test_a_list_of_runs_can_be_crossed_with_seeds(tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text(
        'local-epochs = 2\n[runs.plain]\nalgorithm = "fedavg"\n[runs.near]\nalgorithm = "fedprox"\n'
    )
    found = planned("seed=1,2", listed=str(listed))
    assert [p.name for p in found.points] == ["plain-seed=1", "plain-seed=2", "near-seed=1", "near-seed=2"]
    assert found.points[2].keys == {"local-epochs": 2, "algorithm": "fedprox", "seed": 1}


def test_a_draw_is_of_configurations_and_repeatable() -> None:
    grid = "learning-rate=0.01,0.02,0.05,0.1 batch-size=5,10,20 seed=1,2"
    drawn = planned(grid, draw=5, draw_seed=3)
    assert len(drawn.points) == 10
    whole = [p.name for p in planned(grid).points]
    assert [p.name for p in drawn.points] == [n for n in whole if n in {p.name for p in drawn.points}]
    assert drawn.points == planned(grid, draw=5, draw_seed=3).points
    assert drawn.points != planned(grid, draw=5, draw_seed=4).points
    assert len(planned(grid, draw=100).points) == 24


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("learning-rate=0.1,0", r'"learning-rate": expected float > 0'),  # the second run would fail
        ("algorithm=fedavg,moon", "a word in double quotes; got fedavg"),
        ("learning-rate=0.1, 0.2", "separated by commas without spaces"),
        ("seed=1 seed=2", "each key once; got seed twice"),
        ("learning-rate=0.1,", "expected values separated by commas"),
        ("seed=5..1", "a range FIRST..LAST"),
        ("seed=1,1", "expected each value once; got 1 more than once"),
        ('run-name="x","y"', "the sweep sets it"),
        ("learnin-rate=0.1,0.2", 'Did you mean "learning-rate"'),
        ("seed=1..1000 learning-rate=" + ",".join(map(str, range(1, 200))), "at most 100,000 runs"),
    ],
)
def test_every_combination_is_checked(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(option)


def test_runs_that_no_table_can_compare_are_told_before_they_run() -> None:
    assert "set fraction-evaluate=1.0 for all" in planned('algorithm="fedavg","ditto"').remarks[0]
    assert not planned('algorithm="fedavg","ditto" fraction-evaluate=1.0').remarks
    assert not planned('algorithm="fedper","ditto"').remarks


def test_names_that_a_folder_cannot_have_stay_apart() -> None:
    found = planned('data-path="a/b","a:b" dataset="csv"')
    assert [p.name for p in found.points] == ["data-path=a_b_1", "data-path=a_b_2"]


def test_a_dry_run_lists_the_runs_and_makes_no_folder(tmp_path: Path) -> None:
    line = ["sweep", "-c", "seed=1..3", "--runs-dir", str(tmp_path), "--dry-run"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0
    assert "seed=3" in done.output
    assert not list(tmp_path.iterdir())


# the queue


def finish(queue: SweepQueue, name: str, accuracies: list[float], *, over: bool = True, **keys: Any) -> None:
    """Write the result folder of a run with these accuracies from round 1 on."""
    entry = next(e for e in queue.entries if e.name == name)
    folder = RunFolder.create(queue.folder / name, {"run": {**entry.keys, **keys}}, resume=False)
    for t, accuracy in enumerate(accuracies, start=1):
        row = {"round": t, "accuracy": accuracy, "loss": 1 - accuracy, "bytes_up": 500, "bytes_down": 500}
        folder.append_round(row | {"seconds": {"total": 1.0}, "model_sha256": f"{name}{t}"})
    if over:
        folder.finish({"accuracy": accuracies[-1]}, {})


def test_the_queue_goes_on_with_what_is_not_finished(tmp_path: Path) -> None:
    points = planned("seed=1..4")
    queue, remarks = open_queue(tmp_path / "s", points, "bouquet sweep")
    assert remarks == []
    finish(queue, "seed=1", [0.5])
    finish(queue, "seed=2", [0.5], over=False)
    states = [FINISHED, "running", FAILED, STOPPED]
    for entry, state in zip(queue.entries, states, strict=True):
        entry.state, entry.error = state, "because"
    queue.save()
    again, remarks = open_queue(tmp_path / "s", None, "")
    # Killed and failed runs wait again; a run that was stopped stays so.
    assert [e.state for e in again.entries] == [FINISHED, WAITING, WAITING, STOPPED]
    assert remarks[-1].endswith("2 of 4 runs are done, 1 continue from a checkpoint")
    # A result that the queue had not yet heard of counts; one that is gone does not.
    finish(again, "seed=3", [0.5])
    (tmp_path / "s" / "seed=1" / "result.json").unlink()
    assert [e.state for e in open_queue(tmp_path / "s", points, "")[0].entries][:3] == [
        WAITING,
        WAITING,
        FINISHED,
    ]


def test_a_queue_can_be_extended_but_is_not_another_sweeps(tmp_path: Path) -> None:
    open_queue(tmp_path, planned("seed=1,2"), "")
    queue, remarks = open_queue(tmp_path, planned("seed=1..4"), "longer")
    assert remarks[0].startswith("2 new runs are added to the 2")
    assert [e.name for e in queue.entries] == [f"seed={i}" for i in range(1, 5)]
    with pytest.raises(ConfigError, match=r"holds another sweep.*got a sweep without seed=3"):
        open_queue(tmp_path, planned("seed=1,2"), "")
    with pytest.raises(ConfigError, match=r"holds another sweep.*other keys for seed=1"):
        open_queue(tmp_path, planned("seed=1..4 local-epochs=2"), "")


def test_folders_that_are_no_sweep_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected keys to sweep"):
        open_queue(tmp_path / "none", None, "")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"which has no sweep\.json"):
        open_queue(tmp_path / "run", planned("seed=1,2"), "")
    (tmp_path / "run" / "sweep.json").write_text('{"points": [')
    with pytest.raises(StateError, match="damaged"):
        open_queue(tmp_path / "run", planned("seed=1,2"), "")


def test_two_sweeps_on_one_folder_refuse_each_other(tmp_path: Path) -> None:
    with (
        holding(tmp_path / "s"),
        pytest.raises(BouquetError, match="no sweep uses"),
        holding(tmp_path / "s"),
    ):
        pass
    with holding(tmp_path / "s"):  # and it is free again
        pass


# the median rule


def curve(*accuracies: float, ended: bool = True) -> Curve:
    made = Curve(ended=ended)
    made.add([{"round": t, "accuracy": a} for t, a in enumerate(accuracies, start=1)])
    return made


def test_a_run_below_the_median_of_the_runs_before_it_is_hopeless() -> None:
    order = [(name, 1) for name in "abcd"]
    found = {"a": curve(0.5, 0.6), "b": curve(0.5, 0.8), "c": curve(0.6, 0.7)}
    # Best so far at round 2: 0.6, 0.8, 0.7; their median is 0.7.
    late = verdict("d", order, found | {"d": curve(0.1, 0.69, ended=False)}, warm_up=2)
    assert late is not None
    assert (late.round, late.value, late.median, late.peers) == (2, 0.69, 0.7, 3)
    assert verdict("d", order, found | {"d": curve(0.1, 0.7, ended=False)}, warm_up=2) is None
    # It was better before: the best so far counts, not the last.
    assert verdict("d", order, found | {"d": curve(0.75, 0.1, ended=False)}, warm_up=2) is None
    # From the first round on it would have been stopped there.
    early = verdict("d", order, found | {"d": curve(0.1, 0.9, ended=False)}, warm_up=1)
    assert early is not None
    assert early.round == 1


def test_the_verdict_does_not_depend_on_who_is_quicker() -> None:
    order = [(name, 1) for name in "abcd"]
    found = {"a": curve(0.5, 0.6), "b": curve(0.5, 0.8), "d": curve(0.1, 0.1, 0.1, ended=False)}
    # c is behind d: nothing is decided until it has got to round 2, or has ended.
    assert verdict("d", order, found | {"c": curve(0.6, ended=False)}, warm_up=2) is None
    decided = verdict("d", order, found | {"c": curve(0.6, 0.7, ended=False)}, warm_up=2)
    assert decided is not None
    assert decided.round == 2
    # One that was stopped at round 1 has no value at round 2: only two are left to compare with.
    assert verdict("d", order, found | {"c": curve(0.6)}, warm_up=2) is None
    # Later runs and those of other seeds do not count.
    assert verdict("a", order, found | {"a": curve(0.0, 0.0, ended=False)}, warm_up=1) is None
    assert verdict("d", [(n, i) for i, n in enumerate("abcd")], found, warm_up=1) is None


def test_rounds_that_a_resumed_run_does_again_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rounds up to its checkpoint are known; with the others in mind, no run waits for it."""
    queue, _ = open_queue(tmp_path / "grid", planned("seed=1,2"), "")
    monkeypatch.setattr("server_app.sweep.pool.Forks", object)
    scheduler = Scheduler(queue, 1, 1, warm_up=1)
    run, path = Followed(queue.entries[0]), queue.run(queue.entries[0]).path / "rounds.jsonl"
    scheduler.curves[run.entry.name] = Curve()
    path.parent.mkdir()
    for accuracies, best in (([0.1, 0.9, 0.2], {1: 0.1, 2: 0.9, 3: 0.9}), ([0.1], {1: 0.1})):
        rows = [{"round": t, "accuracy": a} for t, a in enumerate(accuracies, start=1)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        scheduler._follow(run)
        found = scheduler.curves[run.entry.name]
        assert (found.best, found.last) == (best, len(best))


def test_of_a_stopped_run_rounds_after_the_verdict_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many it did before it was killed depends on the machine."""
    queue, _ = open_queue(tmp_path / "grid", planned("seed=1,2"), "")
    monkeypatch.setattr("server_app.sweep.pool.Forks", object)
    scheduler, entry = Scheduler(queue, 1, 1, warm_up=1), queue.entries[0]
    entry.stopped_at = 2
    scheduler.curves[entry.name] = curve(0.1, 0.2, 0.9, ended=False)
    pooled = PooledRun(Followed(entry, stopped=True), queue.run(entry), tmp_path / "log")
    scheduler._over(pooled, -9)
    assert (entry.state, scheduler.curves[entry.name].best) == (STOPPED, {1: 0.1, 2: 0.2})


# the numbers


def test_a_paired_difference_by_hand() -> None:
    # 1, 2, 3: mean 2, deviation 1, t of two degrees of freedom at 97.5 % is 4.302653.
    found = paired_difference([1.0, 2.0, 3.0])
    assert found.mean == 2
    half = 4.302652730 / 3**0.5
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-6)
    with pytest.raises(ValueError, match="at least two pairs"):
        paired_difference([1.0])


@pytest.fixture
def swept(tmp_path: Path) -> SweepQueue:
    """Return a finished sweep: final accuracies by algorithm, rate and seed are chosen by hand."""
    points = planned('algorithm="fedavg","scaffold" learning-rate=0.1,0.2 seed=1..3')
    queue, _ = open_queue(tmp_path / "grid", points, "bouquet sweep ...")
    final = {
        "fedavg-learning-rate=0.1": [0.50, 0.52, 0.54],
        "fedavg-learning-rate=0.2": [0.60, 0.62, 0.64],
        "scaffold-learning-rate=0.1": [0.61, 0.64, 0.67],  # 11, 12, 13 points more than fedavg
        "scaffold-learning-rate=0.2": [0.30, 0.30, 0.30],
    }
    for name, values in final.items():
        for seed, value in enumerate(values, start=1):
            finish(queue, f"{name}-seed={seed}", [0.2, value])
    return open_queue(tmp_path / "grid", None, "")[0]


def test_the_best_configuration_and_its_lead(swept: SweepQueue) -> None:
    out = outcome(swept, None, 0.5)
    assert [line[:4] for line in out.lines] == [
        ["fedavg, learning-rate=0.1", "3", "2", "52.00 ± 2.00"],
        ["fedavg, learning-rate=0.2", "3", "2", "62.00 ± 2.00"],
        ["scaffold, learning-rate=0.1", "3", "2", "64.00 ± 3.00"],
        ["scaffold, learning-rate=0.2", "3", "2", "30.00 ± 0.00"],
    ]
    assert out.best == "scaffold, learning-rate=0.1"
    # Against the other algorithm's best: 1, 2, 3 points.
    ((rival, difference),) = differences(out)
    assert rival == "fedavg, learning-rate=0.2"
    assert difference.mean == pytest.approx(2)
    assert difference.low == pytest.approx(2 - 4.302652730 / 3**0.5)
    assert "+2.00 points over 3 paired seeds" in best_words(out)[1]
    assert "which includes 0" in best_words(out)[1]
    pairs = {(pair, keys): d.mean for pair, keys, d in matched(out)}
    assert pairs == {
        ("fedavg minus scaffold", "learning-rate=0.1"): pytest.approx(-12),
        ("fedavg minus scaffold", "learning-rate=0.2"): pytest.approx(32),
    }


def test_without_accuracies_the_losses_decide(swept: SweepQueue) -> None:
    for path in swept.folder.glob("*/rounds.jsonl"):
        rows = [json.loads(line) | {"accuracy": None} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = outcome(swept, None, 0.5)  # the loss is 1 - accuracy: the same order
    assert (out.metric, out.best) == ("loss", "scaffold, learning-rate=0.1")
    assert out.header == ["run", "seeds", "rounds", "final loss", "lowest loss"]
    assert best_words(out)[0].endswith("final loss 0.3600 ± 0.0300, 3 seeds.")
    assert differences(out)[0][1].mean == pytest.approx(-0.02)
    made = Curve()
    made.add([{"round": 1, "loss": 2.0}, {"round": 2, "loss": 3.0}])
    assert made.best == {1: -2.0, 2: -2.0}
    write_page(swept, out)


def test_a_stopped_run_is_in_the_table_and_not_the_best(swept: SweepQueue) -> None:
    entry = next(e for e in swept.entries if e.name == "scaffold-learning-rate=0.1-seed=3")
    entry.state, entry.stopped_at, entry.error = STOPPED, 2, "best 0.67"
    swept.entries[0].state, swept.entries[0].error = FAILED, "no such file"
    out = outcome(swept, None, 0.5)
    assert out.best == "fedavg, learning-rate=0.2"
    assert any("1 runs were stopped" in remark for remark in out.remarks)
    assert any("1 runs failed" in remark for remark in out.remarks)
    lines = list(csv.DictReader(as_csv(swept, out, 0.5).splitlines()))
    assert len(lines) == 12
    assert lines[0]["state"] == FAILED
    assert lines[0]["error"] == "no such file"
    assert {line["run"]: line["accuracy"] for line in lines}["fedavg-learning-rate=0.2-seed=2"] == "0.62"


def test_plots_and_page(swept: SweepQueue) -> None:
    out = outcome(swept, None, 0.5)
    accuracy = curves(out)[0]
    line = next(s for s in accuracy.series if s.name == "fedavg, learning-rate=0.1" and s.kind == "line")
    assert [(p.x, p.y) for p in line.points] == [(1, 20.0), (2, pytest.approx(52.0))]
    (over,) = over_keys(out)
    assert over.names == ["0.1", "0.2"]
    found = {s.name: [round(p.y, 6) for p in s.points] for s in over.series if s.kind == "line"}
    assert found == {"fedavg": [52.0, 62.0], "scaffold": [64.0, 30.0]}
    write_page(swept, out)
    text = (swept.folder / "sweep.html").read_text()
    assert "scaffold, learning-rate=0.1" in text
    assert "<svg" in text


def test_a_sweep_can_be_compared_with_a_run(swept: SweepQueue, tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path / "other", {"run": {"algorithm": "moon", "seed": 1}}, resume=False)
    other.append_round({"round": 1, "accuracy": 0.9})
    found = groups([swept.folder, other.path])
    assert {label: len(runs) for label, runs in found.items()} == {
        "fedavg, learning-rate=0.1": 3,
        "fedavg, learning-rate=0.2": 3,
        "scaffold, learning-rate=0.1": 3,
        "scaffold, learning-rate=0.2": 3,
        "moon, learning-rate=0.1": 1,
    }


def test_a_point_is_a_point_in_the_file(tmp_path: Path) -> None:
    queue, _ = open_queue(tmp_path, Plan([SweepPoint("a", {"seed": 1})], {}, []), "line")
    record = json.loads((queue.folder / "sweep.json").read_text())
    assert record["points"][0] == {
        "name": "a", "keys": {"seed": 1}, "state": "waiting", "error": "", "stopped_at": None, "seconds": 0.0,
    }  # fmt: skip
