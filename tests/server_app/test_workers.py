"""Worker processes: they answer, their deaths are answered for, and they end with the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from server_app.engines.simulate import simulate
from server_app.engines.workers import Workers
from task.errors import ConfigError
from task.wire.error_codes import ErrorCode

# The driver of a run forks before it has threads; the test's process may have some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def make_app() -> ClientApp:
    """An app that says who it is, counts in its context, and does harm if asked to."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        began = time.monotonic()
        config = message.content.config_records["config"]
        if config.get("raise"):
            raise ValueError(f"refused {config['raise']}")
        time.sleep(float(config.get("sleep", 0.0)))  # type: ignore[arg-type]
        count = int(context.state.config_records.get("count", {}).get("n", 0)) + 1  # type: ignore[arg-type, call-overload]
        context.state["count"] = ConfigRecord({"n": count})
        answer: dict[str, Any] = {"pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        answer |= {"began": began, "ended": time.monotonic()}
        return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)

    return app


@contextmanager
def started(count: int, gpus: int = 0) -> Iterator[Workers]:
    workers = Workers(make_app, count, gpus=gpus)
    try:
        yield workers
    finally:
        workers.terminate()


def ask(workers: Workers, context: Context | None = None, **config: str | float) -> tuple[Message, Context]:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    content = RecordDict({"config": ConfigRecord(dict(config))})
    message = Message(content, dst_node_id=5, message_type="train")
    return workers.answer(message, context or Context(7, 5, {}, RecordDict(), {}))


def pid_of(reply: Message) -> int:
    return int(reply.content.config_records["answer"]["pid"])  # type: ignore[arg-type]


def until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_another_process_answers_and_the_nodes_context_comes_back_changed() -> None:
    with started(1) as workers:
        assert workers.count == 1
        reply, context = ask(workers)
        again, context = ask(workers, context)
        assert pid_of(reply) == pid_of(again) != os.getpid()
        assert context.state.config_records["count"]["n"] == 2
    assert not psutil.pid_exists(pid_of(reply))


def test_messages_are_answered_side_by_side() -> None:
    with started(2) as workers, ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: ask(workers, sleep=1)[0], range(2)))
    one, other = (r.content.config_records["answer"] for r in replies)
    assert one["pid"] != other["pid"]
    assert one["began"] < other["ended"]  # type: ignore[operator]
    assert other["began"] < one["ended"]  # type: ignore[operator]


def test_what_the_app_raises_is_an_error_reply_and_its_traceback_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = Context(7, 5, {}, RecordDict(), {})
    with started(1) as workers:
        reply, context = ask(workers, before, **{"raise": "ward-3"})
        assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        assert reply.error.reason.startswith("code: ValueError: refused ward-3 (test_workers.py, line ")
        assert context is before
        assert not ask(workers)[0].has_error()
    assert "in train\n" in caplog.text


def test_a_worker_that_is_killed_at_work_is_answered_for_and_replaced() -> None:
    with started(1) as workers, ThreadPoolExecutor(1) as pool:
        victim = pid_of(ask(workers)[0])
        answer = pool.submit(ask, workers, sleep=60)
        assert until(workers._idle.empty)
        time.sleep(0.1)
        os.kill(victim, signal.SIGKILL)
        reply, _ = answer.result(timeout=10)
        assert reply.has_error()
        assert f"worker process {victim} of the simulation was killed by SIGKILL" in reply.error.reason
        successor = pid_of(ask(workers)[0])
        assert successor != victim
    assert not psutil.pid_exists(successor)


def test_a_worker_that_is_killed_idle_costs_no_message() -> None:
    with started(1) as workers:
        victim = pid_of(ask(workers)[0])
        os.kill(victim, signal.SIGKILL)
        workers._workers[0].process.join()
        reply, _ = ask(workers)
        assert not reply.has_error()
        assert pid_of(reply) != victim


def test_the_end_does_not_wait_for_a_worker_at_work() -> None:
    with started(1) as workers, ThreadPoolExecutor(1) as pool:
        pid = pid_of(ask(workers)[0])
        answer = pool.submit(ask, workers, sleep=60)
        assert until(workers._idle.empty)
        began = time.perf_counter()
        workers.terminate()
        reply, _ = answer.result(timeout=10)
        assert reply.has_error()
        assert ask(workers)[0].has_error()  # and nobody takes its place
        assert time.perf_counter() - began < 5
        workers.terminate()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("named", "gpus", "seen"),
    [
        ("2,5", 0, ["2", "2", "5"]),
        ("7,2,5", 2, ["2", "7", "7"]),
        ("", 1, ["0"] * 3),
        ("", 0, ["0", "1", "2"]),
    ],
)
def test_workers_take_turns_at_the_gpus_that_the_driver_may_see(
    named: str, gpus: int, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with started(3, gpus) as workers, ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: ask(workers, sleep=0.5)[0], range(3)))
        assert sorted(r.content.config_records["answer"]["gpus"] for r in replies) == seen


def refused_gpus(gpus: int, nodes: int = 0, **keys: str) -> str:
    with pytest.raises(ConfigError) as refused:
        simulate({"dataset": "digits", **keys}, nodes, gpus=gpus)
    return str(refused.value)


def test_more_gpus_than_there_are_and_gpus_without_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert refused_gpus(3) == "--gpus: expected at most 2, those that this process may use; got 3"
    assert "(--nodes)" in refused_gpus(2, nodes=1)
    assert 'device = "auto" or "cuda"' in refused_gpus(2, device="cpu")


DRIVER = """
import threading, time
from tests.server_app.test_workers import Workers, ask, make_app, pid_of
workers = Workers(make_app, 3)
for _ in range(2):  # two are at work when the driver dies, one is idle
    threading.Thread(target=ask, args=(workers,), kwargs={"sleep": 60}, daemon=True).start()
time.sleep(0.5)
print(*[w.process.pid for w in workers._workers.values()], flush=True)
time.sleep(60)
"""


def test_workers_end_when_their_driver_is_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids = [int(word) for word in driver.stdout.readline().split()]
    assert len(pids) == 3
    assert all(psutil.pid_exists(pid) for pid in pids)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    assert until(lambda: not any(map(psutil.pid_exists, pids)))
