"""A federation of real processes that faults are done to: kits, one link, three nodes with data of their own.

All is as a user would have it: TLS, node keys, database, warm processes, ``bouquet link`` and ``bouquet
node``. As root on Linux the link has a network namespace of its own and ward-3 another, from which attackers
come too (`tests.faults.network`), and the link's database and its results lie on small disks that can be
filled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from server_app.deploy.host.host import free_port
from server_app.deploy.kits.kit import LinkKit, NodeKit, read_link_kit, read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import follow
from server_app.deploy.link.jobs import Job, Jobs
from server_app.deploy.link.status import read_status
from tests.faults.clock import Clock
from tests.faults.machine import STARTS_S, Machine, end_of, until
from tests.faults.network import Network
from tests.faults.runs import BOUQUET, KEYS, ROUND_S, Run, write_ward

MARK = "BOUQUET_FAULTS"
WARDS = ("ward-1", "ward-2", "ward-3")
FAR = "ward-3"  # the node in a namespace of its own
DISK_MB = 256
MAX_REPLY = "8M"

# Asked before each training: while somebody holds the node, its task waits in the midst of a round.
HOOK = """#!/bin/sh
cd "{folder}" || exit 0
[ -e hold ] && : > held
n=0
while [ -e hold ] && [ $n -lt 85 ]; do sleep 0.1; n=$((n + 1)); done
exit 0
"""


class Federation:
    """See the module.

    Args:
        folder: For all of it.
        network: Namespaces; None = all on loopback.
        wards: Names of the nodes.
    """

    def __init__(self, folder: Path, network: Network | None = None, wards: Sequence[str] = WARDS) -> None:
        self.folder, self.network, self.wards = folder, network, tuple(wards)
        self.mark = uuid.uuid4().hex
        self.kits = folder / "kits"
        self.data = folder / "data"
        self.machines: dict[str, Machine] = {}
        self._disk = False
        host = network.address if network else "127.0.0.1"
        self.address = f"{host}:{free_port()}"
        self.runs_seen: list[str] = []

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """Provision and start everything; return when all nodes are online."""
        self.data.mkdir(parents=True)
        for i, name in enumerate(self.wards):
            write_ward(self.data / f"{name}.csv", seed=i, rows=60 + 10 * (i % 4))
        provision(self.kits, self.address, self.wards)
        config = self.kits / "link" / "kit.toml"
        swap = {"control": f'control = "127.0.0.1:{free_port()}"', "max-reply": f'max-reply = "{MAX_REPLY}"'}
        lines = [swap.get(line.partition(" ")[0], line) for line in config.read_text().splitlines()]
        config.write_text("\n".join(lines) + "\n")
        if self.network:
            size = f"size={DISK_MB}m"
            for folder in (self.link_kit.state, self.link_kit.runs):
                folder.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "-o", size, "bouquet", folder], check=True)
            self._disk = True
        self.start_link()
        for name in self.wards:
            self.start_node(name)
        self.ready()

    @property
    def link_kit(self) -> LinkKit:
        """The kit of the link."""
        return read_link_kit(self.kits / "link")

    def node_kit(self, name: str) -> NodeKit:
        """Return the kit of a node."""
        return read_node_kit(self.kits / name)

    def start_link(self, clock: Clock | None = None, code: Path | None = None) -> Machine:
        """Start the link, by the clock of its machine or by another, with the app in a folder `code`."""
        prefix = self.network.prefix(self.network.link) if self.network else []
        if clock:
            prefix = [*prefix, "env", *(f"{name}={value}" for name, value in clock.environment.items())]
        self.link_kit.status.unlink(missing_ok=True)  # what an earlier link said of itself
        return self._start("link", [BOUQUET, "link", str(self.kits / "link")], prefix, code)

    def start_node(
        self, name: str, *options: str, kit: Path | None = None, near: bool = False, code: Path | None = None
    ) -> Machine:
        """Start a node, with its data, in its namespace.

        Args:
            name: Of the node.
            options: Further options.
            kit: Another kit than its own.
            near: Start it in the link's namespace, whatever its name.
            code: Folder of the app that it runs; None = the one that is installed.
        """
        prefix = []
        if self.network:
            far = name == FAR and not near
            prefix = self.network.prefix(self.network.ward if far else self.network.link)
        hook = self.folder / f"{name}-hook" / "may-train"
        if not hook.exists():
            hook.parent.mkdir()
            hook.write_text(HOOK.format(folder=hook.parent))
            hook.chmod(0o755)
        command = [BOUQUET, "node", str(kit or self.kits / name), "--data", str(self.data / f"{name}.csv")]
        return self._start(name, [*command, "--may-train", str(hook), *options], prefix, code)

    def _start(self, name: str, command: list[str], prefix: list[str], code: Path | None = None) -> Machine:
        machine = Machine(name, command, self.folder / f"{name}.log", prefix)
        env = os.environ | {MARK: self.mark, "PYTHONUNBUFFERED": "1", "FLWR_TELEMETRY_ENABLED": "0"}
        env |= {"PYTHONPATH": str(code)} if code else {}
        with machine.log.open("ab") as log:
            machine.process = subprocess.Popen(
                [*prefix, *command], env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.machines[name] = machine
        return machine

    def restart_node(self, name: str, *options: str) -> Machine:
        """Stop a node politely and start it again."""
        self.machines[name].stop()
        return self.start_node(name, *options)

    def renew(self, name: str) -> None:
        """Revoke a node's key and give it a new one, as whoever provisions does; the node is stopped."""
        provision(self.kits, revoke=[name])
        provision(self.kits, nodes=[name])

    # ------------------------------------------------------------------ looking

    def status(self) -> dict[str, Any]:
        """Return what ``bouquet status --json`` prints."""
        return read_status(self.link_kit)

    def online(self) -> set[str]:
        """Return the names of the nodes that are online, as the link sees it."""
        return {node["name"] for node in self.status()["nodes"] if node["online"]}

    def ready(self, within_s: float = STARTS_S) -> None:
        """Bring all of it up, if it is not, and wait until every node is online and no job runs."""
        if self.network:
            self.network.heal()
        self.release(*self.wards)
        for name in ("link", *self.wards):
            machine = self.machines[name]
            for process in (p for ps in machine.roles().values() for p in ps):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
            if not machine.running():
                self.start_link() if name == "link" else self.start_node(name)
        for job in self.jobs.all():
            if not job.ended:
                self.jobs.ask_to_stop(job.name)
                self.until(partial(self._ended, job.name), within_s, f"the end of job {job.name}")
        wanted = set(self.wards)
        self.until(lambda: self.online() >= wanted, within_s, f"{wanted} online")
        self.until(lambda: self.status()["state"] != "red", within_s, "a link that is well")

    def until(self, true: Callable[[], Any], within_s: float, what: str) -> Any:
        """Return what `true` returns, once it is true; with the logs if it never is."""
        try:
            return until(true, within_s, what)
        except AssertionError as err:
            raise AssertionError(f"{err}\n{self.logs()}") from None

    def logs(self) -> str:
        """Return the ends of all logs."""
        files = [m.log for m in self.machines.values()] + sorted(self.kits.glob("*/logs/*.log"))
        return "".join(f"\n== {p.parent.parent.name}/{p.name}\n{end_of(p)}" for p in files if p.exists())

    def log(self, machine: str, name: str) -> str:
        """Return the log of a process, e.g. ``log("link", "superlink")``."""
        path = self.kits / machine / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # ------------------------------------------------------------------ runs

    @property
    def jobs(self) -> Jobs:
        """The jobs of the link."""
        return Jobs(self.link_kit.jobs, self.link_kit.runs)

    def job(self, name: str) -> Job:
        """Return a job."""
        job = self.jobs.read(name)
        assert job is not None, name
        return job

    def _ended(self, name: str) -> bool:
        return self.job(name).ended

    def submit(self, name: str, rounds: int, **keys: Any) -> Run:
        """Submit a run to the link. It begins with all wards, and needs replies of a majority of them.

        These are the wards' numbers: cases enrol further nodes, most of which never come.
        """
        given = {"min-nodes": len(self.wards), "min-replies": len(self.wards) // 2 + 1}
        given |= {"round-timeout": ROUND_S, "roll-call-timeout": 60.0}
        more = {k.replace("_", "-"): v for k, v in keys.items()}
        follow.submit(self.link_kit, KEYS | given | {"run-name": name, "num-server-rounds": rounds} | more)
        self.runs_seen.append(name)
        return Run(self, name, rounds)

    # ------------------------------------------------------------------ faults

    @contextmanager
    def held(self, run: Run, *names: str, within_s: float = ROUND_S) -> Iterator[None]:
        """Hold nodes in the midst of their next training, for 8 s at most; the block begins when they are."""
        folders = [self.folder / f"{name}-hook" for name in names]
        for folder in folders:
            (folder / "held").unlink(missing_ok=True)
            (folder / "hold").touch()
        try:
            for folder in folders:
                self.until((folder / "held").exists, within_s, f"{names} in a training of {run.name}")
            yield
        finally:
            self.release(*names)

    def release(self, *names: str) -> None:
        """Hold these nodes no longer."""
        for name in names:
            (self.folder / f"{name}-hook" / "hold").unlink(missing_ok=True)

    @contextmanager
    def without_data(self, *names: str) -> Iterator[None]:
        """Take the data files of nodes away."""
        for name in names:
            (self.data / f"{name}.csv").rename(self.data / f"{name}.away")
        try:
            yield
        finally:
            for name in names:
                (self.data / f"{name}.away").rename(self.data / f"{name}.csv")

    def attack(self, what: str, *arguments: str, local: bool = False, within_s: float = 120.0) -> Any:
        """Run an attacker, from the ward's namespace or on the link's own machine; return what it found."""
        attacker = self.begin_attack(what, *arguments, local=local)
        out, err = attacker.communicate(timeout=within_s)
        assert attacker.returncode == 0, err[-3000:]
        return json.loads(out)

    def begin_attack(self, what: str, *arguments: str, local: bool = False) -> subprocess.Popen[str]:
        """Start an attacker."""
        prefix = []
        if self.network:
            prefix = self.network.prefix(self.network.link if local else self.network.ward)
        command = [sys.executable, "-m", "tests.faults.attackers", what, *arguments]
        env = os.environ | {MARK: self.mark, "GRPC_VERBOSITY": "NONE", "FLWR_TELEMETRY_ENABLED": "0"}
        root = Path(__file__).resolve().parents[2]
        return subprocess.Popen(
            [*prefix, *command], env=env, cwd=root, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """End all of it; nothing is left, whatever was done to it."""
        for machine in self.machines.values():
            if machine.running():
                assert machine.process is not None
                machine.process.send_signal(signal.SIGCONT)
                machine.process.terminate()
        for machine in self.machines.values():
            if machine.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    machine.process.wait(timeout=20)
        left = list(self.left())
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.wait(timeout=10)
        if self._disk:
            for name in ("state", "runs"):
                subprocess.run(["umount", "-l", self.kits / "link" / name], check=False)

    def left(self) -> Iterator[psutil.Process]:
        """Yield the processes of this federation that run."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
