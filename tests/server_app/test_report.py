from __future__ import annotations

import io
import json
import re
import shlex
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from server_app.results.clients import gather, participation
from server_app.results.folder import RunFolder
from server_app.results.plots import by_round, over_clients
from server_app.results.report import write_report
from server_app.results.summary import (
    summarise,
)
from server_app.results.svg import Plot, Point, draw, ticks
from task.config.options import parse_options
from task.config.read import as_run_config
from task.errors import StateError
from task.flower.app import build_bundle
from task.resolve.read import read_config
from tests.pages import page

ROOT = Path(__file__).resolve().parents[2]
RUN = {"algorithm": "fedavg", "dataset": "digits", "seed": 7, "target-accuracy": 0.9, "local-epochs": 5}
BY_ROUND = ["accuracy", "loss", "seconds", "bytes", "replies"]
PLOTS = [*BY_ROUND, "clients"]  # without training replies
SVG = "{http://www.w3.org/2000/svg}"


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


def filed(text: str) -> dict[str, Any]:
    """Return the data of a report's page."""
    found = re.search(r'<script type="application/json" id="filed">(.*?)</script>', text, re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def check(run: Path, expected: list[str]) -> str:
    """Write the report, check that it is whole and stands alone, and return its text."""
    paths = write_report(run)
    assert paths == [run / "report.html", *(run / "plots" / f"{name}.svg" for name in expected)]
    text = paths[0].read_text("utf-8")
    drawings = [ElementTree.parse(path).getroot() for path in paths[1:]]
    assert {drawing.tag for drawing in drawings} <= {f"{SVG}svg"}
    labels = [drawing.attrib["aria-label"] for drawing in drawings]
    for sized in filed(text)["plots"]:
        drawn = [plot["drawing"] for plot in sized["plots"] if plot["drawing"]]
        assert [drawing[1]["aria-label"] for drawing in drawn] == labels
        assert {drawing[1]["width"] for drawing in drawn} <= {str(sized["width"])}
    Balanced().check(text)
    for whole in (text, *(path.read_text("utf-8") for path in paths[1:])):
        assert not re.search(r"(src|href)=|@import|url\(|\bnan\b|\binf\b", whole)
    assert all("var(" not in path.read_text("utf-8") for path in paths[1:])
    return text


class Balanced(HTMLParser):
    """Fails on a tag that is closed but not open, or the other way round."""

    def check(self, text: str) -> None:
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
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
    assert "<title>my &lt;run&gt;</title>" in text
    assert "<i>" not in text  # nor anything else that could end the script element
    data = filed(text)
    assert data["rounds"]["rounds"][2]["quarantined"][0]["client"] == "<i>x</i>"
    assert data["run"]["run"] | {"state": "finished", "round": 3, "accuracy": 0.75} == data["run"]["run"]
    assert data["run"]["changed"] == [["seed", "7"], ["local-epochs", "5"], ["target-accuracy", "0.9"]]
    assert data["run"]["repeat"] == "bouquet run -c 'seed=7 local-epochs=5 target-accuracy=0.9'"
    assert [c["name"] for c in data["clients"]["clients"]] == sorted(names)


def test_the_report_says_who_was_left_out_and_that_fewer_tested_the_best_round(folder: RunFolder) -> None:
    folder.write_nodes([], [{"node": "7", "name": "west", "reason": "has not registered"}])
    for number, names in ((1, "abc"), (2, "ab")):
        folder.append_round(
            row(number, accuracy=None, loss=None, client_accuracy=number / 4, client_loss=1.0)
        )
        lines = [client(name, "evaluate", {"accuracy": number / 4}) for name in names]
        folder.append_clients(line | {"round": number} for line in lines)
    write_report(folder.path)
    facts = dict(filed((folder.path / "report.html").read_text("utf-8"))["run"]["facts"])
    assert facts["Left out"] == "node west (has not registered)"
    assert facts["Accuracy, best"] == "0.500 (round 2, 2 of 3 clients)"


def test_an_unfinished_run_with_gaps(folder: RunFolder) -> None:
    gaps = {"loss": None, "accuracy": None, "seconds": {}}
    folder.append_round(row(0, **gaps))
    folder.append_round(row(1, **gaps))
    folder.append_clients(
        [client("a", "train", {"train-loss": 0.4}), client("b", "train", {"train-loss": 0.2})]
    )
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "lo')
    text = check(folder.path, ["loss", "bytes", "replies", "clients", "participation"])
    data = filed(text)
    assert (data["run"]["run"]["state"], data["run"]["run"]["round"]) == ("unfinished", 1)
    assert data["plots"][0]["plots"][0]["note"] == "Accuracy: nothing was measured."
    assert "training loss" in text


def test_the_accuracy_of_a_personalised_run() -> None:
    """Clients' mean, after local training, band and best so far: the points by hand, and no central curve."""
    told = [row(t, accuracy=None, loss=None, client_accuracy=a) for t, a in ((1, 0.5), (2, 0.25), (3, 0.75))]
    rows = [client(f"c{i}", "evaluate", {"accuracy": i / 10}) for i in range(11)]  # 0.0 to 1.0, round 3
    after = {"test-accuracy": 0.5, "test-examples": 1.0}, {"test-accuracy": 1.0, "test-examples": 3.0}
    rows += [client(name, "train", metrics) for name, metrics in zip("ab", after, strict=True)]
    accuracy, *_ = by_round(told, RUN["target-accuracy"], gather(rows))
    assert "lowest and the highest tenth" in accuracy.note
    drawn = {series.name: series.points for series in accuracy.series}
    [(t, high, low, _)] = drawn.pop("clients, 10 to 90 %")
    assert (t, low, high) == pytest.approx((3, 0.1, 0.9))
    [(_, target, *_)] = drawn.pop("target 0.9")
    assert target == 0.9
    assert drawn == {
        "clients' own test data": [Point(1, 0.5), Point(2, 0.25), Point(3, 0.75)],
        "clients, after local training": [Point(3, 0.875)],  # (1 * 0.5 + 3 * 1) / 4
        "best so far": [Point(1, 0.5), Point(2, 0.5), Point(3, 0.75)],
    }


def test_traffic_adds_up_and_phases_are_stacked() -> None:
    seconds = [{"train": 2.0, "total": 2.5}, {"evaluate": 1.0, "train": 4.0}]
    rows = [row(t, seconds=spent) for t, spent in enumerate(seconds, start=1)]
    _, _, time, traffic, replies = by_round(rows)
    assert {series.name: series.points for series in time.series} == {
        "train": [Point(1, 2.0, 0.0, 1), Point(2, 4.0, 0.0, 2)],
        "evaluate": [Point(1, 2.0, 2.0, 1), Point(2, 5.0, 4.0, 2)],
    }
    assert {series.name: series.points for series in traffic.series} == {
        "to clients": [Point(1, 1000), Point(2, 3000)],
        "from clients": [Point(1, 500), Point(2, 1000)],
    }
    assert [words for _, words in replies.readouts][-1] == "round 2: asked 2 · answered 2 · quarantined 0"


def test_many_rounds_are_bars_of_neighbours() -> None:
    *_, time, _, _ = by_round([row(t, seconds={"train": float(t)}) for t in range(121)])
    assert time.x == "round; a bar is the mean of 3"
    [train] = time.series
    assert train.points[0] == Point(0, 1.0, 0.0, 2)
    assert train.points[-1] == Point(120, 120.0, 0.0, 120)
    assert len(time.readouts) <= 120
    assert time.readouts[-1][0] == 120


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0.12, 0.31, [0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        (5.0, 5.0, [4.4, 4.6, 4.8, 5, 5.2, 5.4, 5.6]), (0.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.0, 5e-324, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-1e299, 1e299, [-1e299, -5e298, 0, 5e298, 1e299]), (1.0, 1.0 + 1e-15, [0.9, 0.95, 1, 1.05, 1.1]),
    ],
)  # fmt: skip
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == expected


