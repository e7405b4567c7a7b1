"""Runs that declare the columns of plain csv files: bytes of typed headers, take-out, hostile orders."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from server_app.cli.main import app
from server_app.results.folder import RunFolder
from server_app.run.repeat import keys_of_run
from task.errors import ConfigError
from task.wire.registration import Registration, read_registration, registration_content
from tests.support import parties
from tests.support.federation import in_one_process
from tests.support.wards import WARDS, deployed

NAMES = ("age", "sex", "day", "smoking, now", "hospital", "fold", "outcome")
TYPES = {
    "sex": "sex:category(f|m)", "day": "day:ignore", "smoking, now": "smoking, now:category(no|yes, a pipe)",
    "hospital": "hospital:client", "fold": "fold:split", "outcome": "outcome:target(ill|well)",
}  # fmt: skip
KEY = ", ".join(f'"{cell}"' for cell in TYPES.values())
KEYS: dict[str, Any] = {"learning-rate": 0.5, "num-server-rounds": 3, "standardise": True, "progress": "none"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def write(path: Path, seed: int, types: Mapping[str, str] = TYPES, rows: int = 40) -> Path:
    """Write a site's table; `types` are those in its header."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([types.get(name, name) for name in NAMES])
        for i in range(rows):
            age, man = int(rng.integers(20, 80)), bool(rng.random() < 0.5)
            label = "ill" if age + 10 * man > 55 else "well"
            part = "test" if i % 5 == 0 else "train"
            smokes = ("no", "yes, a pipe")[i % 2]
            out.writerow([age, "fm"[man], f"2024-03-{i + 1:02d}", smokes, f"h{seed}", part, label])
    return path


def wards(folder: Path, types: Mapping[str, str]) -> dict[str, Path]:
    return {name: write(folder / f"{name}.csv", i, types) for i, name in enumerate(WARDS)}


def hashes(folder: Path) -> list[str]:
    return [row["model_sha256"] for row in RunFolder(folder).rounds()]


