"""Deployed runs with ``portable = true``: how they are recognised, and the ServerApp's process for them.

The kernels of a process are fixed when it is started (`task.portable`), so that a fork of the warm parent has
the wrong ones. Such a fork replaces itself, once Flower has said which run it serves. Flower says so only
once: its answer goes to the new program, on the standard input, with the task's token.
"""

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path

from flwr.supercore.runtime import RuntimeHttpClient

from server_app.deploy.calls.protocol import read_keys
from server_app.deploy.host.app_integrity import run_config
from task import portable
from task.config.sections import Value
from task.errors import ConfigError
from task.flower.services import FLEET, Protobuf, runtime_message

Task = tuple[str, str, bytes | None]  # address of the Runtime API, token, root certificates


def keys_of_run(run: Protobuf, bundle: bytes) -> dict[str, Value] | None:
    """Return the keys of a run, by its description and its app as Flower sends them; None = unreadable.

    Where the run is served, the error says why.
    """
    try:
        (fab := FLEET.answer("GetFab").fab).ParseFromString(bundle)
        return run_config(fab.content, read_keys(run.override_config))
    except Exception:  # whatever the bundle is, it is refused later
        return None


def wants_fixed_kernels(keys: Mapping[str, Value] | None) -> bool:
    """Return whether a run asks for portable bits that this machine can give; else the app says why."""
    try:
        portable.check_machine()
    except ConfigError:
        return False
    return bool(keys and keys.get("portable"))


def replace_if_portable(task: Task, turn: Path, *program: str) -> None:
    """Have this process start again with fixed kernels when Flower hands it a portable run.

    `program` are the arguments of Python for it; `task` and `turn` are what `read_task` returns there.
    """
    pull = RuntimeHttpClient.PullTaskInput

    def pulled(self: RuntimeHttpClient, request: Protobuf) -> Protobuf:
        response = pull(self, request)
        if wants_fixed_kernels(keys_of_run(response.run, response.fab.SerializeToString())):
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
    response = runtime_message("PullTaskInputResponse").FromString(answer)
    RuntimeHttpClient.PullTaskInput = lambda self, request: response  # type: ignore[method-assign]
    return task, turn
