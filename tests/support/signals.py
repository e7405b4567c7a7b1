"""Ctrl-C for processes that a test starts."""

from __future__ import annotations

import signal


def hear_ctrl_c() -> None:
    """Let a new process hear SIGINT, as a ``preexec_fn``: the background jobs of a shell ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
