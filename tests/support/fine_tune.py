"""The modules and commands of the page on fine-tuning, for tests that run them as they stand there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args

from server_app.results.folder import RunFolder
from task import trust
from task.config.read import flatten
from task.references import references_in
from tests.support.brought import imported_from
from tests.support.federation import in_one_process

PAGE = Path(__file__).parents[2] / "docs/howto/fine-tune.md"
SHORT = {"num-server-rounds": 1, "max-examples": 24, "num-clients": 3, "lora.target-modules": "c_attn"}


def make(folder: Path) -> None:
    """Write the page's modules and models into a folder."""
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text("utf-8"), re.S):
        (folder / name).write_text(code)
    with imported_from(folder), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        import base  # type: ignore[import-not-found]

        base.make()


def keys(which: str, **more: Any) -> dict[str, Any]:
    """Return the keys of one of the page's commands, with others."""
    lines = re.findall(r"^bouquet run -c '(.*)'$", PAGE.read_text("utf-8"), re.M)
    line = next(line for line in lines if which in line)
    quiet = {"device": "cpu", "progress": "none", "cache-dir": "cache"}
    return {**flatten(parse_config_args([line])), **quiet, **more}


def run(folder: Path, given: Mapping[str, Any], name: str, nodes: int = 1) -> RunFolder:
    """Do a run in this process, with all that it writes."""
    trust.user_named(references_in(given))
    return RunFolder(in_one_process({**given, "run-name": name}, folder / "runs", nodes))
