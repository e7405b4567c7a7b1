"""Flower's simulation engine around our workers: its pace, its end, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.server.superlink.fleet.vce import vce_api

from server_app.engines.workers import Workers
from strategies.engine.exchange import Exchange, Terms
from strategies.membership.membership import Membership
from task.flower.simulation import _prompt, engine
from tests.server_app.test_workers import ask, make_app, pid_of

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def requests(nodes: list[int], **config: float) -> list[Message]:
    content = RecordDict({"config": ConfigRecord(dict(config))})
    return [Message(content, dst_node_id=node, message_type="train") for node in nodes]


def test_messages_go_round_through_flowers_engine_without_its_pauses() -> None:
    workers = Workers(make_app, 2)
    with engine(make_app, workers, nodes=4) as (grid, _stop):
        nodes = list(grid.get_node_ids())
        assert len(nodes) == 4
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            replies = list(Exchange(grid, requests(nodes), 30.0, Terms(Membership(30.0))))
            seconds.append(time.perf_counter() - began)
            assert sorted(r.metadata.src_node_id for r in replies) == sorted(nodes)
        assert len({pid_of(r) for r in replies}) == 2
        assert sorted(seconds)[10] < 0.05  # Flower's own pace is 0.1 s
        began = time.perf_counter()
    assert time.perf_counter() - began < 0.7  # and its end takes up to 1 s


def test_stopping_early_leaves_the_block_free_to_go_on_while_work_is_dropped() -> None:
    workers = Workers(make_app, 1)
    with engine(make_app, workers, nodes=1) as (grid, stop):
        grid.push_messages(requests(list(grid.get_node_ids()), sleep=60))
        time.sleep(0.1)
        began = time.perf_counter()
        stop()
        assert ask(workers)[0].has_error()
    assert time.perf_counter() - began < 5


def test_an_error_in_the_block_ends_the_workers_and_comes_out_as_it_is() -> None:
    workers = Workers(make_app, 1)
    pid = pid_of(ask(workers)[0])
    with pytest.raises(KeyboardInterrupt), engine(make_app, workers, nodes=1):
        raise KeyboardInterrupt
    assert not psutil.pid_exists(pid)


def test_the_pace_is_set_for_the_time_of_a_run_only_and_not_on_an_engine_built_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("add_messages_to_queue", "Queue")
    theirs = [getattr(vce_api, n) for n in names]
    with _prompt(lambda **_: None):
        assert not {getattr(vce_api, n) for n in names} & set(theirs)
    assert [getattr(vce_api, n) for n in names] == theirs

    def other(state: object, queue: object) -> None: ...

    monkeypatch.setattr(vce_api, "add_messages_to_queue", other)
    with _prompt(lambda **_: None):
        assert [getattr(vce_api, n) for n in names] == [other, theirs[1]]


def test_what_is_imported_before_the_fork_starts_no_thread_no_gpu_and_no_ray() -> None:
    code = (
        "import sys, threading, server_app.engines.simulate, torch\n"
        "assert threading.active_count() == 1 and not torch.cuda.is_initialized()\n"
        "heavy = ('ray', 'torch._dynamo', 'torch._inductor', 'torchvision', 'sklearn', 'matplotlib')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
