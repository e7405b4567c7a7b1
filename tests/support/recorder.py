"""Writes down every array of every message that any process of a run makes: for ``sitecustomize``.

A folder with a ``sitecustomize.py`` that calls `install`, first on PYTHONPATH, reaches all that a run starts,
whoever starts it. A message is seen when it is made, so on both ends and in whichever engine.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "flwr.app.message.message"
LOG = "BOUQUET_TEST_MESSAGES"

SITE = """import sys
sys.path.insert(0, {root!r})
from tests.support.recorder import install
install()
"""


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the usual finders find the module of `Message`, and patches it once it is there."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            _watch(module.Message)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


def _watch(message: Any) -> None:
    make = message.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if self.has_content():
            _write(self)

    message.__init__ = made


def _write(message: Any) -> None:
    from task.wire.packing import unpacked  # not before the module that is watched is there

    content = unpacked(message.content)
    line = {
        "process": os.path.basename(sys.argv[0]),
        "type": message.metadata.message_type,
        "reply": bool(message.metadata.reply_to_message_id),
        "arrays": {
            r: {n: list(a.shape) for n, a in record.items()} for r, record in content.array_records.items()
        },
    }
    with Path(os.environ[LOG]).open(
        "a"
    ) as file:  # one short write at the end of the file: no lines are mixed
        file.write(json.dumps(line) + "\n")


def install() -> None:
    """Watch all messages, if the environment says where to write them down."""
    if LOG in os.environ:
        sys.meta_path.insert(0, _Finder())
