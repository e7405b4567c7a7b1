"""The supervisor: what ends is started again, what is stopped leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from server_app.deploy.host import processes
from server_app.deploy.host.processes import Child, Supervisor, how_it_ended, only_one
from task import timing
from task.errors import BouquetError
from tests.support.waits import scale_waits


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_waits(monkeypatch, 0.2)


SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def until(supervisor: Supervisor, true: object, within_s: float = 30.0) -> None:
    """Let the supervisor look until something holds."""
    deadline = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        supervisor.look()
        time.sleep(0.02)


def test_a_child_that_ends_is_started_again_after_a_growing_pause(tmp_path: Path) -> None:
    told: list[str] = []
    with Supervisor(tmp_path, told.append) as supervisor:
        child = supervisor.add(Child("brief", [sys.executable, "-c", "print('here', flush=True); exit(3)"]))
        until(supervisor, lambda: child.starts == 3)
    assert [line.rpartition(" in ")[2] for line in told[:2]] == ["0.1 s", "0.2 s"]
    assert told[0].startswith("brief ended with exit code 3")
    log = (tmp_path / "brief.log").read_text()
    assert log.count("here") >= 2
    assert log.count("---- start") == 3


@pytest.mark.parametrize("unwell", [True, False])
def test_a_child_that_lived_long_begins_with_the_first_pause_again(
    unwell: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "RECOVERED_S", 0.0)
    told: list[str] = []
    script = SLEEP if unwell else [sys.executable, "-c", "exit(3)"]
    with Supervisor(tmp_path, told.append) as supervisor:
        child = supervisor.add(Child("child", script, health=lambda: "does not answer" if unwell else ""))
        until(supervisor, lambda: child.starts == 3)
    assert [line.rpartition(" in ")[2] for line in told[:2]] == ["0.1 s"] * 2


def test_a_child_whose_environment_cannot_be_read_yet_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "marked", lambda mark: iter(()))
    with Supervisor(tmp_path, lambda line: None) as supervisor:
        child = supervisor.add(Child("young", SLEEP))
        process = child.process
    assert process is not None
    assert process.poll() is not None


def test_an_unwell_child_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """Also a process that left the process group and outlives its parent."""
    pid = tmp_path / "pid"
    script = (
        "import subprocess, sys, time, pathlib\n"
        f"p = subprocess.Popen({SLEEP!r}, start_new_session=True)\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)\n"
    )
    ill: list[str] = []
    with Supervisor(tmp_path, lambda line: None) as supervisor:
        child = supervisor.add(Child("parent", [sys.executable, "-c", script], health=lambda: "".join(ill)))
        until(supervisor, lambda: pid.exists() and pid.read_text())
        first = psutil.Process(int(pid.read_text()))
        ill.append("ill")
        supervisor.look()
        assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
        ill.clear()
        pid.unlink()
        until(supervisor, lambda: child.starts == 2 and pid.exists() and pid.read_text())
        second = psutil.Process(int(pid.read_text()))
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE


def test_what_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TERMINATE_S", 0.5)
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    with Supervisor(tmp_path, lambda line: None) as supervisor:
        child = supervisor.add(Child("deaf", [sys.executable, "-c", script]))
        until(supervisor, lambda: "deaf\n" in supervisor.tail("deaf").partition("\n")[2])
        assert child.process is not None
        process = psutil.Process(child.process.pid)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert not process.is_running()


def test_a_child_ends_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    child = (
        "from server_app.deploy.host.processes import end_with_parent; end_with_parent()\n"
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'ends')!r}).touch(); time.sleep(600)"
    )
    script = (
        "import sys, pathlib, time\n"
        "from server_app.deploy.host.processes import Child, Supervisor\n"
        f"w = Supervisor(pathlib.Path({str(tmp_path)!r}))\n"
        f"c = w.add(Child('c', [sys.executable, '-c', {child!r}]))\n"
        f"while not pathlib.Path({str(tmp_path / 'ends')!r}).exists(): time.sleep(0.02)\n"
        "print(c.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        process = psutil.Process(int(supervisor.stdout.readline()))
        assert process.is_running()
        supervisor.kill()
        deadline = time.monotonic() + 20
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_log_that_grows_too_long_moves_aside_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 5000)
    script = "import time\nwhile True: print('x' * 99, flush=True); time.sleep(0.002)"
    with Supervisor(tmp_path, lambda line: None) as supervisor:
        child = supervisor.add(Child("loud", [sys.executable, "-c", script]))
        until(supervisor, lambda: (tmp_path / "loud.log.1").exists())
        until(supervisor, lambda: (tmp_path / "loud.log").stat().st_size > 1000)
        assert (tmp_path / "loud.log").stat().st_size < 50_000
        assert child.starts == 1


def test_two_cannot_hold_one_lock(tmp_path: Path) -> None:
    lock, what = tmp_path / "lock", "the node ward-1"
    refusal = f"{what} is already running, as process {os.getpid()}"
    with only_one(lock, what), pytest.raises(BouquetError, match=refusal), only_one(lock, what):
        pass
    with only_one(lock, what):
        pass


def test_exit_codes_in_words() -> None:
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(0) == "ended with exit code 0"


def test_a_folder_that_is_moved_ends_what_runs_from_it_and_logs_that_are_deleted_are_made(
    tmp_path: Path,
) -> None:
    """A revoked node's kit is moved away, with its logs, while the node runs; a child ends at that moment."""
    kit, children = tmp_path / "kit", []
    with Supervisor(kit / "logs", lambda line: None) as supervisor:
        child = supervisor.add(Child("child", SLEEP))
        (kit / "logs" / "child.log").unlink()
        (kit / "logs").rmdir()
        child.process.kill()  # type: ignore[union-attr]
        until(supervisor, lambda: child.starts == 2)
        assert (kit / "logs" / "child.log").exists()
        children.append(psutil.Process(child.process.pid))  # type: ignore[union-attr]
        timer = threading.Timer(1.0, lambda: (kit.rename(tmp_path / "away"), child.process.kill()))  # type: ignore[union-attr]
        timer.start()
        with pytest.raises(BouquetError, match=r"kit: expected this folder to stay .* moved or deleted"):
            supervisor.run(threading.Event())
        timer.join()
    assert not any(process.is_running() for process in children)
    assert not kit.exists()


def test_a_log_file_has_times_and_no_colours(tmp_path: Path) -> None:
    """Flower's own handler writes the codes of colours into a file, too."""
    lines = "import flwr.app; from task.text import logger; from server_app.deploy.host.processes import *"
    code = f"{lines}; logger.info('before'); log_plainly(); logger.info('after')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = done.stderr.splitlines()[-2:]
    assert "\x1b" in before
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO: after", after)


def test_a_line_is_said_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that print to one terminal otherwise say half a line each."""
    pieces: list[str] = []

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

    monkeypatch.setattr("sys.stderr", Terminal())
    processes.say("ward-1: connected")
    assert len(pieces) == 1
    assert pieces[0].endswith(" ward-1: connected\n")
