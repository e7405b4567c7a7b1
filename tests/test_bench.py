"""The benchmarks run, and what they compare with does the same work."""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
import typer

from client_app.app import make_app
from strategies import STRATEGIES
from strategies.engine.journal import Journal
from task.config.sections import DataConfig, SyntheticConfig
from task.datasets import load_dataset
from task.models import build_model
from task.numerics.arrays import state_of, trainable_names
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.bench import data, held, processes
from tests.bench.__main__ import BENCHMARKS, Benchmark, Name, main
from tests.bench.peers import install
from tests.bench.peers.__main__ import Peer, describe
from tests.bench.plain import PlainLoop
from tests.bench.readings import Row, growth, paired, warning
from tests.bench.rounds import W1
from tests.support.grid import LocalGrid

TINY = {
    "train-images-idx3-ubyte": (50, 4, 4),
    "train-labels-idx1-ubyte": (50,),
    "t10k-images-idx3-ubyte": (20, 4, 4),
    "t10k-labels-idx1-ubyte": (20,),
}
COMMAND = """
import json, sys, time
def row(i):
    with open(FOLDER + "/rounds.jsonl", "a") as file:
        file.write(json.dumps({"round": i, "accuracy": 0.5}) + chr(10))
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a very small MNIST."""
    data.stand_in(tmp_path / "data" / "MNIST" / "raw", TINY)
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def threads() -> Iterator[None]:
    """Put torch's number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Rows(Journal):
    def __init__(self) -> None:
        self.selected: list[list[str]] = []

    def round_done(self, row, clients, snapshot, clock) -> None:
        self.selected.append(row["selected"])


@pytest.mark.usefixtures("threads")
def test_the_plain_loop_takes_the_very_steps_of_bouquet() -> None:
    # 8 clients of 179 or 180 digits: unequal weights and a short last batch.
    keys = W1 | {"dataset": "digits", "num-clients": 8, "fraction-train": 0.5, "local-epochs": 2}
    config = read_config(keys)
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, config.seed)
    grid = LocalGrid(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    rows = Rows()
    ours = STRATEGIES["fedavg"](config).start(
        grid, wire.pack_arrays(state_of(model)), num_rounds=2, journal=rows, trainable=trainable_names(model)
    )
    with PlainLoop(keys, worker=Thread) as loop:
        assert len(loop.run(2)) == 2
    assert loop.selected == rows.selected[1:]
    first = state_of(model)
    for name, a in wire.read_arrays(ours.arrays).items():
        moved = np.abs(a - first[name]).max()
        assert moved > 0
        np.testing.assert_allclose(loop.model.state_dict()[name].numpy(), a, rtol=1e-5, atol=1e-5 * moved)


def test_a_command_is_timed_measured_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    rounds = "for i in range(3): row(i); time.sleep(0.25)"
    found = processes.run([sys.executable, "-c", f"FOLDER = {str(folder)!r}{COMMAND}{rounds}"], folder, {})
    assert [row["round"] for row in found.rows] == [0, 1, 2]
    assert found.accuracy == 0.5
    (last,) = found.seconds(skip=1)
    assert 0.2 < last < 0.25 + 2  # from line to line, on a machine that may be busy
    assert found.arrivals[0] < found.until_round_1 < found.arrivals[2] < found.wall
    assert found.pss == 0


def test_the_memory_of_a_command_is_that_of_all_its_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    child = "import subprocess; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1)'])"
    script = f"FOLDER = {str(folder)!r}{COMMAND}row(0); row(1); {child}"
    found = processes.run([sys.executable, "-c", script], folder, {}, memory=True)
    assert found.processes == 2
    assert found.rss >= found.pss > 1e6


GATED = """
import os, sys, time
say, hear = int(sys.argv[1]), int(sys.argv[2])
for i in range(4):
    with open(COUNT, "a") as file:
        file.write("x")
    os.write(say, b".")
    os.read(hear, 1)
    for _ in range(10):
        time.sleep(0.01)
        with open(COUNT, "a") as file:
            file.write("y")
