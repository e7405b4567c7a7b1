"""Shorter waits for the tests of one process, and clocks that do not depend on how busy the machine is."""

from __future__ import annotations

import time
from types import ModuleType

import pytest

from task import timing


def scale_waits(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Multiply this process's waits for the rest of the test, but for those that are fixed."""
    for name, wait in timing.scaled(factor).items():
        monkeypatch.setattr(timing, name, wait)


class Clock:
    """What a module sees in place of `time`: a clock that stands until the test lets time pass."""

    def __init__(self) -> None:
        self._now = time.monotonic()

    def monotonic(self) -> float:
        """Return the present second."""
        return self._now

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


def set_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Clock:
    """Give a module a `Clock` for the rest of the test."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock
