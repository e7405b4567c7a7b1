"""Flower's SuperNode, made to work at once and to end when it is of no more use.

``python -m server_app.deploy.flower.supernode ALIVE PLACE [--server-name NAME] -- OPTIONS``: the options are
those of ``flower-supernode``. What differs from Flower's own:

- it looks for messages every 0.2 s while there are some, and after a silence as often as Flower's own does,
  every 3 s; for its app's reply it looks every 0.05 s instead of 0.5 s;
- it touches the file ALIVE after each successful exchange with the SuperLink, at least every 10 s, and the
  file ``work`` beside it when it was given a message, so that its executor need not ask all the time;
- each of its calls says PLACE, where it runs: a SuperLink lets a process in at once that takes the place of
  one that was killed there;
- a reply of which the rest does not come is given up, where Flower waits for ever;
- it looks for a SuperLink that went away every 2 s, where gRPC waits for up to two minutes, and tries a call
  that failed again within 5 s instead of 20;
- it ends when its main loop has ended, where Flower's process stays up and does nothing;
- why the SuperLink refuses a call is logged, in a line that begins with ``bouquet:``;
- NAME is the name that the SuperLink's certificate must have, where it is reached through a relay.

A version of Flower that is built otherwise keeps its own pace.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from flwr.app import Error
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE, ErrorCode
from flwr.supercore import heartbeat
from flwr.supernode import start_client_internal as main_loop
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.nodestate import in_memory_nodestate as nodestates

from server_app.deploy.flower.retries import retry_soon
from server_app.deploy.host.host import PLACE_HEADER, UNANSWERED, WORK
from server_app.deploy.host.processes import end_with_parent
from task import timing
from task.storage.files import FILE

PREFIX = "bouquet:"
WRONG_TIME = "Invalid timestamp"  # how a SuperLink refuses a time that a node signed
SLEEPS = ["3", "0.5", "0.5"]  # that Flower's main loop has, in this order
PACES = {3: 0.2, 0.5: 0.05}  # seconds instead of seconds
SHARE = 0.05  # a pause between looks for messages is at most this share of the silence before it
LOOP_ENDED = 70  # exit code


def tell(line: str) -> None:
    """Log a line for the supervisor."""
    print(PREFIX, line, file=sys.stderr, flush=True)


class Pace:
    """Takes the place of the module `time` in Flower's main loop."""

    def __init__(self) -> None:
        self._waits: dict[int, float] = {}  # begin of a wait for the rest of a reply, by stack frame
        self._silent_since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep, for less than asked.

        Raises:
            TimeoutError: The rest of a reply has not come for `timing.REPLY_REST_S`.
        """
        caller = sys._getframe(1)
        if caller.f_code.co_name == "yield_object_contents":
            missing = hash(caller.f_locals.get("tree") and caller.f_locals["tree"].object_id)
            since = self._waits.setdefault(missing, time.monotonic())
            if time.monotonic() - since > timing.REPLY_REST_S:
                self._waits.clear()
                raise TimeoutError(
                    f"the process of the task ended in the midst of its reply, {timing.REPLY_REST_S:g} s ago"
                )
        else:
            self._waits.clear()
        if seconds != 3:  # there is a message
            self._silent_since = time.monotonic()
        least = PACES.get(seconds, seconds)
        time.sleep(min(seconds, max(least, SHARE * (time.monotonic() - self._silent_since))))


def hasten() -> bool:
    """Let Flower's main loop look more often; return whether it could be done."""
    sleeps = re.findall(r"\btime\.sleep\(([\d.]+)\)", inspect.getsource(main_loop))
    others = re.findall(r"\btime\.(?!sleep\b)\w+", inspect.getsource(main_loop))
    if sleeps != SLEEPS or others:
        return False
    vars(main_loop)["time"] = Pace()
    return True


def watch(alive: Path) -> bool:
    """Touch a file after each successful exchange with the SuperLink; return whether it can be done."""
    work = alive.with_name(WORK)
    connection = importlib.import_module("flwr.client.grpc_rere_client.connection")
    sender, connect = connection.HeartbeatSender, main_loop._init_connection

    def touching(function: Callable[..., Any]) -> Callable[..., Any]:
        def touched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if result is not False:  # what a heartbeat that failed returns
                alive.touch(FILE)
            return result

        return touched

    def noting(receive: Callable[..., Any]) -> Callable[..., Any]:
        def received(*args: Any, **kwargs: Any) -> Any:
            result = receive(*args, **kwargs)
            if result is not None:
                work.touch(FILE)
            return result

        return received

    class TouchingSender(sender):  # type: ignore[misc, valid-type]  # a class that was looked up
        def __init__(self, heartbeat_fn: Callable[[], bool]) -> None:
            super().__init__(touching(heartbeat_fn))

    @contextmanager
    def connected(*args: Any, **kwargs: Any) -> Iterator[Sequence[Any]]:
        options = inspect.signature(connect).bind(*args, **kwargs).arguments
        _explain_refusals()
        with connect(*args, **kwargs) as conn:
            alive.touch(FILE)
            tell(f"connected to {options['server_address']} as node {conn[0]}")
            receive, *others = [touching(function) for function in conn[1:]]
            yield (conn[0], noting(receive), *others)

    vars(connection)["HeartbeatSender"] = TouchingSender
    vars(heartbeat)["HEARTBEAT_DEFAULT_INTERVAL"] = int(timing.BEAT_INTERVAL_S)
    vars(main_loop)["_init_connection"] = connected
    return True


