"""Sites with a table each, and runs over them: of nodes that have one each, or on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from client_app.app import make_app
from server_app.app import run
from task.resolve.read import read_config
from tests.support.grid import LocalGrid

HEADER = "age,bmi,job:category(clerk|nurse),note:ignore,outcome:target(well|ill)"
WARDS = ("ward-1", "ward-2", "ward-3")


def keys_in(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "dataset": "csv", "model": "logistic", "num-server-rounds": 1, "run-name": "r",
        "progress": "log", "runs-dir": str(folder / "runs"), "state-dir": str(folder / "state"), **more,
    }  # fmt: skip


def pooled(folder: Path, **more: Any) -> Path:
    keys = keys_in(folder, **more)
    return run(LocalGrid(make_app(keys), [{"partition-id": 0, "num-partitions": 1}]), read_config(keys))


def deployed(
    folder: Path, files: dict[str, Path], policy: dict[str, dict[str, Any]] | None = None, **more: Any
) -> Path:
    """Play a run of nodes, each with data of its own; `policy` is node config by name."""
    keys = keys_in(folder, **more)
    state = {"state-dir": keys.pop("state-dir")}
    own = [
        {"client-name": name, "data-path": str(path), **state, **(policy or {}).get(name, {})}
        for name, path in files.items()
    ]
    return run(LocalGrid(make_app(), own, keys), read_config(keys))


def table(path: Path, header: str, lines: int = 30, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    rows = [
        f"{a},{b:.1f},{('clerk', 'nurse')[i % 2]},x{i},{'ill' if a > 50 else 'well'}"
        for i, (a, b) in enumerate(zip(rng.integers(20, 80, lines), rng.random(lines), strict=True))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path