@pytest.mark.parametrize("where", ["a file", "a folder", "nodes"])
def test_plain_files_with_the_key_end_in_the_bytes_of_typed_headers(where: str, tmp_path: Path) -> None:
    """One file with a column of owners, a folder of files, a node for each file; all end alike."""

    def ends(name: str, types: Mapping[str, str], key: str) -> list[str]:
        files = wards(tmp_path / name, types)
        if where == "nodes":
            return hashes(deployed(tmp_path / f"{name}-run", files, **KEYS, **{"column-types": key}))
        path = tmp_path / name
        if where == "a file":
            lines = [file.read_text().splitlines(keepends=True) for file in files.values()]
            path = tmp_path / f"{name}.csv"
            path.write_text("".join([lines[0][0], *(line for of in lines for line in of[1:])]))
        keys = {"dataset": "csv", "model": "logistic", "partition": "natural", "num-clients": 0}
        keys |= {"data-path": str(path), "column-types": key, "run-name": name}
        return hashes(in_one_process({**keys, **KEYS}, tmp_path / "runs"))

    plain, typed = ends("plain", {}, KEY), ends("typed", TYPES, "")
    assert plain == typed
    assert len(set(plain)) == 4


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run over nodes that have plain files."""
    return deployed(tmp_path, wards(tmp_path / "wards", {}), **KEYS, **{"column-types": KEY})


def test_a_model_finds_its_columns_in_a_new_plain_file(made: Path, tmp_path: Path) -> None:
    """The model's file has digests in place of the nodes' names; the run's key says what the columns are."""
    new = write(tmp_path / "new.csv", 9, {})
    done = CliRunner().invoke(app, ["predict", str(made), "--data", str(new)])
    assert done.exit_code == 0, done.output
    assert "accuracy" in done.output
    rows = [line.split(",") for line in done.stdout.splitlines() if line[:1].isdigit()]
    typed = write(tmp_path / "typed.csv", 9)
    again = CliRunner().invoke(app, ["predict", str(made), "--data", str(typed)])
    assert [line.split(",") for line in again.stdout.splitlines() if line[:1].isdigit()] == rows
    bare = tmp_path / "bare.csv"
    bare.write_text('sex,"smoking, now",age\nf,no,22\nm,no,79\n')
    done = CliRunner().invoke(app, ["predict", str(made), "--data", str(bare)])
    said = [line.split(",")[1] for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert said == ["well", "ill"]


def test_a_run_is_repeated_and_resumed_with_its_types(made: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / "wards" / f"{name}.csv" for name in WARDS}
    keys, _ = keys_of_run(made)
    assert keys["column-types"] == KEY
    more = KEYS | {"num-server-rounds": 4, "column-types": KEY}
    resumed = deployed(tmp_path, files, **more, resume=True)
    assert len(hashes(resumed)) == 5
    assert hashes(resumed) == hashes(deployed(tmp_path / "whole", files, **more))
    other = f"{KEY},"
    with pytest.raises(ConfigError, match='--resume: run-config key "column-types": expected'):
        deployed(tmp_path, files, **more | {"column-types": other, "num-server-rounds": 6}, resume=True)


HOSTILE = {
    "an input": {"day": "day:category(2024-03-01|2024-03-02)"},
    "the target": {"outcome": "outcome:ignore", "day": "day:target"},
    "the ids": {"day": "day:id", "fold": "fold:ignore"},
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("by", ["header", "owner"])
def test_a_server_cannot_use_a_column_that_a_site_ignores(what: str, by: str, tmp_path: Path) -> None:
    """All sites ignore a column, in the header or by `bouquet node --column-types`; a run orders it."""
    files = wards(tmp_path, {"day": TYPES["day"]} if by == "header" else {})
    policy = {name: {"column-types": "day:ignore"} for name in WARDS} if by == "owner" else {}
    orders = ", ".join(f'"{cell}"' for cell in {**TYPES, **HOSTILE[what]}.values())
    with pytest.raises(ConfigError, match='"column-types": expected the type that') as told:
        deployed(tmp_path / "run", files, policy, **KEYS, **{"column-types": orders})
    assert "withheld" in str(told.value)
    assert "day:ignore" not in str(told.value)


def test_one_site_that_ignores_a_column_is_left_out_and_the_others_train(tmp_path: Path) -> None:
    files = wards(tmp_path / "wards", {})
    own = {"ward-2": {"column-types": "sex:ignore"}}
    run_dir = deployed(tmp_path, files, own, **KEYS, **{"column-types": KEY})
    nodes = json.loads((run_dir / "nodes.json").read_text())
    assert len(nodes["nodes"]) == 2
    (left_out,) = nodes["left_out"]
    assert "got sex:category(f|m), where [withheld] is declared already" in left_out["reason"]
    assert json.loads((run_dir / "result.json").read_text())["left_out"] == [left_out]
    alike = {"ward-2": {"column-types": "day:ignore, sex:category(m|f)"}}
    fine = deployed(tmp_path / "alike", files, alike, **KEYS, **{"column-types": KEY})
    assert hashes(fine) == hashes(deployed(tmp_path / "plain", files, **KEYS, **{"column-types": KEY}))


def test_a_name_that_no_site_has_is_refused_before_round_1(tmp_path: Path) -> None:
    """A node cannot know whether another one has a column to ignore; the server can, if all answered."""
    files = wards(tmp_path / "wards", {})
    with pytest.raises(ConfigError, match=r"expected columns that a node has; got note, which none has"):
        deployed(tmp_path, files, **KEYS, **{"column-types": f"{KEY}, note:ignore"})
    text = files["ward-1"].read_text().splitlines()
    files["ward-1"].write_text("\n".join([text[0] + ",note", *(line + ",x" for line in text[1:])]) + "\n")
    run_dir = deployed(tmp_path / "b", files, **KEYS, **{"column-types": f"{KEY}, note:ignore"})
    assert len(json.loads((run_dir / "nodes.json").read_text())["nodes"]) == 3


def test_a_party_may_lack_many_columns_of_the_others() -> None:
    said = Registration(("bank",), np.array([3]), "p/bank", lacks=tuple(f"x{i}" for i in range(1000)))
    assert read_registration(registration_content(said)).lacks == said.lacks


# ------------------------------------------------------------------------------- parties, and analyses


def plain(files: Mapping[str, Path]) -> dict[str, Path]:
    for name, path in files.items():
        path.write_text(path.read_text().replace("who:id", f"{name} number", 1))
    return dict(files)


def test_parties_with_plain_files_end_as_those_with_typed_headers(tmp_path: Path) -> None:
    """Each party calls its ids in its own way; of a declaration each takes what is its own."""
    (tmp_path / "typed").mkdir()
    (tmp_path / "plain").mkdir()
    want = parties.play_own(parties.owners(tmp_path / "typed"), parties.config())
    types = ", ".join(f"{name} number:id" for name in parties.NAMES)
    files = plain(parties.owners(tmp_path / "plain"))
    found = parties.play_own(files, parties.config(column_types=f"{types}, label:target"))
    assert [row["model_sha256"] for row in found.rows] == [row["model_sha256"] for row in want.rows]
    with pytest.raises(
        ConfigError, match=r"expected columns that a node has; got dee number, which none has"
    ):
        parties.play_own(files, parties.config(column_types=f"{types}, dee number:id"))


def test_an_analysis_of_a_plain_file_is_that_of_a_typed_header(tmp_path: Path) -> None:
    keys = {
        "algorithm": "statistics", "dataset": "csv", "partition": "natural", "num-clients": 0,
        "statistics.columns": "age(0..120), sex(f|m), outcome(ill|well)", "num-server-rounds": 20,
    }  # fmt: skip
    tables = []
    for name, types, key in (("plain", {}, KEY), ("typed", TYPES, "")):
        path = {"data-path": str(write(tmp_path / f"{name}.csv", 1, types)), "run-name": name}
        folder = in_one_process(keys | path | {"column-types": key}, tmp_path / "runs")
        tables.append((folder / "table.csv").read_bytes())
    assert tables[0] == tables[1]
    assert b"sex" in tables[0]
