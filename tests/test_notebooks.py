"""The notebooks in docs/: their cells run one after the other, from an empty folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.script import ROOT, run_script

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))


@pytest.mark.system
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_cell_of_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """A key or column that was renamed would show only when a reader runs the cell."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert not any(cell.get("outputs") for cell in cells)  # they would hold the folders of a machine
    run_script(tmp_path, "\n\n".join(code), timeout_s=500, MPLBACKEND="Agg")
    assert list((tmp_path / "runs").glob("*/result.json"))
