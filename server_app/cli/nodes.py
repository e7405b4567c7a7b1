"""Several nodes on one machine, forked from one process: ``python -m server_app.cli.nodes NODES``.

A node by itself holds PyTorch, some 390 MB. This process imports all that a node and its tasks need and forks
for each node, so that they share it. Each fork is ``bouquet node`` for one kit: a process with a key, a
policy, limits and tasks of its own, which can end without the others. All end with this process.

NODES is a list in JSON of objects with the keys ``words`` (what follows ``bouquet node``), ``name``, ``log``
(the file that the node prints to; "" = here, behind its name) and ``ended`` (the file for how it ended, which
is not there while it runs; "" = none).
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from server_app.cli import exits
from server_app.cli.main import main as bouquet
from server_app.deploy.host.forks import Forks
from server_app.deploy.host.processes import how_it_ended, say, speak_as
from server_app.deploy.node.run_node import APP
from server_app.deploy.node.warm import load
from task.storage.files import private, write_text


def main() -> None:
    """Start the nodes; return when all of them have ended, with the exit code of the first that failed."""
    os.umask(0o077)
    load(APP)
    forks, nodes, stopped = Forks(), dict[int, dict[str, Any]](), False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        for pid in forks.pids:
            os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for node in json.loads(sys.argv[1]):
        nodes[forks.fork(partial(_be, node["name"], node["words"], node["log"]))] = node
    failed = exits.DONE
    while forks.pids:
        for pid, code in forks.wait(None):
            if not stopped:
                node, how = nodes[pid], how_it_ended(code)
                say(f"node {node['name']} {how}{'; the other nodes continue' if forks.pids else ''}")
                if node["ended"]:
                    write_text(Path(node["ended"]), how)
                failed = failed or (code if code > 0 else exits.FAILED if code else exits.DONE)
    sys.exit(failed)


def _be(name: str, words: list[str], log: str) -> None:
    """Be a node."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C this process's parent sends SIGTERM
    if log:
        with open(log, "ab", opener=private) as file:
            for output in (1, 2):
                os.dup2(file.fileno(), output)
    else:
        speak_as(name)
    sys.argv = ["bouquet", "node", *words]
    bouquet()


if __name__ == "__main__":
    main()
