"""The journal of a run: killed anywhere and resumed, a run ends with the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client_app.app import make_app
from server_app import app as server
from server_app.results.folder import RunFolder
from server_app.run.checkpoint import Checkpoint
from server_app.run.logs.arrivals import ArrivalFile
from server_app.run.progress import Progress
from server_app.run.recorder import Recorder
from strategies.channels.arrival_log import ArrivalLog
from task.config.read import as_run_config
from task.errors import BouquetError, ConfigError, StateError
from task.numerics.arrays import sha256
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.storage.client_state import read_header
from tests.support.federation import owners_config, write_owners
from tests.support.grid import LocalGrid

ROUNDS = 4


class Killed(BaseException):
    """The process was killed."""


@pytest.fixture(scope="module", autouse=True)
def _no_plots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server_app.run.finish.write_report", lambda path: None)
        patch.setattr(server, "closing_table", lambda summary, path: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume")
    write_owners(path / "owners.npz")
    return path


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> dict[str, Any]:
    return config_of(folder, tmp_path)


def config_of(folder: Path, runs: Path) -> dict[str, Any]:
    """A run whose every part has a state: adaptive mu, partial cohorts, stragglers, client evaluation."""
    return owners_config(
        folder / "owners.npz",
        algorithm="fedprox", fedprox__mu=0.3, fedprox__adaptive=True, fraction_train=0.6, stragglers=0.4,
        local_epochs=3, batch_size=4, fraction_evaluate=0.5, local_test_fraction=0.3, progress="none",
        num_server_rounds=ROUNDS, runs_dir=str(runs), cache_dir=str(folder / "cache"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    """What a run leaves that nobody disturbed."""
    return leftovers(run(config_of(folder, folder / "runs"), "whole"))


def run(config: dict[str, Any], name: str, *, resume: bool = False, order: int = 0, **keys: Any) -> Path:
    """Run the whole ServerApp over a fresh grid of two nodes; `order` is that of ids and replies."""
    checked = read_config(config | {"run-name": name, "resume": resume, **keys})
    nodes = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    return server.run(
        LocalGrid(make_app(simulation=True), nodes, as_run_config(checked), seed=order), checked
    )


def timeless(value: Any) -> Any:
    """Drop what a clock made."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if "seconds" not in k}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def leftovers(path: Path) -> dict[str, Any]:
    """Return all that must be equal of two runs."""
    folder = RunFolder(path)
    result = {k: v for k, v in timeless(folder.result() or {}).items() if k not in ("run_name", "resume")}
    return {
        "rounds": timeless(folder.rounds()),
        "clients": (path / "clients.jsonl").read_bytes(),
        "model": (path / "model.safetensors").read_bytes(),
        "best": sha256(read_model(path / "checkpoint" / "best.safetensors")[1]),
        "state": Checkpoint(path / "checkpoint").read()[0].numbers,  # type: ignore[index]
        "accuracy": result.get("best_accuracy"),
    }


def kill_in(where: str, server_round: int) -> Any:
    """Return a context in which the process dies in that round.

    Args:
        where: "training" (nothing of the round is written), "arrays" (the arrays are, the row is not), "row"
            (the row is, the checkpoint is not committed) or "after" (all is).
        server_round: The round.
    """

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            target, name = {
                "training": (Recorder, "round_done"),
                "arrays": (RunFolder, "append_round"),
                "row": (Checkpoint, "commit"),
                "after": (Progress, "round_done"),
            }[where]
            original: Callable[..., Any] = getattr(target, name)

            def deadly(self: Any, first: Any, *rest: Any) -> Any:
                number = first["round"] if isinstance(first, dict) else first.round
                if number == server_round:
                    raise Killed
                return original(self, first, *rest)

            patch.setattr(target, name, deadly)
            with pytest.raises(Killed):
                yield

    return context()


@pytest.mark.parametrize("server_round", range(ROUNDS + 1))
@pytest.mark.parametrize("where", ["training", "arrays", "row", "after"])
def test_a_run_killed_anywhere_and_resumed_is_the_same_run(
    where: str, server_round: int, config: dict[str, Any], whole: dict[str, Any]
) -> None:
    with kill_in(where, server_round):
        run(config, "killed")
    # other node ids, another order of replies: another machine
    path = run(config, "killed", resume=True, order=5)
    got = leftovers(path)
    assert [r["round"] for r in got["rounds"]] == list(range(ROUNDS + 1))
    assert got == whole