def test_a_run_without_rounds(folder: RunFolder) -> None:
    text = check(folder.path, [])
    assert "Time: nothing was measured." in text


def test_many_rounds_and_clients(folder: RunFolder) -> None:
    for number in range(150):
        folder.append_round(row(number, accuracy=0.5, quarantined=[{"client": "a"}] * 4))
    folder.append_clients(client(f"c{i}", "evaluate", {"accuracy": i / 40}) for i in range(40))
    text = check(folder.path, PLOTS)
    assert sum(row["quarantined_count"] for row in filed(text)["rounds"]["rounds"]) == 600


def test_many_clients_are_few_bars(folder: RunFolder) -> None:
    folder.append_round(row(3))
    folder.append_clients(client(f"c{i}", "evaluate", {"accuracy": i / 5001}) for i in range(5001))
    _, plot = check(folder.path, PLOTS), (folder.path / "plots" / "clients.svg").read_text()
    heights = [float(h) for h in re.findall(r'<rect class="fill".*? height="([^"]+)"', plot)]
    assert len(heights) == 385  # 13 clients each
    assert heights == sorted(heights)


def test_a_round_too_large_for_a_margin_is_drawn(folder: RunFolder) -> None:
    folder.append_round(row(10**25))
    check(folder.path, BY_ROUND)


