"""What was read stands in config.json, on the terminal and in the report before anything is trained on it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from server_app.results.folder import RunFolder
from task.datasets import load_dataset
from task.datasets.facts import facts_of
from task.datasets.facts_in_words import SHOWN, as_text, in_words
from task.datasets.skew import load_partitioned
from task.errors import BouquetError
from task.resolve.read import read_config
from tests.support.wards import HEADER, WARDS, deployed, pooled, table


def test_a_table_is_shown_with_files_columns_classes_owners_gaps_and_scaling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ward, lines in zip(WARDS, (30, 20, 10), strict=True):
        path = table(tmp_path / "sites" / f"{ward}.csv", HEADER, lines)
        path.write_text(path.read_text() + ",0.5,clerk,y,ill\n")
    more = {"missing": "mean", "standardise": True, "partition": "natural", "num-clients": 0}
    folder = pooled(tmp_path, **more, **{"data-path": str(tmp_path / "sites")})
    said = RunFolder(folder).config()["data"]
    assert said["files"] == {"count": 3, "listed": [f"{ward}.csv" for ward in WARDS]}
    assert said["columns"] == {
        "count": 3, "listed": {"age": "number", "bmi": "number", "job": ["clerk", "nurse"]},
        "target": "outcome", "other": {"note": "left out"},
    }  # fmt: skip
    train, test = np.array(list(said["classes"]["listed"].values())).sum(0)
    assert (train, test) == (said["train_examples"], said["test_examples"])
    assert train + test == 63
    assert sum(said["owners"]["listed"].values()) == train
    assert said["missing"] == {"count": 1, "listed": {"age": 3}, "values": 3, "filled": "mean"}
    shown, _, _ = capsys.readouterr().out.partition("round 0/1")
    for words in (
        "age (number), bmi (number), job (clerk | nurse) -> outcome; note: left out",
        "3: ward-1 (", "3 values, filled with mean: age (3)", "mean and deviation over all clients",
    ):  # fmt: skip
        assert words in shown
    (page,) = (line for line in (folder / "report.html").read_text().splitlines() if 'id="filed"' in line)
    assert "job (clerk | nurse) -\\u003e outcome" in page or "job (clerk | nurse) -> outcome" in page


def test_pictures_and_numbers_are_shown_as_a_model_reads_them(tmp_path: Path) -> None:
    for label, light in (("day", 200), ("night", 20)):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for i in range(10):
            picture = np.full((6, 8), light + i, np.uint8)
            Image.fromarray(picture).save(tmp_path / "pictures" / label / f"{i}.png")
    keys = {"dataset": "imagefolder", "data-path": str(tmp_path / "pictures"), "cache-dir": str(tmp_path)}
    config = read_config(keys)
    lines = dict(in_words(facts_of(load_dataset(config.data, config.synthetic, 1))))
    assert lines["pictures"].startswith("8x6 pixels, 1 channel")
    assert lines["scaled"] == "pixels of 0 to 255 read as -1 to 1"
    assert lines["classes"].startswith("2: day (")
    assert lines["files"].startswith("20: day/0.png, day/1.png")
    x = np.random.default_rng(0).random((30, 2)).astype(np.float32)
    np.savez(tmp_path / "n.npz", x=x, y=x[:, 0] * 3 - 7.5)
    keys = {"dataset": "npz", "task": "regression", "data-path": str(tmp_path / "n.npz")}
    config = read_config(keys | {"cache-dir": str(tmp_path)})
    lines = dict(in_words(facts_of(load_dataset(config.data, config.synthetic, 1))))
    assert lines["targets"].startswith("1 from -7.")
    (tmp_path / "t.csv").write_text("age,ill:target(no|yes)\n" + "40,no\n50,yes\n" * 10)
    keys = {"dataset": "csv", "data-path": str(tmp_path / "t.csv"), "cache-dir": str(tmp_path)}
    config = read_config(keys | {"algorithm": "statistics", "statistics.columns": "age(0..120)"})
    (said,) = (text for label, text in in_words(facts_of(load_partitioned(config)[0])) if label == "targets")
    assert said == "no | yes, read as the numbers 0 to 1"


def test_long_lists_are_cut(tmp_path: Path) -> None:
    wide = tmp_path / "wide.csv"
    names = [f"c{i}" for i in range(300)]
    rows = [",".join([*map(str, range(300)), str(i % 150)]) for i in range(300)]
    wide.write_text("\n".join([",".join([*names, "label"]), *rows]) + "\n")
    config = read_config({"dataset": "csv", "data-path": str(wide), "cache-dir": str(tmp_path)})
    facts = facts_of(load_dataset(config.data, config.synthetic, 1))
    lines = dict(in_words(facts))
    assert f"c{SHOWN - 1} (number) ... and {300 - SHOWN} more -> label" in lines["columns"]
    assert f"... and {150 - SHOWN} more" in lines["classes"]
    assert max(map(len, as_text(facts))) < 400
    assert len(json.dumps(facts)) < 10_000


def test_data_of_nodes_are_shown_in_their_own_logs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The server hears names of clients and numbers of examples, as it does at registration, and no more."""
    files = {ward: table(tmp_path / f"{ward}.csv", HEADER, 30, i) for i, ward in enumerate(WARDS)}
    with caplog.at_level(logging.INFO, logger="flwr"):
        folder = deployed(tmp_path, files, **{"num-classes": 2})
    logged = [record.getMessage() for record in caplog.records]
    assert sum("job (clerk | nurse) -> outcome; note: left out" in line for line in logged) == 3
    record = (folder / "config.json").read_text()
    said = json.loads(record)["data"]
    assert (said["at"], said["clients"], said["owners"]["count"]) == ("nodes", 3, 3)
    assert said["train_examples"] == 3 * 27
    shown = capsys.readouterr().out
    assert "at the nodes, whose own logs say what was read; 4 inputs, 2 outputs" in shown
    for name in ("bmi", "clerk", "outcome", "well", str(tmp_path / "ward-1.csv")):
        assert name not in json.dumps(said) + shown.partition("Results:")[0]


def test_the_number_of_classes_is_that_which_the_nodes_headers_list(tmp_path: Path) -> None:
    files = {ward: table(tmp_path / f"{ward}.csv", HEADER, 30, i) for i, ward in enumerate(WARDS)}
    hashes = [
        RunFolder(deployed(tmp_path / str(i), files, **more)).rounds()[-1]["model_sha256"]
        for i, more in enumerate(({}, {"num-classes": 2}))
    ]
    assert hashes[0] == hashes[1]


def test_classes_that_are_only_numbered_still_need_the_key(tmp_path: Path) -> None:
    header = "age,bmi,job:category(clerk|nurse),note:ignore,outcome"
    files = {ward: table(tmp_path / f"{ward}.csv", header, 30, i) for i, ward in enumerate(WARDS)}
    for path in files.values():
        path.write_text(path.read_text().replace(",ill", ",1").replace(",well", ",0"))
    with pytest.raises(BouquetError, match=r'"num-classes": expected the number.*ill:target\(no\|yes\)'):
        deployed(tmp_path, files)
    assert deployed(tmp_path, files, **{"num-classes": 2})
