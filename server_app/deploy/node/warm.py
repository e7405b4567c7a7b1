"""The warm parent of a node's tasks: ``python -m server_app.deploy.node.warm MODULE``.

A new Python process for every message would import torch, flwr and the app: seconds, each round, on each
node. This parent has imported them, and forks. Where one command runs several nodes (`server_app.cli.nodes`),
the parent itself is a fork of a process that has. It stays single-threaded and does nothing in torch, so that
a fork is safe, and it reads nothing that a task writes, so that no app can hurt it: a task's message and
reply go through a socket of its own between its process and the node's connection
(`server_app.deploy.host.tasks`).

Its standard input is a socket on which the connection orders, in records of fixed size, `START` with the
task's socket, and `KILL`; it answers with `READY` once, and with each process's exit code.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from server_app.deploy.host.app_integrity import OF_A_NODE, installed
from server_app.deploy.host.forks import Forks, freeze
from server_app.deploy.host.processes import end_with_parent, log_plainly, say
from server_app.deploy.host.tasks import KILL, NEWS, ORDER, READY


@cache
def load(module: str) -> tuple[Any, Callable[..., None], Mapping[str, str]]:
    """Import all that a task needs, once; return the app, what serves a message, and the app's files."""
    app = importlib.import_module(module).app
    work = importlib.import_module("server_app.deploy.flower.client_task").run
    importlib.import_module("task.resolve.read").read_config({})  # what it keeps is read by every task
    here = installed(OF_A_NODE)
    freeze()
    return app, work, here


def is_loaded() -> bool:
    """Return whether this process, or one that it is a fork of, has called `load`."""
    return load.cache_info().currsize > 0


def serve(module: str) -> None:
    """Load the app, then fork for each order until the connection closes its end."""
    end_with_parent()
    gc.disable()
    app, work, here = load(module)
    log_plainly()
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))  # the processes of tasks end with it
    control, forks = socket.socket(fileno=os.dup(0)), Forks()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # no task has the control socket
    pids: dict[int, int] = {}
    say("warm: ready for tasks")
    control.sendall(NEWS.pack(READY, 0))
    while True:
        for pid, code in forks.wait(None, [control]):
            number = pids.pop(pid)
            control.sendall(NEWS.pack(number, code))
        if not select.select([control], [], [], 0)[0]:  # `recv_fds` ignores its flags and would wait
            continue
        data, fds, _, _ = socket.recv_fds(control, ORDER.size, 1)
        if not data:
            return
        kind, number = ORDER.unpack(data)
        if kind == KILL:
            for pid in [pid for pid, task in pids.items() if task == number]:
                forks.kill(pid)
            continue
        with socket.socket(fileno=fds[0]) as task:

            def serve(task: socket.socket = task) -> None:
                control.close()
                work(task, app, here)

            pids[forks.fork(serve)] = number


if __name__ == "__main__":
    serve(sys.argv[1])
