"""Deployed runs with ``portable = true``: how they are recognised, and the ServerApp's process for them.

The kernels of a process are fixed when it is started (`task.portable`), so that a fork of the warm parent has
the wrong ones. Such a fork replaces itself, once Flower has said which run it serves. Flower says so only
once: its answer goes to the new program, on the standard input, with the task's token.
"""

import os
import pickle
import sys
from pathlib import Path

from flwr.common.config import get_fused_config_from_fab
from flwr.common.serde import run_from_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import Run
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PullTaskInputResponse
from flwr.supercore.runtime import RuntimeHttpClient

from server_app.deploy.host.app_integrity import check_unpacked
from task import portable
from task.errors import ConfigError, RefusedError

Task = tuple[str, str, bytes | None]  # address of the Runtime API, token, root certificates


def wants_fixed_kernels(run: Run, bundle: bytes) -> bool:
    """Return whether a run, by its keys or its app's own, asks for portable bits, and this machine can.

    Where it cannot, the app itself says why.
    """
    try:
        portable.check_machine()
    except ConfigError:
        return False
    fab = Fab.FromString(bundle)
    try:
        check_unpacked(fab.content)
    except RefusedError:
        return False  # it is refused where it would be served
    return bool(get_fused_config_from_fab(fab.content, run_from_proto(run)).get("portable"))


def replace_if_portable(task: Task, turn: Path, *program: str) -> None:
    """Have this process start again with fixed kernels when Flower hands it a portable run.

    `program` are the arguments of Python for it; `task` and `turn` are what `read_task` returns there.
    """
    pull = RuntimeHttpClient.PullTaskInput

    def pulled(self: RuntimeHttpClient, request: PullTaskInputRequest) -> PullTaskInputResponse:
        response = pull(self, request)
        if wants_fixed_kernels(response.run, response.fab.SerializeToString()):
            _hand_over(pickle.dumps((task, turn, response.SerializeToString())), program)
        return response

    RuntimeHttpClient.PullTaskInput = pulled  # type: ignore[method-assign]


def _hand_over(order: bytes, program: tuple[str, ...]) -> None:
    """Replace this process by a program that reads `order` from its standard input."""
    held = os.memfd_create("bouquet-task")  # no other process sees what is in it, unlike a command line
    with os.fdopen(held, "wb", closefd=False) as file:
        file.write(order)
    os.lseek(held, 0, os.SEEK_SET)
    os.dup2(held, 0)
    portable.replace_process([sys.executable, *program])


def read_task() -> tuple[Task, Path]:
    """Return what the former program of this process had, and give Flower's answer again when asked."""
    task, turn, answer = pickle.loads(sys.stdin.buffer.read())
    response = PullTaskInputResponse.FromString(answer)
    RuntimeHttpClient.PullTaskInput = lambda self, request: response  # type: ignore[method-assign]
    return task, turn
