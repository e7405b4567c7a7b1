"""``python -m tests.bench.light KITS WORKERS SHARES NAME...``: many nodes of one link in one process.

Each has its own kit, key, connection and message loop, those of `bouquet node`. Their messages are served by
the app in a few processes, one message after the other, where a node forks for each message: so many forks
would cost this machine more than all that is measured. The node that is named i-th hosts the share i/SHARES
of the run's partition.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue

from server_app.deploy.calls.fleet_client import FleetClient
from server_app.deploy.host.app_integrity import OF_A_NODE, installed
from server_app.deploy.host.host import place_of
from server_app.deploy.host.processes import Child, Supervisor
from server_app.deploy.host.tasks import NEWS, ORDER, READY, START, Answer, Tasks
from server_app.deploy.kits.kit import read_node_kit
from server_app.deploy.node.message_loop import MessageLoop
from server_app.deploy.node.options import Options, environment, node_config, site
from server_app.deploy.node.run_node import APP
from task.storage.files import make_folder


class Shared(Tasks):
    """The tasks of several nodes, each served by the first worker that is free."""

    def __init__(self, workers: Iterable[Tasks]) -> None:
        super().__init__()
        self._free: SimpleQueue[Tasks] = SimpleQueue()
        for worker in workers:
            self._free.put(worker)

    def run(self, order: Iterable[bytes], ttl: float) -> Answer:
        """Run a task as `Tasks.run` does, when its turn comes."""
        worker = self._free.get()
        try:
            return worker.run(order, ttl)
        finally:
            self._free.put(worker)


def work() -> None:
    """Do what `server_app.deploy.node.warm` does, without forks."""
    app = importlib.import_module(APP).app
    run, here = importlib.import_module("server_app.deploy.flower.client_task").run, installed(OF_A_NODE)
    control = socket.socket(fileno=os.dup(0))
    control.sendall(NEWS.pack(READY, 0))
    while True:
        data, fds, _, _ = socket.recv_fds(control, ORDER.size, 1)
        if not data:
            return
        kind, number = ORDER.unpack(data)
        if kind == START:
            with socket.socket(fileno=fds[0]) as task:
                run(task, app, here)
            control.sendall(NEWS.pack(number, 0))


def main(kits: Path, workers: int, shares: int, names: list[str]) -> None:
    """Be these nodes until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    first, tasks = read_node_kit(kits / names[0]), [Tasks() for _ in range(workers)]
    make_folder(first.flwr_home)
    env, shared, loops = environment(first, Options()), Shared(tasks), []
    with Supervisor(kits / "logs") as supervisor:
        for i, each in enumerate(tasks):
            command = [sys.executable, "-m", "tests.bench.light"]
            supervisor.add(Child(f"worker-{i}", command, env, stdin=each.stdin))
        for i, name in enumerate(names):
            kit, options = read_node_kit(kits / name), Options(partition=(i, shares))
            make_folder(kit.state)
            client = FleetClient(kit.link, kit.ca_certificate, kit.key, place_of(kit.path))
            config = node_config(name, options, kit.policy)
            owner, rounds = site(kit, options), kit.state / "rounds.json"
            loop = MessageLoop(client, {False: shared}, owner, config, 0, rounds)
            loop.start()
            loops.append(loop)
        try:
            supervisor.run(over)
        finally:
            for loop in loops:
                loop.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        work()
