"""A node's tasks in their processes: every way to end one, policy, memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server_app.deploy.host.resource_limits import proportional_bytes
from task import timing
from tests.support.runtime import Runtime, crashing_bundle, other_node, own_bundle, running_runtime

pytestmark = pytest.mark.system

ENDS = {
    "SIGTERM": "was killed by SIGTERM",
    "SIGKILL": "was killed by SIGKILL (out of memory?)",
    "SIGSEGV": "was killed by SIGSEGV",
    "os._exit": "ended with exit code 0",
    "sys.exit": "called sys.exit(3)",
    "None": "returned NoneType; expected a Message",
    "raises": "ValueError at ",  # its text stays on the node
    "MemoryError": "MemoryError",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return crashing_bundle(tmp_path_factory.mktemp("app") / "app")


@pytest.fixture(scope="module")
def crashing(bundle: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with running_runtime(tmp_path_factory.mktemp("crashing"), bundle, apps="any") as runtime:
        runtime.ask()  # the first one installs the bundle
        yield runtime


@pytest.mark.parametrize("how", ENDS)
def test_however_a_task_ends_its_message_is_answered_and_the_next_one_works(
    crashing: Runtime, how: str
) -> None:
    began = time.monotonic()
    reply = crashing.ask(how=how)
    took_s = time.monotonic() - began
    assert reply.has_error()
    assert ENDS[how] in reply.error.reason
    assert took_s < 5 * max(1.0, os.getloadavg()[0] / 2), took_s
    assert not crashing.ask().has_error()


def test_a_task_past_its_messages_time_to_live_is_ended(crashing: Runtime) -> None:
    """A reply to it would be refused, and the node would be busy with it for nothing."""
    reply = crashing.ask(how="sleeps 600", ttl=1)
    assert "its message's time to live had expired" in reply.error.reason
    assert not crashing.ask().has_error()


def test_a_task_whose_run_has_ended_is_ended(crashing: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run's message does not wait for it."""
    monkeypatch.setattr(timing, "BEAT_PAUSE_S", 0.1)
    assert not crashing.ask(how="sleeps 1").has_error()  # a run that goes on is left alone
    crashing.link.over = True
    try:
        reply = crashing.ask(how="sleeps 600")
    finally:
        crashing.link.over = False
    assert "its run has ended" in reply.error.reason
    assert not crashing.ask().has_error()


def alone(runtime: Runtime) -> int:
    """Wait until the parent has no process below it; return what it uses then, in bytes."""
    deadline = time.monotonic() + 20
    while runtime.children():
        assert time.monotonic() < deadline, runtime.children()
        time.sleep(0.05)
    time.sleep(0.2)
    # what is its own: its share of a library's pages depends on who else maps them at this moment
    return proportional_bytes(runtime.warm.pid, ("Pss_Anon", "Pss_Shmem"))


def test_the_parent_stays_small_and_leaves_no_process_behind(crashing: Runtime) -> None:
    for i in range(6):
        crashing.ask(how=("", "SIGKILL", "raises")[i % 3])
    before = alone(crashing)
    for i in range(30):
        crashing.ask(how=("", "SIGKILL", "raises")[i % 3])
    after = alone(crashing)
    print(f"{before} -> {after} bytes over 30 tasks")
    assert after < before * 1.02, (before, after)
    # 1, or 2 with the pool of a linear algebra library
    assert psutil.Process(crashing.warm.pid).num_threads() <= 2


def test_the_process_of_a_message_has_no_connection(crashing: Runtime) -> None:
    """Nor does its parent: what an app does with either reaches no network in the node's name."""
    alone(crashing)
    crashing.order(how="sleeps 1")
    for process in (crashing.wait_for_child(), psutil.Process(crashing.warm.pid)):
        assert not process.net_connections("inet")
        assert not [file for file in process.open_files() if file.path.endswith((".key", ".secret"))]
    assert not crashing.reply().has_error()


def test_another_app_is_refused_and_this_is_written_down(
    crashing: Runtime, bundle: bytes, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.log"
    with other_node(crashing, tmp_path, bundle, audit=str(audit)) as runtime:
        reply = runtime.ask(how="SIGKILL")
    assert reply.has_error()
    assert "runs its installed app only" in reply.error.reason
    assert "it is another app" in reply.error.reason
    assert "refused train of run 7" in audit.read_text()


def test_the_hook_and_the_limit_of_rounds_say_no(crashing: Runtime, bundle: bytes, tmp_path: Path) -> None:
    hook = tmp_path / "on-battery"
    hook.write_text(f"#!/bin/sh\ntest -e {tmp_path}/mains || {{ echo on battery; exit 1; }}\n")
    hook.chmod(0o755)
    site = {"apps": "any", "may_train": str(hook), "max_rounds": 2}
    with other_node(crashing, tmp_path, bundle, **site) as runtime:
        assert "not training: " in runtime.ask().error.reason
        assert not runtime.ask("evaluate").has_error()
        (tmp_path / "mains").touch()
        assert not runtime.ask().has_error()
        assert "max-rounds = 2 of this run are done" in runtime.ask().error.reason
    assert (tmp_path / "rounds.json").read_text().strip()


def test_the_installed_app_runs_in_the_fork(crashing: Runtime, tmp_path: Path) -> None:
    """What comes back shows that this app answered: it refuses a message that holds nothing of its own."""
    with other_node(crashing, tmp_path, own_bundle()) as runtime:
        reply = runtime.ask()
    assert "installed app only" not in reply.error.reason
    assert "run-config key" in reply.error.reason or "expected" in reply.error.reason
    alone(crashing)  # the parent hears at once that the process has ended, not with the next order


def test_a_task_that_wants_too_much_memory_gets_an_error(bundle: bytes, tmp_path: Path) -> None:
    of_tests = proportional_bytes(os.getpid(), ("Pss_Anon", "Pss_Shmem"))  # they are the node's connection
    with running_runtime(tmp_path, bundle, apps="any", max_memory=2**30 + of_tests) as runtime:
        assert not runtime.ask(how="allocates 100").has_error()
        reason = runtime.ask(how="allocates 1500").error.reason
        assert re.search(r"--max-memory \d+M: this task needs at least \d+M: ", reason)
        assert not runtime.ask().has_error()


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.1])
def test_a_process_that_is_killed_before_it_knows_its_message_is_answered_for(
    after_s: float, crashing: Runtime
) -> None:
    alone(crashing)
    crashing.order(how="sleeps 600")
    child = crashing.wait_for_child()
    time.sleep(after_s)
    child.kill()
    assert "was killed by SIGKILL" in crashing.reply(within_s=20).error.reason
    assert not crashing.ask().has_error()


def test_what_an_app_keeps_comes_back_with_the_next_message(crashing: Runtime) -> None:
    assert not crashing.ask(how="keeps").has_error()
    assert not crashing.ask(how="kept").has_error()
    assert "KeyError" in crashing.ask(how="forgotten").error.reason


def test_a_task_ends_with_its_parent(crashing: Runtime) -> None:
    crashing.order(how="sleeps 600")
    children = [crashing.wait_for_child()]
    crashing.stop()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert "killed with the parent of all tasks" in crashing.reply(within_s=20).error.reason
    crashing.start()
    assert not crashing.ask().has_error()