@pytest.mark.parametrize("every", [0, 2, 3])
def test_with_fewer_checkpoints_more_rounds_are_done_again(
    every: int, config: dict[str, Any], whole: dict[str, Any]
) -> None:
    keys = {"checkpoint-every": every}
    with kill_in("training", 4):
        run(config, "killed", **keys)
    assert leftovers(run(config, "killed", resume=True, **keys)) == whole


def test_a_run_may_be_killed_again_and_again(config: dict[str, Any], whole: dict[str, Any]) -> None:
    with kill_in("row", 1):
        run(config, "killed")
    for server_round in (1, 2, 2, 4):
        with kill_in("row", server_round):
            run(config, "killed", resume=True)
    assert leftovers(run(config, "killed", resume=True)) == whole


def test_a_finished_run_can_be_lengthened(config: dict[str, Any], whole: dict[str, Any]) -> None:
    run(config, "short", **{"num-server-rounds": 2})
    assert leftovers(run(config, "short", resume=True)) == whole


def test_a_resume_of_a_finished_run_changes_nothing_and_says_so(
    config: dict[str, Any], whole: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    run(config, "again")
    capfd.readouterr()
    assert leftovers(run(config, "again", progress="log", resume=True)) == whole
    said = "".join(capfd.readouterr())
    assert "no round is left to do" in said
    assert "continuing" not in said


def test_a_resume_without_a_run_is_refused_and_leaves_nothing(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--resume .*expected a run .*typo; got none"):
        run(config, "typo", resume=True)
    assert not (Path(config["runs-dir"]) / "typo").exists()


def test_a_run_that_died_before_its_first_checkpoint_goes_on(
    config: dict[str, Any], whole: dict[str, Any]
) -> None:
    checked = read_config(config | {"run-name": "early"})
    RunFolder.create(server.folder_of_run(checked), {"run": as_run_config(checked)}, resume=False)
    assert leftovers(run(config, "early", resume=True)) == whole


@pytest.mark.parametrize(
    "keys",
    [{"algorithm": "fedavg"}, {"model": "mlp"}, {"seed": 4}, {"fedprox.mu": 0.4}, {"fraction-train": 1.0}],
    ids=str,
)
def test_another_run_is_not_gone_on_with(keys: dict[str, Any], config: dict[str, Any]) -> None:
    with kill_in("training", 3):
        run(config, "killed")
    folder = Path(config["runs-dir"], "killed")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(BouquetError, match=next(iter(keys))):
        run(config, "killed", resume=True, **keys)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


# ---------------------------------------------------------------------------------- the recorder


def recorder(path: Path) -> Recorder:
    progress = Progress("none", ROUNDS, "test")
    return Recorder(RunFolder(path), progress, every=1, resume=True)


@pytest.fixture
def killed(config: dict[str, Any]) -> Path:
    """A run that died in round 3: rows up to round 3, checkpoint of round 2."""
    with kill_in("row", 3):
        run(config, "killed")
    return Path(config["runs-dir"]) / "killed"


def test_a_resume_cuts_the_rows_back_to_the_checkpoint(killed: Path) -> None:
    assert [r["round"] for r in RunFolder(killed).rounds()] == [0, 1, 2, 3]
    assert {c["round"] for c in RunFolder(killed).clients()} == {1, 2, 3}
    with (killed / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "half a li')
    snapshot = recorder(killed).restore()
    assert snapshot is not None
    assert snapshot.round == 2
    assert [r["round"] for r in RunFolder(killed).rounds()] == [0, 1, 2]
    assert {c["round"] for c in RunFolder(killed).clients()} == {1, 2}


def test_rows_that_end_with_another_round_than_the_checkpoint_are_refused(killed: Path) -> None:
    """A backup of one file only: the lengths agree, the rounds do not."""
    lines = (killed / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    third = json.loads(lines[2])
    fake = json.dumps(third | {"round": 7}, separators=(", ", ": "), ensure_ascii=False).encode() + b"\n"
    assert len(fake) == len(lines[2])
    (killed / "rounds.jsonl").write_bytes(b"".join([*lines[:2], fake, *lines[3:]]))
    with pytest.raises(StateError, match=r"rounds\.jsonl to end with round 2.*got 7"):
        recorder(killed).restore()


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_rows_that_are_missing_are_refused(name: str, killed: Path) -> None:
    (killed / name).write_bytes((killed / name).read_bytes()[:50])
    with pytest.raises(StateError, match=name.replace(".", r"\.")):
        recorder(killed).restore()


def test_a_damaged_checkpoint_is_refused_and_nothing_is_cut(killed: Path) -> None:
    (killed / "checkpoint" / "round-2.safetensors").write_bytes(b"x")
    before = {p: p.read_bytes() for p in killed.rglob("*") if p.is_file()}
    with pytest.raises(StateError, match="round-2"):
        recorder(killed).restore()
    assert {p: p.read_bytes() for p in killed.rglob("*") if p.is_file()} == before


def test_a_target_that_was_reached_before_stays_reached(config: dict[str, Any]) -> None:
    path = run(config, "done", **{"target-accuracy": 0.01})
    rows = RunFolder(path).rounds()
    assert len(rows) < ROUNDS + 1
    run(config, "done", resume=True, **{"target-accuracy": 0.01})
    assert [r["round"] for r in RunFolder(path).rounds()] == [r["round"] for r in rows]


def test_who_takes_part_and_who_does_not_is_written_down_when_it_changes(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"run": {}}, resume=False)
    recorder = Recorder(folder, Progress("none", 1, "a run"), every=0, resume=False)
    there = {"node": "7", "clients": 1, "examples": 50, "version": "0.1.0"}
    out = {"node": "8", "name": "ward-2", "reason": "cannot take part: no such file"}
    recorder.participants([there], [out])
    assert folder.nodes() == [there]
    assert folder.left_out() == [out]
    written = (folder.path / "nodes.json").stat().st_ino
    recorder.participants([there], [out])
    assert (folder.path / "nodes.json").stat().st_ino == written
    recorder.participants([there], [])
    assert folder.left_out() == []


def test_a_log_of_an_earlier_run_takes_the_place_of_the_runs_own(tmp_path: Path) -> None:
    """A replay that had both would write its order of arrival down, or follow none."""
    folder = RunFolder.create(tmp_path / "run", {"run": {}}, resume=False)
    begin = partial(Recorder, folder, Progress("none", 1, "a run"), every=0, resume=False)
    followed = ArrivalLog(closed=True)
    assert begin(follows=[followed]).log(ArrivalLog) is followed
    assert isinstance(begin().log(ArrivalLog), ArrivalFile)
    assert sum(isinstance(log, ArrivalLog) for log in begin(follows=[followed]).logs) == 1


def test_what_clients_keep_is_on_the_disk_before_a_checkpoint_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a simulation, whose clients sync nothing."""
    config = owners_config(
        folder / "owners.npz",
        algorithm="scaffold", num_server_rounds=3, progress="none", fraction_train=0.6,
        runs_dir=str(tmp_path), cache_dir=str(folder / "cache"), state_dir=str(tmp_path / "state"),
    )  # fmt: skip
    synced: set[tuple[int, int]] = set()
    fsync, commit, counted = os.fsync, Checkpoint.commit, []

    def spy(handle: int) -> None:
        found = os.fstat(handle)
        synced.add((found.st_ino, found.st_mtime_ns))
        fsync(handle)

    def committed(self: Checkpoint, snapshot: Any, *more: Any) -> None:
        for path in (tmp_path / "state").rglob("*.safetensors"):
            kept = read_header(path)
            if kept.round <= snapshot.round:
                found = path.stat()
                assert (found.st_ino, found.st_mtime_ns) in synced, (path, snapshot.round)
                counted.append((snapshot.round, kept.round))
        commit(self, snapshot, *more)

    monkeypatch.setattr(os, "fsync", spy)
    monkeypatch.setattr(Checkpoint, "commit", committed)
    run(config, "kept")
    assert {(1, 1), (2, 2), (3, 3)} <= set(counted)


def test_the_best_model_is_chosen_by_the_clients_where_the_server_measures_nothing(
    folder: Path, tmp_path: Path
) -> None:
    """It is the first of the rounds with the highest accuracy on the clients' own test data."""
    config = owners_config(
        folder / "owners.npz",
        algorithm="fedper", model="mlp", local_epochs=3, batch_size=4, local_test_fraction=0.3,
        fraction_evaluate=1.0, num_server_rounds=5, progress="none", runs_dir=str(tmp_path),
        cache_dir=str(folder / "cache"),
    )  # fmt: skip
    path = run(config, "own")
    rows = {row["round"]: row for row in RunFolder(path).rounds()}
    assert all(row["accuracy"] is None for row in rows.values())
    seen = {t: row["client_accuracy"] for t, row in rows.items() if row["client_accuracy"] is not None}
    best = min(seen, key=lambda t: (-seen[t], t))
    card, model = read_model(path / "checkpoint" / "best.safetensors")
    assert sha256(model) == rows[best]["model_sha256"]
    assert card.config.algorithm == "fedper"
