"""One reader for files of lines: half-written ends, damaged lines, and files that are cut back meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server_app.deploy.link.follow import Rounds
from server_app.results.lines import TAIL_BYTES, last_rows, parse, read_lines


def line(number: int, **more: object) -> str:
    return json.dumps({"round": number, **more}) + "\n"


def test_a_half_written_last_line_comes_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(0) + line(1)[:5])
    first = read_lines(path)
    assert (first.rows, first.after, first.problems) == ([{"round": 0}], len(line(0)), [])
    assert list(last_rows(path)) == [{"round": 0}]
    path.write_text(line(0) + line(1))
    again = read_lines(path, first.after, first.mark)
    assert (again.rows, again.restarted) == ([{"round": 1}], False)


@pytest.mark.parametrize("bad", ["{", "[1]", "\ufffd", "[" * 100_000], ids=["half", "list", "text", "deep"])
def test_a_damaged_line_hides_no_other(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(0) + bad + "\n" + line(2))
    chunk = read_lines(path)
    assert chunk.rows == [{"round": 0}, {"round": 2}]
    assert len(chunk.problems) == 1
    assert chunk.problems[0].startswith(f"rounds.jsonl, line at byte {len(line(0))}: damaged: ")
    assert list(last_rows(path)) == [{"round": 2}, {"round": 0}]
    assert [row["round"] for row in Rounds(path, fresh=False).new()] == [0, 2]


def test_the_last_line_is_found_however_long_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(0) + line(1, names="x" * 3 * TAIL_BYTES))
    assert next(last_rows(path))["round"] == 1
    assert list(last_rows(tmp_path / "none")) == []


def test_nan_is_refused_only_where_it_is_said() -> None:
    assert parse(b'{"loss": NaN}').keys() == {"loss"}
    with pytest.raises(ValueError, match="expected a JSON object; got 13 bytes"):
        parse(b'{"loss": NaN}', strict=True)


def test_who_follows_has_each_round_once_also_when_a_resume_cuts_the_file_back(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    rounds = Rounds(path, fresh=False)
    assert list(rounds.new()) == []
    path.write_text(line(0) + line(1) + line(2)[:4])
    assert [row["round"] for row in rounds.new()] == [0, 1]
    path.write_text(line(0))
    assert list(rounds.new()) == []
    path.write_text(line(0) + line(1, again=True) + line(2) + line(3))
    assert [row["round"] for row in rounds.new()] == [2, 3]


def test_who_follows_a_new_run_waits_for_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(0) + line(1))
    rounds = Rounds(path, fresh=True)
    assert list(rounds.new()) == []
    path.rename(tmp_path / "old")
    path.write_text(line(0))
    assert [row["round"] for row in rounds.new()] == [0]
