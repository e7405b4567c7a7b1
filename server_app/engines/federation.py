"""A whole federation on this machine: one link and several nodes, with kits, TLS and node keys, as deployed.

What `make federation` runs. It is the README's deployment in small: the same commands, on loopback and free
ports, with kits in a temporary folder. At the end, or at Ctrl-C, all of it is stopped.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from server_app.deploy.host.host import APP_DIR, free_port
from server_app.deploy.host.modules import module_command
from server_app.deploy.host.proxy import without_proxies
from server_app.deploy.kits.kit import LARGEST, LinkKit, read_link_kit, read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import follow
from server_app.deploy.link.jobs import Job
from server_app.deploy.link.status import RED, read_status
from server_app.run.encryption import decrypt
from server_app.run.naming import drop_unbegun
from server_app.run.progress import closing_table
from task import timing
from task.encryption.ckks import KEY_FILE
from task.errors import BouquetError
from task.references import code_folder
from task.storage.files import make_folder, private, write_text
from task.units import MIB


@dataclass
class Federation:
    """A running federation."""

    kit: LinkKit  # the link's
    job: Job | None = None  # the run that was submitted
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # the commands, by name
    nodes: list[str] = field(default_factory=list)  # those that are children of the command `nodes`

    def start(self, name: str, *command: str, module: str = "server_app.cli.main") -> None:
        """Start one of our commands; what it prints goes to ``<kits>/<name>.log``."""
        env = os.environ | without_proxies(os.environ) | {"PYTHONUNBUFFERED": "1"}
        with open(self._log(name), "ab", opener=private) as log:
            self.processes[name] = subprocess.Popen(
                module_command(module, *command),
                cwd=APP_DIR, env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def start_nodes(self, nodes: Mapping[str, Sequence[str]]) -> None:
        """Start nodes, given by name with their options, as children of one process, see `node`."""
        given = [
            {
                "name": name,
                "words": [str(self._kits / name), *options],
                "log": str(self._log(name)),
                "ended": str(self._ended(name)),
            }
            for name, options in nodes.items()
        ]
        self.start("nodes", json.dumps(given), module="server_app.cli.nodes")
        self.nodes += nodes

    def node(self, name: str) -> psutil.Process:
        """Return the process of one of `nodes`, which has started."""
        return psutil.Process(int(self._lock(name).read_text()))

    def run(self, keys: Mapping[str, Any]) -> None:
        """Submit a run by its run-config keys, without ``runs-dir``, and follow it to its end.

        Raises:
            BouquetError: It ended without a result, or a process of the federation has ended.
        """
        try:
            # The nodes are started by this command, so all of them will come.
            nodes = follow.chosen(self.kit, str(keys.get("node-names", ""))) or self.kit.node_keys
            all_nodes = {"min-nodes": len(nodes)}
            self.job = follow.submit(self.kit, all_nodes | dict(keys))
            follow.follow(self.kit, self.job)
            if keys.get("he"):
                decrypt(self.kit.runs / self.job.name, self._kits / "he" / KEY_FILE)
        except BouquetError:
            self.check()
            raise

    def check(self) -> None:
        """Raise if a process has ended.

        Raises:
            BouquetError: Naming the process, with the end of what it printed.
        """
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise BouquetError(f"{name} ended with exit code {process.returncode}:\n{self.logs(name)}")
        for name in self.nodes:
            if (ended := self._ended(name)).exists() and name not in self.processes:
                raise BouquetError(f"{name} {ended.read_text()}:\n{self.logs(name)}")

    def logs(self, name: str = "") -> str:
        """Return the ends of the logs of one of `processes` or `nodes`, or of all."""
        names = [name] if name else [*self.processes, *self.nodes]
        files = [
            path for n in names for path in (self._log(n), *sorted((self._kits / n / "logs").glob("*.log")))
        ]
        found = (f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}\n" for p in files if p.exists())
        return re.sub(r"\x1b\[[0-9;]*m", "", "".join(found))  # Flower colours its lines

    def stop(self) -> None:
        """Stop every process; return when none is left."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + timing.FEDERATION_STOPS_S
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # what it started ends with it
                process.wait()

    def leave(self) -> None:
        """Write and print the results of a run stopped by the user, once every process has stopped.

        One that has not begun is removed.
        """
        from server_app.run.stopped import finish_stopped  # imports torch, which costs three seconds

        folder = self.kit.runs / self.job.name if self.job else None
        result = finish_stopped(folder, "by the user") if folder else None
        if folder and self.job and not self.job.keys.get("resume"):
            drop_unbegun(folder)
        if folder and result and self.job and self.job.keys.get("progress") != "none":
            closing_table(result, folder.resolve())

    @property
    def _kits(self) -> Path:
        return self.kit.path.parent

    def _log(self, name: str) -> Path:
        return self._kits / f"{name}.log"

    def _ended(self, name: str) -> Path:
        return self._kits / f"{name}.ended"

    def _lock(self, name: str) -> Path:
        return read_node_kit(self._kits / name).lock


