"""The modules and commands of the page on texts and masks, for tests that run them as they stand there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.common.config import parse_config_args

from server_app.results.folder import RunFolder
from task.config.read import flatten
from tests.support.federation import in_one_process

PAGE = Path(__file__).parents[2] / "docs/howto/texts-and-masks.md"


def lines() -> dict[str, str]:
    """Return the run-config keys of the page's commands as it gives them, by the data set's module."""
    pairs = re.findall(r"^bouquet run -c '(.*)'$", PAGE.read_text(encoding="utf-8"), re.M)
    return {re.findall(r'dataset="(\w+):', line)[0]: line for line in pairs}


def commands() -> dict[str, dict[str, Any]]:
    """Return the same as keys with values."""
    return {name: dict(flatten(parse_config_args([line]))) for name, line in lines().items()}


def write_modules(folder: Path) -> None:
    """Write the page's modules into a folder."""
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        (folder / name).write_text(code)


def run(folder: Path, keys: Mapping[str, Any], nodes: int = 2, name: str = "run") -> RunFolder:
    """Do a run in this process, with all that it writes."""
    quiet = {"cache-dir": str(folder / "cache"), "device": "cpu", "progress": "none"}
    return RunFolder(in_one_process({**quiet, **keys, "run-name": name}, folder / "runs", nodes))