def test_a_plot_of_an_earlier_report_does_not_stay(folder: RunFolder) -> None:
    folder.append_round(row(0))
    check(folder.path, BY_ROUND)
    folder.truncate({"rounds": 0, "clients": 0})
    check(folder.path, [])
    assert list((folder.path / "plots").iterdir()) == []


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="expected a result folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_not_loaded(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds, at the end of every run."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    folder.append_round(row(0))
    write_report(folder.path)
    assert "matplotlib" not in sys.modules


def told(folder: RunFolder, **keys: Any) -> dict[str, Any]:
    """Return what the page says of a run with these keys."""
    run = as_run_config(read_config(keys))
    (folder.path / "config.json").write_text(json.dumps({"run": run}))
    found: dict[str, Any] = filed(write_report(folder.path)[0].read_text("utf-8"))["run"]
    return found


def test_the_configuration_has_the_keys_that_the_run_reads_and_no_other(folder: RunFolder) -> None:
    plain = told(folder, seed=4)["config"]
    assert plain["seed"] == "4"
    assert "learning-rate" in plain
    assert not any(key.startswith("fedprox.") for key in plain)
    assert "dirichlet-alpha" not in plain
    mu = told(folder, **{"algorithm": "fedprox", "fedprox.mu": 0.5})["config"]
    assert mu["fedprox.mu"] == "0.5"


def test_only_what_the_user_set_is_not_the_default(folder: RunFolder) -> None:
    """The command sets min-nodes, a personalised run measures at the clients, and all have a name."""
    keys = {"algorithm": "ditto", "min-nodes": 2, "run-name": "a", "runs-dir": "x", "learning-rate": 0.5}
    assert told(folder, **keys)["changed"] == [["algorithm", '"ditto"'], ["learning-rate", "0.5"]]
    assert told(folder)["repeat"] == "bouquet run"
    evil = told(folder, **{"dataset": "csv", "num-classes": 2, "data-path": "it's"})["repeat"]
    assert parse_options(shlex.split(evil)[3:]) == {"dataset": "csv", "data-path": "it's", "num-classes": 2}


def test_the_data_are_described_with_their_labels(folder: RunFolder) -> None:
    card = {
        "description": "digits", "source": "scikit-learn", "train_examples": 1442, "test_examples": 355,
        "clients": 3, "skew": {"coverage": 1.0},
        "labels": {"clients": ["a", "<b>"], "counts": [[3, 0], [0, 6]]},
    }  # fmt: skip
    (folder.path / "config.json").write_text(json.dumps({"run": RUN, "data": card}))
    text = check(folder.path, ["labels"])
    assert ["data", "digits, from scikit-learn"] in filed(text)["run"]["data"]
    plot = ElementTree.parse(folder.path / "plots" / "labels.svg").getroot()
    cells = [c for c in plot.iter(f"{SVG}rect") if c.get("fill-opacity")]
    assert [float(c.get("fill-opacity", 0)) for c in cells] == [0.52, 0.04, 0.04, 1.0]  # of 0.04 to 1
    assert [c[0].text for c in cells][2:] == ["<b>, class 0: 0", "<b>, class 1: 6"]
    assert "The first 2 of 3 clients." in text


