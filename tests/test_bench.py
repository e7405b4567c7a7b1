"""The benchmarks run, and what they compare with does the same work."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from client_app.app import make_app
from strategies import STRATEGIES
from strategies.journal import Journal
from task import wire
from task.arrays import state_of, trainable_names
from task.config import DataConfig, SyntheticConfig, read_config
from task.datasets import load_dataset
from task.models import build_model
from tests.bench import data, processes
from tests.bench.__main__ import BENCHMARKS, Name, main
from tests.bench.plain import PlainLoop
from tests.bench.readings import busy, ratio
from tests.bench.rounds import W1
from tests.support.grid import LocalGrid

TINY = {
    "train-images-idx3-ubyte": (50, 4, 4),
    "train-labels-idx1-ubyte": (50,),
    "t10k-images-idx3-ubyte": (20, 4, 4),
    "t10k-labels-idx1-ubyte": (20,),
}
COMMAND = """
import os, sys, time
for i in range(3):
    with open(FOLDER + "/rounds.jsonl", "a") as file:
        file.write('{"round": %d, "seconds": {"total": 1.0}}' % i + chr(10))
"""
GATE = "say, hear = map(int, sys.argv[1:]); os.write(say, b'.'); os.read(hear, 1)"


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
    script = f"FOLDER = {str(folder)!r}{COMMAND}time.sleep(0.5)"
    found = processes.run([sys.executable, "-c", script], folder, {}, memory=True)
    assert [row["round"] for row in found.rows] == [0, 1, 2]
    assert found.seconds(skip=1) == [1.0]
    assert 0 < found.until_round_1 < found.wall
    assert found.peak > 1e6
    assert found.processes == 1


def test_something_else_can_run_between_the_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    calls: list[int] = []
    script = f"FOLDER = {str(folder)!r}{COMMAND}{GATE}"
    found = processes.run([sys.executable, "-c", script], folder, {}, between=lambda: calls.append(1))
    assert calls == [1]
    assert len(found.gated) == 1


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


def test_the_command_line_shows_and_keeps_its_readings(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.jsonl"
    main(only=[Name("fold")], rounds_=0, repeat=5, quick=True, out=out, work=tmp_path / "work")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["benchmark"] for line in lines} == {"fold"}
    assert all(line["measured"] > 0 and line["about"]["data"] == "MNIST" for line in lines)
    assert all(len(line["about"]["load"]) == 3 for line in lines)
    assert "fold" in capsys.readouterr().out


def test_a_reading_is_the_ratio_of_the_medians() -> None:
    reading = ratio("w1-round", "a : b", [1.0, 9.0, 2.0], [4.0], 1.25)
    assert reading.measured == 0.5
    assert "medians of 3 and 1" in reading.detail
    assert busy(percent=1) == ""
    assert "disturbed" in busy(percent=95)


def test_the_package_names_every_benchmark() -> None:
    import tests.bench

    assert all(f"``{name}``" in (tests.bench.__doc__ or "") for name in BENCHMARKS)
