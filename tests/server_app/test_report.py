from __future__ import annotations

import base64
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from server_app.results.folder import RunFolder, summarise
from server_app.results.report import _plots, _settings, write_report
from server_app.results.summary import gather
from task.config.read import as_run_config, read_config
from task.errors import StateError

RUN = {"algorithm": "fedavg", "dataset": "digits", "seed": 7, "target-accuracy": 0.9, "local-epochs": 5}
PLOTS = ["accuracy", "loss", "clients", "bytes", "seconds"]  # without training replies
PNG = b"\x89PNG\r\n"


def row(number: int, **more: Any) -> dict[str, Any]:
    base = {
        "round": number, "loss": 1 / (number + 1), "accuracy": number / 4,
        "train_loss": 0.5 if number else None, "client_loss": None, "client_accuracy": None,
        "asked": 2, "answered": 2, "quarantined": [], "bytes_down": 1000 * number, "bytes_up": 500,
        "seconds": {"train": 0.5, "evaluate": 0.1, "total": 0.6},
    }  # fmt: skip
    return base | more


def client(name: str, phase: str, metrics: dict[str, float]) -> dict[str, Any]:
    return {"name": name, "round": 3, "phase": phase, "examples": 9, "metrics": metrics}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "my <run>", {"run": RUN}, resume=False)


def check(run: Path, expected: list[str]) -> str:
    """Write the report, check that it is whole and stands alone, and return its text."""
    paths = write_report(run)
    assert paths == [run / "report.html", *(run / "plots" / f"{name}.png" for name in expected)]
    text = paths[0].read_text("utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert [base64.b64decode(image) for image in images] == [path.read_bytes() for path in paths[1:]]
    assert all(path.read_bytes().startswith(PNG) for path in paths[1:])
    assert not re.search(r'(src|href)="(?!data:)|@import|url\(', text)
    Balanced().check(text)
    return text


class Balanced(HTMLParser):
    """Fails on a tag that is closed but not open, or the other way round."""

    def check(self, text: str) -> None:
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_finished_run(folder: RunFolder) -> None:
    bad = {
        "client": "<i>x</i>",
        "round": 2,
        "field": "arrays/w",
        "expected": "finite",
        "got": "NaN",
        "reason": "r",
    }
    for number in range(4):
        folder.append_round(row(number, quarantined=[bad] if number == 2 else []))
    names = ["$ward_{", "病院", "c" * 80]
    folder.append_clients(client(n, "evaluate", {"accuracy": 0.5 + i / 10}) for i, n in enumerate(names))
    result = summarise(folder.rounds(), folder.clients(), RUN)
    folder.finish(result, {"w": np.zeros(1)})
    text = check(folder.path, PLOTS)
    assert "my &lt;run&gt;" in text
    assert "&lt;i&gt;x&lt;/i&gt;" in text
    assert "<i>" not in text
    assert "arrays/w" in text
    assert ", finished" in text
    assert "<td>local-epochs</td><td>5</td>" in text.split("<details>")[0]  # not the default
    assert "<td>dataset</td>" not in text.split("<details>")[0]  # the default
    assert "0.750 (round 3)" in text  # best accuracy


def test_an_unfinished_run_with_gaps(folder: RunFolder) -> None:
    gaps = {"loss": None, "accuracy": None, "seconds": {}}
    folder.append_round(row(0, **gaps))
    folder.append_round(row(1, **gaps))
    folder.append_clients(
        [client("a", "train", {"train-loss": 0.4}), client("b", "train", {"train-loss": 0.2})]
    )
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "lo')
    text = check(folder.path, ["loss", "clients", "participation", "bytes", "seconds"])
    assert "unfinished, 1 rounds done" in text
    assert "Accuracy was not measured in this run." in text
    assert "training loss" in text


def test_the_accuracy_of_a_personalised_run() -> None:
    """Clients' mean, after local training, band and best so far: the points by hand, and no central curve."""
    told = [row(t, accuracy=None, loss=None, client_accuracy=a) for t, a in ((1, 0.5), (2, 0.25), (3, 0.75))]
    rows = [client(f"c{i}", "evaluate", {"accuracy": i / 10}) for i in range(11)]  # 0.0 to 1.0, round 3
    after = {"test-accuracy": 0.5, "test-examples": 1.0}, {"test-accuracy": 1.0, "test-examples": 3.0}
    rows += [client(name, "train", metrics) for name, metrics in zip("ab", after, strict=True)]
    name, _, note, draw = next(iter(_plots(told, rows, gather(rows), RUN)))
    assert name == "accuracy"
    assert "lowest and the highest tenth" in note
    assert draw is not None
    axes = Figure().subplots()
    draw(axes)
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn.pop("target 0.9") == [[0, 0.9], [1, 0.9]]
    assert drawn == {
        "clients' own test data": [[1, 0.5], [2, 0.25], [3, 0.75]],
        "clients, after local training": [[3, 0.875]],  # (1 * 0.5 + 3 * 1) / 4
        "best so far": [[1, 0.5], [2, 0.5], [3, 0.75]],
    }
    (band,) = axes.collections
    assert band.get_label() == "clients, 10 to 90 %"
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.1, 0.9))


def test_a_run_without_rounds(folder: RunFolder) -> None:
    text = check(folder.path, [])
    assert "No round is done" in text
    assert "No client reported numbers" in text


def test_many_rounds_and_clients(folder: RunFolder) -> None:
    for number in range(150):
        folder.append_round(row(number, accuracy=0.5, quarantined=[{"client": "a"}] * 4))
    folder.append_clients(client(f"c{i}", "evaluate", {"accuracy": i / 40}) for i in range(40))
    text = check(folder.path, PLOTS)
    assert "600 dropped" in text
    assert "100 more in rounds.jsonl" in text


def test_a_plot_of_an_earlier_report_does_not_stay(folder: RunFolder) -> None:
    folder.append_round(row(0))
    check(folder.path, ["accuracy", "loss", "bytes", "seconds"])
    folder.truncate({"rounds": 0, "clients": 0})
    check(folder.path, [])
    assert list((folder.path / "plots").iterdir()) == []


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="expected a result folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pyplot_is_not_loaded(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    folder.append_round(row(0))
    write_report(folder.path)
    assert "matplotlib.pyplot" not in sys.modules


def test_the_configuration_has_the_keys_that_the_run_reads_and_no_other() -> None:
    plain = _settings(as_run_config(read_config({"seed": 4})))
    assert "<td>seed</td><td>4</td>" in plain
    assert "<td>learning-rate</td>" in plain
    assert "fedprox." not in plain
    assert "dirichlet-alpha" not in plain
    assert "<td>fedprox.mu</td><td>0.5</td>" in _settings(
        as_run_config(read_config({"algorithm": "fedprox", "fedprox.mu": 0.5}))
    )
