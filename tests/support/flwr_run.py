"""``flwr run`` as a user types it, with a Flower home and a local SuperLink of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from server_app.deploy.host.host import free_port, marked

ROOT = Path(__file__).resolve().parents[2]
MARK = "BOUQUET_TEST"


@contextmanager
def local_superlink(folder: Path) -> Iterator[dict[str, str]]:
    """Give the environment of `flwr run`; what runs in it is stopped at the end of the block.

    In the environment of another one, that one is given.
    """
    if MARK in os.environ:
        yield dict(os.environ)
        return
    mark = str(folder)
    yield os.environ | {
        "FLWR_HOME": str(folder / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        MARK: mark,
    }
    left = list(marked(mark, MARK))
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=10)


def flwr_run(env: dict[str, str], app: Path, keys: str, nodes: int = 2) -> str:
    """Run an app's folder to its end, on virtual SuperNodes; return what was printed."""
    flwr, federation = Path(sys.executable).with_name("flwr"), f"num-supernodes={nodes}"
    line = [str(flwr), "run", str(app), "--stream", "-c", keys, "--federation-config", federation]
    done = subprocess.run(line, env=env, cwd=app, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr
