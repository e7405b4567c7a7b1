"""Flower's own SuperLink and SuperNodes in Flower's own ways, as real processes with TLS and node keys.

To compare with, and to try the app on other versions of Flower than the pinned one: from 1.40 on the link
between machines is HTTP on the SuperLink's one port; before, it is gRPC on a port of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from server_app.deploy.host.host import MARK, free_port, marked
from server_app.deploy.kits.certificates import (
    make_authority,
    make_key,
    make_node_keys,
    make_server_certificate,
    private_pem,
)
from task.errors import BouquetError

APP_DIR = Path(__file__).resolve().parents[2]
GRPC = tuple(int(part) for part in version("flwr").split(".")[:2]) < (1, 40)
START_TIMEOUT_S = 120.0


@dataclass
class Stock:
    """Running processes.

    Attributes:
        home: Flower's home, with certificates, keys, the database and logs.
        env: Environment of the processes.
        fleet: HOST:PORT of the Fleet API.
    """

    home: Path
    env: dict[str, str]
    fleet: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def flower(self, command: str, *arguments: str) -> list[str]:
        """Return the command line of one of Flower's programs next to this Python."""
        return [str(Path(sys.executable).with_name(command)), *arguments]

    def start(self, name: str, command: str, *arguments: str) -> None:
        """Start a process; what it prints goes to ``<home>/<name>.log``."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.flower(command, *arguments), env=self.env, cwd=self.home, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def call(self, command: str, *arguments: str, timeout_s: float = 600.0) -> str:
        """Run one of Flower's programs to its end and return what it printed.

        Raises:
            BouquetError: It failed, with the end of its output and of every log.
        """
        done = subprocess.run(
            self.flower(command, *arguments), env=self.env, cwd=self.home, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        )  # fmt: skip
        if done.returncode:
            raise BouquetError(f"{command} {' '.join(arguments)}: {done.stdout[-2000:]}\n{self.logs()}")
        return done.stdout

    def register(self, key: Path) -> None:
        """Let a node with this public key in, once the SuperLink is up.

        Raises:
            BouquetError: It does not come up.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.call("flwr", "supernode", "register", str(key), "local")
                return
            except BouquetError:
                if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes.values()):
                    raise
                time.sleep(1)

    def logs(self) -> str:
        """Return the ends of all logs."""
        ends = (f"{p.name}: {p.read_text(errors='replace')[-1500:]}" for p in self.home.glob("*.log"))
        return "\n".join(ends)

    def run(self, keys: Mapping[str, Any]) -> None:
        """Submit a run with these run-config keys and wait until its log ends."""
        config = self.home / "run.toml"
        lines = (".".join(f'"{p}"' for p in k.split(".")) + f" = {toml(v)}\n" for k, v in keys.items())
        config.write_text("".join(lines), encoding="utf-8")
        self.call("flwr", "run", str(APP_DIR), "local", "--stream", "-c", str(config))


@contextmanager
def stock(home: Path, nodes: Sequence[Mapping[str, Any]]) -> Iterator[Stock]:
    """Start a SuperLink and a registered SuperNode per node config; stop all of it at the end.

    Args:
        home: An empty folder.
        nodes: Node configs.

    Raises:
        BouquetError: A process ended or did not come up.
    """
    mark = f"stock-{home}"
    env = os.environ | {
        MARK: mark,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
    link = Stock(home, env)
    port = free_port()
    fleet = free_port() if GRPC else port
    link.fleet = f"127.0.0.1:{fleet}"
    ca_key, ca = make_authority(2)
    key = private_pem(make_key())
    certificate = make_server_certificate(ca_key, ca, key, "127.0.0.1", 1)
    for name, content in {"ca.crt": ca, "server.crt": certificate, "server.key": key}.items():
        (home / name).write_bytes(content)
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = {toml(str(home / "ca.crt"))}\n',
        encoding="utf-8",
    )
    try:
        link.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(port),
            *(["--fleet-api-address", f"127.0.0.1:{fleet}"] if GRPC else []),
            "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key",
            "--enable-supernode-auth", "--database", "state.db",
        )  # fmt: skip
        for i, config in enumerate(nodes):
            private, public = make_node_keys(f"node-{i}")
            (home / f"node-{i}.key").write_bytes(private)
            (home / f"node-{i}.pub").write_bytes(public)
            link.register(home / f"node-{i}.pub")
            link.start(
                f"supernode-{i}", "flower-supernode", "--superlink", f"127.0.0.1:{fleet}",
                "--root-certificates", "ca.crt", "--auth-supernode-private-key", f"node-{i}.key",
                "--port", str(free_port()),
                "--node-config", " ".join(f"{k}={toml(v)}" for k, v in config.items()),
            )  # fmt: skip
        yield link
    finally:
        _stop(mark)
        for process in link.processes.values():
            process.wait(timeout=10)


def _stop(mark: str) -> None:
    """End all processes with the mark."""
    for kill in (False, True, True):
        left = list(marked(mark))
        for process in left:
            process.kill() if kill else process.terminate()
        deadline = time.monotonic() + 5
        while any(p.is_running() for p in left) and list(marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)


def toml(value: bool | int | float | str) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
