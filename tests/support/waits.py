"""Shorter waits for the tests of one process."""

from __future__ import annotations

import pytest

from task import timing


def scale_waits(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Multiply this process's waits for the rest of the test, but for those that are fixed."""
    for name, wait in timing.scaled(factor).items():
        monkeypatch.setattr(timing, name, wait)
