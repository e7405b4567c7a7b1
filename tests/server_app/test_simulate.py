"""The grid of a simulation: its replies, errors, times and end; and what is imported before the fork."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from server_app.engines.workers import Workers
from strategies.engine.exchange import Exchange, Terms
from strategies.membership.membership import Membership
from task.flower.simulation import Answer, VirtualNodes
from task.wire.error_codes import ErrorCode
from tests.server_app.test_workers import make_app, pid_of, until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@contextmanager
def nodes(answer: Answer, number: int, at_once: int = 1) -> Iterator[VirtualNodes]:
    grid = VirtualNodes(answer, number, at_once)
    try:
        yield grid
    finally:
        grid.close()


def request(node: int, ttl: float | None = None, **config: float) -> Message:
    content = RecordDict({"config": ConfigRecord(dict(config))})
    return Message(content, dst_node_id=node, message_type="train", ttl=ttl)


def counting(message: Message, context: Context) -> tuple[Message, Context]:
    """Answer with how often the node was asked, and which partition it has."""
    old = context.state.config_records.get("seen", ConfigRecord({"times": 0}))
    seen = ConfigRecord({"times": int(str(old["times"])) + 1, **context.node_config})
    state = RecordDict({"seen": seen})
    reply = Message(RecordDict({"seen": seen}), reply_to=message)
    return reply, Context(context.run_id, context.node_id, context.node_config, state, {})


def test_workers_answer_the_messages_of_all_nodes() -> None:
    workers = Workers(make_app, 2)
    try:
        with nodes(workers.answer, 4, workers.count) as grid:
            ids = list(grid.get_node_ids())
            orders = [request(node, sleep=0.1) for node in ids]
            replies = list(Exchange(grid, orders, 30.0, Terms(Membership(30.0))))
            assert sorted(r.metadata.src_node_id for r in replies) == sorted(ids)
            assert len({pid_of(r) for r in replies}) == 2
    finally:
        workers.terminate()


def test_each_node_has_its_partition_and_its_state_of_the_message_before() -> None:
    with nodes(counting, 3) as grid:
        ids = list(grid.get_node_ids())
        for times in (1, 2):
            replies = grid.send_and_receive([request(node) for node in ids])
            seen = {r.metadata.src_node_id: dict(r.content.config_records["seen"]) for r in replies}
            assert seen == {
                node: {"times": times, "partition-id": i, "num-partitions": 3} for i, node in enumerate(ids)
            }


def test_a_reply_is_given_once_and_to_who_asks_for_its_message() -> None:
    with nodes(counting, 2) as grid:
        one, other = grid.push_messages([request(node) for node in grid.get_node_ids()])
        assert until(lambda: len(grid._replies) == 2)
        (reply,) = grid.pull_messages([other, "unknown"])
        assert reply.metadata.reply_to_message_id == other
        assert not list(grid.pull_messages([other]))
        assert len(list(grid.pull_messages([one, other]))) == 1


def test_a_message_to_a_node_that_does_not_exist_gets_no_id() -> None:
    with nodes(counting, 1) as grid:
        (node,) = grid.get_node_ids()
        here = request(node)
        assert list(grid.push_messages([request(node + 1), here])) == [here.metadata.message_id]


def test_node_ids_differ_between_simulations() -> None:
    # Fixed ones would hide it if a result depended on them.
    with nodes(counting, 8) as one, nodes(counting, 8) as other:
        assert not set(one.get_node_ids()) & set(other.get_node_ids())


def test_a_message_whose_time_is_over_is_not_worked_on() -> None:
    worked: list[str] = []

    def answer(message: Message, context: Context) -> tuple[Message, Context]:
        worked.append(message.metadata.message_id)
        return counting(message, context)

    with nodes(answer, 1) as grid:
        (node,) = grid.get_node_ids()
        late, good = request(node, ttl=1.0), request(node, ttl=60.0)
        late.metadata.created_at -= 2
        replies = {r.metadata.reply_to_message_id: r for r in grid.send_and_receive([late, good])}
    assert replies[late.metadata.message_id].error.code == ErrorCode.MESSAGE_UNAVAILABLE
    assert worked == [good.metadata.message_id]


def test_what_fails_in_this_process_is_an_error_reply_with_its_reason() -> None:
    def answer(message: Message, context: Context) -> tuple[Message, Context]:
        raise TypeError("cannot pickle it")

    with nodes(answer, 1) as grid:
        (reply,) = grid.send_and_receive([request(n) for n in grid.get_node_ids()], timeout=10.0)
    assert (reply.error.code, reply.error.reason) == (ErrorCode.UNKNOWN, "TypeError: cannot pickle it")


def test_replies_that_are_not_there_in_time_are_left_out() -> None:
    held = threading.Event()

    def answer(message: Message, context: Context) -> tuple[Message, Context]:
        if message.content.config_records["config"]["held"]:
            held.wait(30)
        return counting(message, context)

    with nodes(answer, 2, at_once=2) as grid:
        one, other = grid.get_node_ids()
        replies = list(grid.send_and_receive([request(one, held=1), request(other, held=0)], timeout=0.5))
        held.set()
    assert [r.metadata.src_node_id for r in replies] == [other]


def test_the_end_drops_what_workers_have_not_finished() -> None:
    workers = Workers(make_app, 1)
    grid = VirtualNodes(workers.answer, 1, workers.count)
    pid = workers._workers[0].process.pid
    grid.push_messages([request(node, sleep=60) for node in [*grid.get_node_ids()] * 3])
    assert until(workers._idle.empty)
    began = time.monotonic()
    workers.terminate()
    grid.close()
    assert time.monotonic() - began < 30  # not 60, and not 180
    assert not psutil.pid_exists(pid)


def test_what_is_imported_before_the_fork_starts_no_thread_no_gpu_and_no_ray() -> None:
    code = (
        "import sys, threading, server_app.engines.simulate, torch\n"
        "assert threading.active_count() == 1 and not torch.cuda.is_initialized()\n"
        "heavy = ('ray', 'torch._dynamo', 'torch._inductor', 'torchvision', 'sklearn', 'matplotlib')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
