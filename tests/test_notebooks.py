"""The notebooks in docs/: their cells run one after the other, from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


@pytest.mark.system
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_cell_of_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """A key or column that was renamed would show only when a reader runs the cell."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert not any(cell.get("outputs") for cell in cells)  # they would hold the folders of a machine
    (tmp_path / "cells.py").write_text("\n\n".join(code), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "cells.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "runs").glob("*/result.json"))