@contextmanager
def federation(
    nodes: Mapping[str, Sequence[str]],
    runs: Path,
    packages: Sequence[str] = (),
    *,
    he: bool = False,
    policy: Mapping[str, object] | None = None,
) -> Iterator[Federation]:
    """Start a link and nodes, given by name with their options; stop all of it at the end of the block.

    Result folders are written into `runs`. Runs may name code of `packages`, which is where this process
    finds it (`task.references.code_folder`). With `he` the kits have a key for encrypted runs, and the final
    model of one is opened with it. `policy` has further values of ``[policy]`` in the nodes' kits.

    Raises:
        BouquetError: A process did not come up.
    """
    make_folder(runs)
    with tempfile.TemporaryDirectory(prefix="bouquet-", ignore_cleanup_errors=True) as folder:
        kits = Path(folder, "kits")
        provision(kits, f"127.0.0.1:{free_port()}", list(nodes), he=he)
        config = kits / "link" / "kit.toml"
        ours = {
            "control": f'control = "127.0.0.1:{free_port()}"',
            "max-reply": f'max-reply = "{LARGEST // MIB}M"',  # its nodes are this user's own
        }
        lines = [ours.get(line.partition(" ")[0], line) for line in config.read_text().splitlines()]
        write_text(config, "\n".join(lines) + "\n")
        for name in ("link", *nodes):
            (kits / name / "code").symlink_to(code_folder().resolve(), target_is_directory=True)
        for name in nodes:
            _allow(kits / name / "kit.toml", {"packages": list(packages), **(policy or {})})
        (kits / "link" / "runs").symlink_to(runs.resolve(), target_is_directory=True)
        fed = Federation(read_link_kit(kits / "link"))
        try:
            fed.start("link", "link", str(kits / "link"))
            fed.start_nodes(nodes)
            _await_link(fed)
            try:
                yield fed
            except KeyboardInterrupt:
                fed.stop()
                fed.leave()
                raise
        finally:
            fed.stop()


def _allow(config: Path, values: Mapping[str, object]) -> None:
    """Set existing keys of a node's kit."""
    lines = config.read_text().splitlines()
    given = {f"{key} = ": f"{key} = {json.dumps(value)}" for key, value in values.items()}
    found = [next((text for start, text in given.items() if line.startswith(start)), line) for line in lines]
    write_text(config, "\n".join(found) + "\n")


def _await_link(fed: Federation) -> None:
    """Return when the SuperLink answers."""
    deadline = time.monotonic() + timing.FEDERATION_STARTS_S
    while (status := read_status(fed.kit))["state"] == RED:
        fed.check()
        if time.monotonic() > deadline:
            raise BouquetError(
                f"the link was not ready in {timing.FEDERATION_STARTS_S:g} s: "
                f"{'; '.join(status['warnings'])}\n{fed.logs('link')}"
            )
        time.sleep(0.1)