def answer_for_the_dead() -> bool:
    """Let a task that ended without an answer answer its message; return whether it could be done.

    Flower's node state answers with an error only when a task has given no sign of life for a minute.
    """
    state: Any = getattr(nodestates, "InMemoryNodeState", None)
    if state is None or not all(hasattr(state, name) for name in ("finish_task", "_store_error_replies")):
        return False
    finish = state.finish_task

    def finish_task(self: Any, task_id: int, sub_status: str, details: str) -> bool:
        finished, why = bool(finish(self, task_id, sub_status, details)), details.removeprefix(UNANSWERED)
        if finished and why != details:
            for task in self.get_tasks(task_ids=[task_id]):
                _take_up(self, task.run_id)
                self._store_error_replies({task.run_id}, Error(ErrorCode.CLIENT_APP_CRASHED, why))
        return finished

    state.finish_task = finish_task
    return True


def _take_up(state: Any, run: int) -> None:
    """Take the message of a task that ended before it took the message itself."""
    with state.lock_msg_store:
        orders = [e for e in state.msg_store.values() if e.message.metadata.run_id == run]
        orders = [e for e in orders if not e.message.metadata.reply_to_message_id]
        if orders and not any(e.is_retrieved for e in orders):
            orders[0].is_retrieved = True
            state.record_message_processing_start(orders[0].message.metadata.message_id)


def _explain_refusals() -> None:
    """Log why the SuperLink refuses a call: Flower then ends without a word."""
    make = main_loop._make_fleet_connection_retry_invoker
    told: set[str] = set()

    def explaining(*args: Any, **kwargs: Any) -> Any:
        invoker = make(*args, **kwargs)
        gives_up = invoker.should_giveup

        def explained(err: grpc.RpcError) -> bool:
            details = str(err.details())
            if err.code() != grpc.StatusCode.PERMISSION_DENIED and details not in told:
                told.add(details)
                tell(_reason(err))
            return bool(gives_up and gives_up(err))

        invoker.should_giveup = explained
        return invoker

    vars(main_loop)["_make_fleet_connection_retry_invoker"] = explaining


def _reason(err: grpc.RpcError) -> str:
    if (details := str(err.details())) != WRONG_TIME:
        return f"the SuperLink says {err.code().name}: {details}"
    return (
        f"this machine's clock, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC, differs from the "
        f"SuperLink's: it may be at most {SYSTEM_TIME_TOLERANCE} s ahead and {TIMESTAMP_TOLERANCE} s behind. "
        "Set it right. Run NTP"
    )


class _Placed(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Says with each call where it comes from."""

    def __init__(self, place: str) -> None:
        self._place = place

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or []), (PLACE_HEADER, self._place)]
        return continuation(details._replace(metadata=metadata), request)


def dial(place: str, name: str = "") -> None:
    """Have channels look for a lost SuperLink every few seconds, where gRPC waits for up to two minutes.

    Args:
        place: Said with each call.
        name: That the SuperLink's certificate must have; "" = the address that is called.
    """
    secure = grpc.secure_channel
    ours: list[tuple[str, Any]] = [("grpc.max_reconnect_backoff_ms", int(1000 * timing.RECONNECT_S))]
    if name:
        ours.append(("grpc.ssl_target_name_override", name))

    def dialled(target: str, credentials: Any, options: Any = None, compression: Any = None) -> grpc.Channel:
        channel = secure(target, credentials, options=[*(options or []), *ours], compression=compression)
        return grpc.intercept_channel(channel, _Placed(place))

    vars(grpc)["secure_channel"] = dialled


def main() -> None:
    """Start from the command line."""
    end_with_parent()
    options, flags = sys.argv[1:], []
    if "--" in options:
        place = options.index("--")
        options, flags = options[:place], options[place + 1 :]
    if len(options) == 4 and options[2] == "--server-name":
        dial(options[1], options[3])
    elif len(options) == 2:
        dial(options[1])
    else:
        sys.exit(
            "usage: python -m server_app.deploy.flower.supernode ALIVE PLACE [--server-name NAME] -- OPTIONS"
        )
    retry_soon()
    if not answer_for_the_dead():
        tell("this version of Flower is built otherwise: a task that dies is noticed after a minute")
    if not hasten():
        tell("this version of Flower is built otherwise: it keeps its own pace")
    watch(Path(options[0]))
    sys.argv = ["flower-supernode", *flags]
    flower_supernode()
    tell("the exchange with the SuperLink has ended")
    os._exit(LOOP_ENDED)  # Flower's Runtime API would keep the process up


if __name__ == "__main__":
    main()