"""


def test_a_held_run_gets_nothing_done_between_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    real = held.subprocess.Popen
    script = GATED.replace("COUNT", repr(str(count)))

    def popen(command: list[str], **more: object) -> object:
        return real([sys.executable, "-c", script, *command[3:]], **more)

    monkeypatch.setattr(held.subprocess, "Popen", popen)
    with held.Held(tmp_path / "run", {}, {}, block=1, blocks=3) as run:
        assert count.read_text() == "x"
        assert run.block() > 0.1
        before = count.read_text()
        assert before == "x" + 10 * "y" + "x"
        time.sleep(0.2)
        assert count.read_text() == before
        held.in_turns([run.block], 2)
    assert run.process.returncode == 0


def test_a_held_run_that_ends_early_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = held.subprocess.Popen
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    monkeypatch.setattr(held.subprocess, "Popen", lambda _, **more: real(command, **more))
    with (
        pytest.raises(RuntimeError, match="ended before its last round:\nno such thing"),
        held.Held(tmp_path / "run", {}, {}, block=1, blocks=3),
    ):
        pass


def test_the_first_and_the_last_block_do_not_count() -> None:
    calls: list[str] = []
    times = iter(range(100))

    def side(name: str) -> float:
        calls.append(name)
        return float(next(times))

    blocks = held.blocks_for(rounds=3, block=1, quick=True)
    assert blocks == 5
    assert held.in_turns([lambda: side("a"), lambda: side("b")], blocks) == [[2, 4, 6], [3, 5, 7]]
    assert "".join(calls) == "ababababab"
    assert held.blocks_for(rounds=1, block=10, quick=False) == 7  # five count, whatever is asked for


def test_a_command_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(RuntimeError, match="ended with 1:\nno such thing"):
        processes.run(command, tmp_path / "run", {})


def test_mnist_is_unpacked_from_the_data_folder(tiny: Path, tmp_path: Path) -> None:
    name = "train-images-idx3-ubyte"
    plain = tiny / "MNIST" / "raw" / name
    content = plain.read_bytes()
    plain.with_suffix(".gz").write_bytes(gzip.compress(content))
    plain.unlink()
    folder, kind = data.mnist_folder(tmp_path / "work")
    assert kind == "MNIST"
    assert (folder / "MNIST" / "raw" / name).read_bytes() == content


def test_the_stand_in_is_an_mnist_that_bouquet_reads(tiny: Path) -> None:
    dataset = load_dataset(DataConfig(dataset="mnist", data_dir=str(tiny)), SyntheticConfig(), 1)
    assert (dataset.num_train, len(dataset.y), dataset.input_shape) == (50, 70, (1, 4, 4))


@pytest.mark.usefixtures("tiny", "threads")
def test_the_command_line_shows_and_keeps_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: object) -> Iterator[Row]:
        yield paired("first-round-w1", "a : b", [1.0], [2.0], 0.4)
        raise RuntimeError("no such thing")

    rows = ("first-round-w1", "first-round-demo")
    monkeypatch.setitem(BENCHMARKS, "first-round", Benchmark(broken, rows))
    work = tmp_path / "work"
    with pytest.raises(typer.Exit) as end:
        main(only=[Name("first-round"), Name("fold")], rounds_=0, repeat=5, quick=True, work=work)
    assert end.value.exit_code == 1
    found = {row["name"]: row for row in json.loads((work / "quick.json").read_text())}
    assert list(found) == [*rows, "fold", "fold-message", "fold-memory"]
    assert {"name", "ratio", "target", "runs", "min", "max", "load"} <= found["fold"].keys()
    assert found["fold"]["min"] <= found["fold"]["ratio"] <= found["fold"]["max"]
    assert found["first-round-w1"]["ratio"] == 0.5
    assert found["first-round-demo"]["ratio"] is None
    assert found["first-round-demo"]["error"] == "RuntimeError: no such thing"
    assert (work / "quick.png").stat().st_size > 1000
    told = capsys.readouterr().out
    assert "first-round-demo could not run:\nRuntimeError: no such thing" in told

    main(only=[Name("fold")], rounds_=0, repeat=5, quick=True, work=work)  # the other rows stay
    assert [row["name"] for row in json.loads((work / "quick.json").read_text())] == list(found)


def test_a_row_is_the_median_of_the_ratios_of_pairs() -> None:
    row = paired("w1-round", "a : b", [1.0, 9.0, 2.0], [4.0, 3.0, 2.0], 1.25)
    assert (row.ratio, row.min, row.max, row.runs) == (1.0, 0.25, 3.0, 3)
    assert (row.ours, row.theirs) == (2.0, 3.0)
    more = growth("memory", "a - b", [300.0, 310.0, 290.0], [200.0, 250.0, 280.0], 100.0)
    assert (more.ratio, more.unit, more.min, more.max) == (60.0, "MB", 10.0, 100.0)
    assert warning(percent=1) == ""
    assert "disturbed" in warning(percent=95)


def test_a_peer_whose_accuracy_differs_is_void() -> None:
    def ran(accuracy: float) -> processes.Outcome:
        rows = [{"round": i, "accuracy": accuracy} for i in range(6)]
        return processes.Outcome(rows, [1.0, 2.0, 2.5, 3.0, 3.5, 4.0], 5.0)

    def never(*_: object) -> processes.Outcome:
        raise AssertionError

    some = {
        name: Peer(name, never, runs=[ran(accuracy)])
        for name, accuracy in {"bouquet": 0.945, "r2": 0.948, "pfl": 0.95, "fluke": 0.93}.items()
    }
    some["fedlab"] = Peer("fedlab", never, error="RuntimeError: not to be had")
    found = {each["name"]: each for each in describe(some, check=True)}
    assert [name for name, each in found.items() if each["void"]] == ["fluke"]
    assert found["pfl"]["round_s"] == 0.5
    assert found["pfl"]["round_to_r2"] == 1.0
    assert found["pfl"]["until_round_1_s"] == 2.0
    assert found["fedlab"]["round_s"] is None


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "uv"
    failing.write_text("#!/bin/sh\necho no route >&2\nexit 2\n")
    failing.chmod(0o755)
    monkeypatch.setattr(install.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RuntimeError, match="uv venv ended with 2: no route"):
        install.install(tmp_path / "work", "pfl")
    assert install.python_of(tmp_path / "work", "pfl") is None


def test_the_package_names_every_benchmark() -> None:
    import tests.bench

    assert all(f"``{name}``" in (tests.bench.__doc__ or "") for name in BENCHMARKS)
