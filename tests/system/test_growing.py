"""`bouquet node --data FILE` over gRPC while the file grows: the rounds that follow count the new rows."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from task.storage.files import write_text
from tests.support.link import running_link
from tests.system.test_node import running_node

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(900)]

HEADER, ROWS, MORE = "a,b,label:target(0|1)\n", 30, 12


def table(rows: int) -> str:
    return HEADER + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(rows))


def lines_of(path: Path) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def test_rows_that_are_added_count_from_the_next_round_on(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("ward-1", "ward-2")}
    for path in files.values():
        path.write_text(table(ROWS))
    keys = {
        "dataset": "csv", "model": "logistic", "num-classes": 2, "num-server-rounds": 12, "min-nodes": 2,
        "local-test-fraction": 0.0, "fraction-evaluate": 0.0, "run-name": "grows", "runs-dir": str(tmp_path),
        "progress": "none", "stream.own-data": True,
    }  # fmt: skip
    with (
        running_link(tmp_path / "link", list(files)) as link,
        running_node(link, "ward-1", "--data", str(files["ward-1"])) as node,
        running_node(link, "ward-2", "--data", str(files["ward-2"])) as other,
    ):
        for one in (node, other):
            one.until(lambda one=one: "connected to" in one.said())
        number, rounds = link.submit(keys), tmp_path / "grows" / "rounds.jsonl"
        deadline = time.monotonic() + 240
        while len(lines_of(rounds)) < 4:
            assert time.monotonic() < deadline, link.logs()
            time.sleep(0.05)
        write_text(files["ward-1"], table(ROWS + MORE))  # beside it and renamed: never half a file
        assert link.wait(number) == "finished:completed", link.logs()
        ledgers = list((node.kit / "cache").rglob(".own-data/*.jsonl"))
    trained = lines_of(tmp_path / "grows" / "clients.jsonl")
    found = {c: [x["examples"] for x in trained if x["name"] == c] for c in files}
    assert found["ward-2"] == [ROWS] * 12
    assert found["ward-1"] == sorted(found["ward-1"])
    assert set(found["ward-1"]) == {ROWS, ROWS + MORE}
    # At most the round in whose middle the file changed is without it, and says why.
    quarantined = [line["got"] for row in lines_of(rounds) for line in row["quarantined"]]
    assert len(found["ward-1"]) == 12 - len(quarantined) >= 11
    assert all("changed since" in got for got in quarantined)
    (ledger,) = ledgers
    assert [line["examples"] for line in lines_of(ledger)][-1] == ROWS + MORE
    assert os.stat(ledger).st_mode & 0o077 == 0
