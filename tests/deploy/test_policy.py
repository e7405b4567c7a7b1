"""What the owner of a node allows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server_app.deploy.host import policy
from task import timing
from task.errors import RefusedError


def hook(folder: Path, text: str) -> str:
    path = folder / "may-train"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_never_answers_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "HOOK_S", 0.3)
    with pytest.raises(RefusedError, match=r"did not answer within 0.3 s"):
        policy.ask(hook(tmp_path, "exec sleep 60"))


def test_a_machine_that_sleeps_while_the_program_is_asked_trains(tmp_path: Path) -> None:
    program = hook(tmp_path, f"touch {tmp_path}/asked; sleep 0.5")
    code = f"from server_app.deploy.host import policy; policy.ask({program!r})"
    scaled = os.environ | {timing.TEST_SCALE: "0.2"}  # 2 s for an answer
    node = subprocess.Popen([sys.executable, "-c", code], env=scaled, start_new_session=True)
    while not (tmp_path / "asked").exists():
        assert node.poll() is None, "the program was not asked"
        time.sleep(0.01)
    os.killpg(node.pid, signal.SIGSTOP)
    time.sleep(4.5)
    os.killpg(node.pid, signal.SIGCONT)
    assert node.wait(timeout=60) == 0
