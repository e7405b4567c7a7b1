"""Runs of a federation, and the result of an undisturbed run of the same keys."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from server_app.deploy.link.jobs import Job

if TYPE_CHECKING:
    from tests.faults.federation import Federation

BOUQUET = str(Path(sys.executable).with_name("bouquet"))
ROUND_S = 120.0  # the longest that a round may take on a busy machine
KEYS: dict[str, Any] = {
    "dataset": "csv", "model": "2nn", "num-classes": 2, "learning-rate": 0.1, "local-epochs": 1,
    "local-test-fraction": 0.0, "batch-size": 10, "device": "cpu", "threads": 1, "stack": 1, "seed": 11,
    "progress": "none", "evaluate-every": 0,
}  # fmt: skip


@dataclass
class Run:
    """A run at the link."""

    fed: Federation
    name: str
    rounds: int

    @property
    def folder(self) -> Path:
        """Its result folder."""
        return self.fed.link_kit.runs / self.name

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the rounds so far; a line that is being written is left out."""
        path = self.folder / "rounds.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def row(self, server_round: int) -> dict[str, Any]:
        """Return the row of a round."""
        return next(row for row in self.rows() if row["round"] == server_round)

    def done(self) -> int:
        """Return the last round that is done; -1 before round 0."""
        return self.rows()[-1]["round"] if self.rows() else -1

    def job(self) -> Job:
        """Return its job."""
        return self.fed.job(self.name)

    def wait_round(self, server_round: int, within_s: float = 2 * ROUND_S) -> float:
        """Wait until a round is done; return the seconds that it took."""
        began = time.monotonic()

        def there() -> bool:
            job = self.job()
            assert not job.ended or self.done() >= server_round, f"{self.name} {job.state}: {job.reason}"
            return self.done() >= server_round

        self.fed.until(there, within_s, f"round {server_round} of {self.name}; it has {self.done()}")
        return time.monotonic() - began

    def wait_end(self, within_s: float = 4 * ROUND_S) -> dict[str, Any]:
        """Wait for the end; return the result.

        Raises:
            AssertionError: There is none.
        """
        self.fed.until(lambda: self.job().ended, within_s, f"the end of {self.name}; it has {self.done()}")
        job = self.job()
        assert job.state == "finished", f"{self.name} {job.state}: {job.reason}{self.fed.logs()}"
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    def hashes(self) -> list[str]:
        """Return the hash of the model after each round, from round 0."""
        rows = self.rows()
        assert [row["round"] for row in rows] == list(range(len(rows))), [row["round"] for row in rows]
        return [row["model_sha256"] for row in rows]

    def quarantined(self) -> list[dict[str, Any]]:
        """Return what was quarantined in all rounds."""
        return [line for row in self.rows() for line in row["quarantined"]]


def reference(folder: Path, data: Path, rounds: int) -> list[str]:
    """Return the hashes of the models of an undisturbed run of the same keys, in the simulation.

    Args:
        folder: For its results.
        data: The wards' tables; here one folder with a natural owner each.
        rounds: Rounds.
    """
    keys = KEYS | {
        "data-path": str(data), "partition": "natural", "num-clients": 0, "num-server-rounds": rounds,
    }  # fmt: skip
    pairs = [arg for k, v in keys.items() for arg in ("-c", f"{k}={json.dumps(v)}")]
    done = subprocess.run(
        [BOUQUET, "run", "--run-name", "reference", "--runs-dir", str(folder), "--nodes", "1", *pairs],
        capture_output=True, text=True, timeout=600, check=False,
        env=os.environ | {"BOUQUET_CACHE": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "reference" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["model_sha256"] for line in lines]


def write_ward(path: Path, seed: int, rows: int) -> None:
    """Write a table with four measurements and a label that depends on them; the last two rows are a test."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    y = (x[:, 0] + 2 * x[:, 1] > 0).astype(int)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["a", "b", "c", "d", "label", "split"])
        for i, (row, label) in enumerate(zip(x, y, strict=True)):
            out.writerow([*map(float, row), label, "train" if i < rows - 2 else "test"])
