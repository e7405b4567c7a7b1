"""A whole federation of real processes on this machine: one SuperLink, several SuperNodes, gRPC between.

What `make federation` runs. It is the deployment of the README in small: the same commands, plaintext on
loopback, free ports, and a Flower home of its own, so that it disturbs no other. Every process carries a
mark in its environment, and at the end (or at Ctrl-C) all marked processes are stopped: Flower detaches
some of its children from their parents, so the process tree alone would miss them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from task.errors import BouquetError, ConfigError

MARK = "BOUQUET_FEDERATION"
APP_DIR = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 60.0


@dataclass
class Federation:
    """Running processes of one federation.

    Attributes:
        home: Its Flower home, with configuration and logs.
        env: Environment of its processes.
        mark: The word that marks them.
    """

    home: Path
    env: dict[str, str]
    mark: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """Start a process; what it prints goes to ``<home>/<name>.log``."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(Path(sys.executable).with_name(command[0])), *command[1:]],
                env=self.env, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def start_node(self, name: str, superlink: str, node_config: Mapping[str, Any]) -> None:
        """Start a SuperNode.

        Args:
            name: For its log file.
            superlink: Address of the SuperLink's Fleet API.
            node_config: What this node is: ``partition-id`` or ``client-name`` and ``data-path``.
        """
        values = " ".join(f"{k}={toml(v)}" for k, v in node_config.items())
        self.start(
            name, "flower-supernode", "--insecure", "--superlink", superlink, "--host", "127.0.0.1",
            "--port", str(free_port()), "--node-config", values,
        )  # fmt: skip

    def check(self) -> None:
        """Refuse to go on if a process has ended.

        Raises:
            BouquetError: Naming the process, with the end of its log.
        """
        for name, process in self.processes.items():
            if process.poll() is not None:
                log = (self.home / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
                raise BouquetError(f"{name} ended with exit code {process.returncode}:\n{log}")

    def stop(self) -> None:
        """Stop every process of the federation, politely first; return when none is left."""
        for wait_s, kill in ((5.0, False), (2.0, True), (2.0, True)):
            left = list(marked(self.mark))
            if not left:
                break
            for process in left:
                try:
                    process.kill() if kill else process.terminate()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=wait_s)
        for child in self.processes.values():
            child.wait()


def marked(mark: str) -> Iterator[psutil.Process]:
    """Yield the processes whose environment carries the mark."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def free_port() -> int:
    """Return a TCP port that is free on loopback just now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def toml(value: bool | int | float | str) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


@contextmanager
def federation(node_configs: Sequence[Mapping[str, Any]]) -> Iterator[Federation]:
    """Start a SuperLink and one SuperNode per config; stop all of it at the end of the block.

    Raises:
        BouquetError: A process did not come up.
    """
    if not (APP_DIR / "pyproject.toml").exists():
        raise ConfigError(
            f"a federation needs the app's folder: expected {APP_DIR / 'pyproject.toml'}; got none"
        )
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="bouquet-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        env = os.environ | {
            MARK: mark,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": os.environ.get("FLWR_TELEMETRY_ENABLED", "0"),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
        }
        fed = Federation(home, env, mark)
        control, fleet = free_port(), free_port()
        config = '[superlink]\ndefault = "local"\n[superlink.local]\ninsecure = true\n'
        config += f'address = "127.0.0.1:{control}"\n'
        (home / "config.toml").write_text(config, encoding="utf-8")
        try:
            fed.start(
                "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(control),
                "--fleet-api-address", f"127.0.0.1:{fleet}", "--disable-runtime-dependency-installation",
            )  # fmt: skip
            _await_port(fed, control)
            _await_port(fed, fleet)
            for i, node in enumerate(node_configs):
                fed.start_node(f"supernode-{i}", f"127.0.0.1:{fleet}", node)
            yield fed
        finally:
            fed.stop()


def _await_port(fed: Federation, port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        fed.check()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise BouquetError(
                    f"the SuperLink did not open port {port} in {START_TIMEOUT_S:g} s"
                ) from None
            time.sleep(0.1)


def submit(fed: Federation, run_config: Mapping[str, Any], app_dir: Path = APP_DIR) -> int:
    """Run the app in the federation and stream its log; return the exit code of ``flwr run``.

    The code is 0 for failed runs too: look at the result folder.
    """
    keys = fed.home / "run.toml"
    keys.write_text("".join(f"{_key(k)} = {toml(v)}\n" for k, v in run_config.items()), encoding="utf-8")
    command = [
        str(Path(sys.executable).with_name("flwr")),
        "run",
        str(app_dir),
        "local",
        "--stream",
        "-c",
        str(keys),
    ]
    with subprocess.Popen(command, env=fed.env, cwd=fed.home, stdin=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    return process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    fed.check()
        except BaseException:
            process.terminate()
            raise


def _key(key: str) -> str:
    return ".".join(f'"{part}"' for part in key.split("."))