def test_the_classes_are_shown_where_the_headline_was_measured(folder: RunFolder) -> None:
    """A confusion table that is only in result.json, or the clients' next to the server's accuracy."""
    names = ["confusion", "f1-per-class", "f1-macro"]
    table = {"confusion": [[3, 1], [0, 0]], "f1-per-class": [0.75, None], "f1-macro": 0.75}
    folder.append_round(row(1, measures=names, **table, client_confusion=[[9, 9], [9, 9]]))
    folder.append_round(row(2))  # not measured in each round
    text = check(folder.path, [*BY_ROUND[:2], "metrics", *BY_ROUND[2:], "confusion"])
    classes = filed(text)["run"]["classes"]
    assert classes["head"] == ["class", "examples", "f1"]
    assert classes["rows"] == [["0", 4, 0.75], ["1", 0, None]]
    assert "central test set" in classes["caption"]
    plot = ElementTree.parse(folder.path / "plots" / "confusion.svg").getroot()
    cells = [c for c in plot.iter(f"{SVG}rect") if c.get("fill-opacity")]
    assert [c[0].text for c in cells][:2] == ["0, predicted class 0: 3", "0, predicted class 1: 1"]


@pytest.mark.parametrize(
    "named",
    [
        {"classes": {"count": 2, "listed": {"benign": [3, 1], "<malign>": [6, 0]}}},
        {"names": ["benign", "<malign>"]},
    ],
)
def test_classes_are_called_by_their_names_where_they_are_known(
    folder: RunFolder, named: dict[str, Any]
) -> None:
    card = {"description": "scans", "clients": 1, "labels": {"clients": ["a"], "counts": [[3, 6]]}, **named}
    (folder.path / "config.json").write_text(json.dumps({"run": RUN, "data": card}))
    names = ["confusion", "f1-per-class"]
    folder.append_round(row(1, measures=names, confusion=[[3, 1], [0, 0]], **{"f1-per-class": [0.75, None]}))
    text = check(folder.path, [*BY_ROUND, "confusion", "labels"])
    assert filed(text)["run"]["classes"]["rows"] == [["benign", 4, 0.75], ["<malign>", 0, None]]
    for plot, cells in (
        ("labels", ["a, class benign: 3", "a, class <malign>: 6"]),
        ("confusion", ["benign, predicted class benign: 3", "benign, predicted class <malign>: 1"]),
    ):
        drawn = ElementTree.parse(folder.path / "plots" / f"{plot}.svg").getroot()
        assert [c[0].text for c in drawn.iter(f"{SVG}rect") if c.get("fill-opacity")][:2] == cells
        assert {"benign", "<malign>"} <= {t.text for t in drawn.iter(f"{SVG}text")}


def test_the_confusion_of_very_many_classes_stays_in_the_result(folder: RunFolder) -> None:
    """Ten thousand boxes in each of three widths are megabytes."""
    folder.append_round(row(1, measures=["confusion"], confusion=np.eye(100, dtype=int).tolist()))
    text = check(folder.path, BY_ROUND)
    assert "The table of 100 classes is in result.json." in text
    assert filed(text)["run"]["classes"] is None


def words(plot: Plot) -> list[str]:
    """Return the texts at the axis of y."""
    drawn = draw(plot).iter("text")
    return [t.text or "" for t in drawn if t.get("text-anchor") == "end"]


def test_axes_have_only_values_that_there_can_be() -> None:
    """An accuracy of 1.02, two and a half clients."""
    accuracy, *_, replies = by_round([row(t, accuracy=0.9999 + t / 1e5, answered=1, asked=1) for t in (1, 2)])
    assert max(map(float, words(accuracy))) <= 1
    even, *_ = by_round([row(t, accuracy=1.0) for t in (1, 2)])
    assert max(map(float, words(even))) == 1
    assert words(replies) == ["0", "1"]
    (_, part) = over_clients([], participation([row(1, population=2)], {"a": 1}))
    assert words(part) == ["0", "1"]


def test_the_page_is_made_of_the_monitors_files() -> None:
    """A change of the monitor's page that the report does not have."""
    assert (ROOT / "server_app" / "results" / "page.json").read_text("utf-8") == page(), "make docs"
    bundle = zipfile.ZipFile(io.BytesIO(build_bundle(ROOT)))
    assert "server_app/results/page.json" in bundle.namelist()  # fab-include of pyproject.toml
    assert not re.search(r"^(import|export) |</script", json.loads(page())["script"], re.M)
