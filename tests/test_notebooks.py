"""The notebooks in docs/: their cells run one after the other, from an empty folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.script import ROOT, run_script

NOTEBOOKS = sorted((ROOT / "docs").glob("*/*.ipynb"))


@pytest.mark.system
def test_every_cell_of_the_notebooks_runs(tmp_path: Path) -> None:
    """A key or column that was renamed would show only when a reader runs the cell."""
    script = "import os\n"
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert len(code) > 3
        (rounds, *_) = re.findall(r"num_server_rounds\W+(\d+)", "".join(code))
        code = [re.sub(rf"\b{rounds}\b", "2", cell) for cell in code]  # as well where it names the last one
        assert not any(cell.get("outputs") for cell in cells)  # they would hold the folders of a machine
        (tmp_path / path.stem).mkdir()
        cells_of_one = "\n\n".join(code)
        script += f"os.chdir({str(tmp_path / path.stem)!r})\n"
        script += f"exec(compile({cells_of_one!r}, {path.name!r}, 'exec'), {{'__name__': '__main__'}})\n"
    run_script(tmp_path, script, timeout_s=500, MPLBACKEND="Agg")
    assert all(list((tmp_path / path.stem / "runs").glob("*/result.json")) for path in NOTEBOOKS)
