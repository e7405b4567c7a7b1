"""A SuperLink as it is deployed, TLS, node keys, database and process isolation, with its warm SuperExec."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.deploy.calls.control import Control, public_key
from server_app.deploy.host.host import free_port
from server_app.deploy.host.processes import Child, Supervisor
from server_app.deploy.kits.kit import LinkKit, read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.runner import bundle

BIN = Path(sys.executable).parent
STARTS_S = 120.0


@dataclass
class Link:
    """A running SuperLink."""

    kit: LinkKit
    kits: Path
    supervisor: Supervisor
    env: dict[str, str]
    control: Control

    def register(self, name: str) -> None:
        """Let a node in."""
        self.control.register(name, public_key(self.kit.nodes / f"{name}.pub"))

    def submit(self, keys: Mapping[str, Any]) -> int:
        """Start a run of the app; return its id."""
        return self.control.start(bundle(), keys)

    def status(self, run: int) -> str:
        """Return the state of a run, ``finished:completed``."""
        state = self.control.run(run)
        assert state is not None
        return f"{state.status}:{state.how}"

    def wait(self, run: int, timeout_s: float = 240.0) -> str:
        """Wait until a run is over; return its state."""
        deadline = time.monotonic() + timeout_s
        while not (status := self.status(run)).startswith("finished"):
            assert time.monotonic() < deadline, status + self.logs()
            time.sleep(1)
        return status

    def logs(self) -> str:
        """Return the ends of all logs, for a failed assertion."""
        files = [*self.kit.logs.glob("*.log"), *self.kits.glob("*/logs/*.log")]
        return "".join(f"\n== {p}\n{p.read_text(errors='replace')[-2500:]}" for p in files)


@contextmanager
def running_link(folder: Path, names: Sequence[str], *, http: bool = False) -> Iterator[Link]:
    """Provision kits for the nodes, start the SuperLink and let the nodes in; the nodes are not started.

    With `http`, the link takes nodes over HTTP as well.
    """
    fleet, port = free_port(), free_port()
    kits = folder / "kits"
    provision(kits, f"127.0.0.1:{fleet}", names)
    config = kits / "link" / "kit.toml"
    text = config.read_text()
    lines = [f'control = "127.0.0.1:{port}"' if x.startswith("control") else x for x in text.splitlines()]
    lines += [f'fleet-http = "127.0.0.1:{free_port()}"'] if http else []
    config.write_text("\n".join(lines) + "\n")
    kit = read_link_kit(kits / "link")
    env = {
        "FLWR_HOME": str(kit.flwr_home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONUNBUFFERED": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip
    kit.flwr_home.mkdir(parents=True)
    kit.state.mkdir(parents=True, exist_ok=True)
    superlink = [
        sys.executable, "-m", "server_app.deploy.flower.superlink", "--max-reply", str(kit.max_reply),
        "--max-rate", str(kit.max_rate), "--host", "127.0.0.1", "--port", str(port),
        "--fleet-api-address", f"127.0.0.1:{fleet}", "--ssl-ca-certfile", str(kit.ca_certificate),
        "--ssl-certfile", str(kit.server_certificate), "--ssl-keyfile", str(kit.server_key),
        "--enable-supernode-auth", "--database", str(kit.database), "--isolation", "process",
        "--superexec-auth-secret-file", str(kit.secret), "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    warm = [
        sys.executable, "-m", "server_app.deploy.flower.warm",
        "--runtime", f"127.0.0.1:{port}", "--root-certificates", str(kit.ca_certificate),
        "--secret", str(kit.secret), "--tasks", str(kit.state / "tasks"),
    ]  # fmt: skip
    with Supervisor(kit.logs) as supervisor, closing(Control(kit)) as control:
        supervisor.add(Child("superlink", superlink, env))
        supervisor.add(Child("warm", warm, env))
        if http:
            relay = [sys.executable, "-m", "server_app.deploy.calls.fleet_relay", str(kit.path)]
            supervisor.add(Child("fleet-http", relay, env))
        link = Link(kit, kits, supervisor, env, control)
        deadline = time.monotonic() + STARTS_S
        while "Uvicorn running" not in supervisor.tail("superlink"):
            assert time.monotonic() < deadline, link.logs()
            time.sleep(0.2)
        for name in names:
            link.register(name)
        yield link
