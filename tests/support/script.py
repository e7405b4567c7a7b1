"""Runs a user's script as its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_script(folder: Path, text: str, timeout_s: float = 300, **environment: str) -> str:
    """Run a script in a folder, with this checkout on the path; return what it prints."""
    (folder / "script.py").write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
