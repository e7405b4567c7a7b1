"""A folder for the monitor to look at, written by what writes the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder
from task.wire.messages import RejectedReply

SECRET = "s3cr3t-place"
EVIL = "<script>window.pwned=1</script>"


def round_row(number: int, dropped: int = 0) -> dict[str, Any]:
    """Return a line of rounds.jsonl; each one differs, as real ones do by their times."""
    drops = [
        RejectedReply(EVIL, number, "arrays/w", "finite numbers", f"NaN <b>at</b> {i}")
        for i in range(dropped)
    ]
    return {
        "round": number, "lr": 0.1, "train_loss": 2.0 / (number + 1) if number else None,
        "client_loss": None, "client_accuracy": None, "loss": 2.3 / (number + 1),
        "accuracy": 1 - 0.9 / (number + 1), "population": 4, "simulated_seconds": 0.0,
        "selected": ["ward-1", EVIL], "stragglers": [], "asked": 4 if number else 0,
        "answered": 4 - dropped if number else 0, "skipped": False, "metrics": {},
        "bytes_down": 119388 * bool(number), "bytes_up": 238776 * bool(number),
        "model_sha256": f"{number:064x}", "quarantined": [drop.as_dict() for drop in drops],
        "seconds": {"roll_call": 0.01, "train": 1.25 + number / 1000, "evaluate": 0.5, "total": 1.76},
    }  # fmt: skip


def client_row(name: str, number: int, accuracy: float) -> dict[str, Any]:
    """Return a line of clients.jsonl, of an evaluation."""
    metrics = {"accuracy": accuracy, "loss": 0.25}
    return {"name": name, "round": number, "phase": "evaluate", "examples": 30, "metrics": metrics}


def write_run(path: Path, rounds: int, of: int = 100) -> RunFolder:
    """Write the result folder of a run with these rounds done, 0 and up."""
    keys = {
        "algorithm": "fedavg",
        "dataset": "csv",
        "model": "2nn",
        "num-server-rounds": of,
        "data-path": SECRET,
    }
    folder = RunFolder.create(path, {"run": keys | {"seed": 1}}, resume=False)
    for number in range(rounds):
        folder.append_round(round_row(number))
    return folder
