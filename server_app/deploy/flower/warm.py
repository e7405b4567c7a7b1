"""The warm SuperExec: ``python -m server_app.deploy.flower.warm``, a parent that forks a process per task.

Flower starts a Python process for every message, which imports torch, flwr and the app anew: seconds, each
round, on each node. Here one parent has imported them, and forks. It stays single-threaded and does nothing
in torch, so that a fork is safe, and it runs none of the app's code, so that it cannot be hurt by it. What
happens to the process of a task is seen at once, since its end closes a pipe: if it has not pushed a reply
itself, a fork of the parent pushes an error in its place. Through the pipe come records of fixed size only
(`server_app.deploy.node.task_reports`).

A task's token goes to its process by the fork; it is in no command line, no environment and no file.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
from pathlib import Path

from flwr.supercore.auth import load_superexec_auth_secret

from server_app.deploy.flower.forks import CLIENT, SERVER, PreforkExecutor
from server_app.deploy.flower.retries import retry_soon
from server_app.deploy.host.processes import end_with_parent, say
from server_app.deploy.node.policy import Site
from server_app.deploy.node.resource_limits import MemoryLimit
from task.storage.files import FILE


def main() -> None:
    """Start from the command line; see `server_app.deploy.node.serve`."""
    end_with_parent()
    retry_soon()
    args = _arguments()
    secret = load_superexec_auth_secret(args.secret)
    certificates = Path(args.root_certificates).read_bytes() if args.root_certificates else None
    gc.disable()
    for module in args.preload:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    site = Site(
        args.apps,
        args.max_rounds,
        args.min_examples,
        args.min_steps,
        args.may_train,
        args.threads,
        args.audit,
    )
    memory = MemoryLimit(args.max_memory) if args.max_memory else None
    warm = PreforkExecutor(
        args.kind, args.runtime, site, secret, certificates, memory, args.rounds, args.work, args.tasks
    )
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))  # the processes of tasks end with it
    say(f"warm: ready for {args.kind} tasks of {args.runtime}")
    if args.ready:
        args.ready.touch(FILE)
    warm.serve()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="server_app.deploy.flower.warm", description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=(CLIENT, SERVER), required=True)
    parser.add_argument("--runtime", required=True, metavar="HOST:PORT", help="Runtime API")
    parser.add_argument("--root-certificates", help="of the Runtime API; without it: plaintext, on loopback")
    parser.add_argument("--secret", help="file of the SuperExec secret")
    parser.add_argument(
        "--preload", action="append", default=[], help="module to import before the first fork"
    )
    parser.add_argument("--apps", choices=("installed", "any"), default="installed")
    parser.add_argument("--max-rounds", type=int, default=0)
    parser.add_argument("--min-examples", type=int, default=0)
    parser.add_argument("--min-steps", type=int, default=0)
    parser.add_argument("--may-train", default="")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-memory", type=int, default=0, help="bytes")
    parser.add_argument("--audit", type=Path, help="file to which refusals are appended")
    parser.add_argument("--rounds", type=Path, help="file that counts the training messages by run")
    parser.add_argument("--work", type=Path, help="file that is touched when there may be a task")
    parser.add_argument("--tasks", type=Path, help="folder for what proves that running tasks are its own")
    parser.add_argument("--ready", type=Path, help="file to touch when everything is imported")
    return parser.parse_args()


if __name__ == "__main__":
    main()
