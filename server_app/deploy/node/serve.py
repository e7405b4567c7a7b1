"""``bouquet node``: a node's SuperNode and its warm SuperExec, started, watched and kept up.

The supervisor here says in plain words what happens. A SuperNode that has not exchanged anything with the
SuperLink for 30 s, although the SuperLink's port has answered all that time, is restarted; one that lost the
SuperLink is left alone, since it holds replies that it will deliver when the SuperLink is back.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from server_app.deploy.flower import environment as flower
from server_app.deploy.host.host import TOKENS, WORK, free_port, place_of, toml
from server_app.deploy.host.processes import Child, Supervisor, how_it_ended, only_one, say
from server_app.deploy.kits.certificates import check_kit
from server_app.deploy.kits.kit import CONFIG, NodeKit, Policy
from server_app.deploy.kits.parsing import read_address
from server_app.deploy.node.own_data import check_data
from server_app.deploy.node.probe import Probe
from server_app.deploy.node.resource_limits import TASK_BYTES, MemoryLimit, SlowLink, spell
from task import timing
from task.errors import ConfigError
from task.storage.files import make_folder

SUPERNODE, WARM = "supernode", "warm"


@dataclass(frozen=True)
class Options:
    """How a node runs on its machine.

    Attributes:
        data: Its data; None = it stands in for clients of the run's partition.
        partition: Which share of the partition, and of how many, where there is no data.
        cold: Flower's own way, a fresh Python process per message.
        max_memory: Most bytes that its processes use together; 0 = no limit.
        threads: Most threads of a task; 0 = no limit.
        bandwidth: Bytes per second to and from the SuperLink; 0 = no limit.
        may_train: Program that is asked before each training task.
    """

    data: Path | None = None
    partition: tuple[int, int] | None = None
    cold: bool = False
    max_memory: int = 0
    threads: int = 0
    bandwidth: float = 0.0
    may_train: str = ""


def check(options: Options) -> None:
    """Refuse what cannot work, before anything is started.

    Raises:
        ConfigError: Naming the option.
    """
    if options.data is not None:
        if options.partition is not None:
            raise ConfigError("--partition: a node with --data trains on that; give one of them")
        if not options.data.exists():
            raise ConfigError(f"--data: expected a file or folder; got none at {options.data}")
        needs = os.R_OK | os.X_OK if options.data.is_dir() else os.R_OK
        if not os.access(options.data, needs):
            raise ConfigError(
                f"--data: expected something that this user (uid {os.getuid()}) can read; got {options.data}"
            )
    if options.partition is not None and not 0 <= options.partition[0] < options.partition[1]:
        raise ConfigError(
            "--partition: expected I/N with I from 0 to N - 1; got {}/{}".format(*options.partition)
        )
    if options.may_train and not os.access(options.may_train, os.X_OK):
        raise ConfigError(f"--may-train: expected a program that can be run; got {options.may_train}")
    if options.cold and (options.max_memory or options.may_train):
        raise ConfigError("--cold: Flower's own way knows neither --max-memory nor --may-train; leave it out")


def read_partition(text: str) -> tuple[int, int] | None:
    """Return I and N of ``I/N``; None for "".

    Raises:
        ConfigError: It is no such pair.
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise ConfigError(f"--partition: expected I/N, such as 0/3; got {text!r}")
    return int(match[1]), int(match[2])


def run_node(kit: NodeKit, options: Options) -> None:
    """Run a node until Ctrl-C or SIGTERM; then everything that it started is stopped.

    Raises:
        ConfigError: An option cannot work, a certificate has expired, or the memory that it may use is not
            enough.
        DataError: Its data cannot be used.
        BouquetError: The kit is in use, or was taken away.
    """
    check(options)
    for text in check_kit(kit.path):
        say(text)
    with only_one(kit.state / "node.lock", f"the node {kit.name}"), Supervisor(kit.logs) as supervisor:
        # What another app than the installed one can read is not known here.
        if options.data is not None and kit.policy.apps == "installed":
            say(f"reading {options.data}")
            say(f"data: {check_data(options.data, kit.name, kit.cache, options.max_memory)}")
        node = _NodeProcesses(kit, options, supervisor)
        node.start()
        supervisor.run(threading.Event(), node.look)


class _NodeProcesses:
    """The children of one node, and what is known of its connection."""

    def __init__(self, kit: NodeKit, options: Options, supervisor: Supervisor) -> None:
        self.kit, self.options, self.supervisor = kit, options, supervisor
        self.link = read_address(kit.link, "link")
        self.ready = kit.state / "warm"
        self.port = free_port()
        self.slow = SlowLink(self.link, options.bandwidth) if options.bandwidth else None
        self.limit = MemoryLimit(options.max_memory, os.getpid()) if options.max_memory else None
        self.connected = False
        self.said_lost = False
        self.refused_since = 0.0
        self.probe = Probe(self.link, kit.ca_certificate)
        self._answers_since = 0.0  # since when the port answers without a break; 0 = it does not
        self._probed = 0.0  # when a look at the port began
        self._said = ""  # of the port or its certificate

    def start(self) -> None:
        """Start the children."""
        if self.options.cold:
            say(
                "--cold: Flower's own way, a fresh process per message; of the kit's [policy] only what the "
                "app itself sees to holds: min-examples, min-steps, run-paths"
            )
        self.ready.unlink(missing_ok=True)
        make_folder(self.kit.flwr_home)
        say(f"node {self.kit.name}: connecting to {self.kit.link}")
        env = environment(self.kit, self.options)
        child = Child(SUPERNODE, self._supernode(), env, self._health, self._explain, self._begun)
        self.supervisor.add(child)
        if not self.options.cold:
            self.supervisor.add(Child(WARM, self._warm(), env))

    def _supernode(self) -> list[str]:
        kit, host = self.kit, self.link[0]
        command = [
            sys.executable,
            "-m",
            "server_app.deploy.flower.supernode",
            str(kit.alive),
            place_of(kit.path),
        ]
        superlink = kit.link
        if self.slow is not None:
            command += ["--server-name", host]
            superlink = f"127.0.0.1:{self.slow.port}"
        command += [
            "--", "--superlink", superlink, "--root-certificates", str(kit.ca_certificate),
            "--auth-supernode-private-key", str(kit.key), "--host", "127.0.0.1", "--port", str(self.port),
        ]  # fmt: skip
        if values := node_config(kit.name, self.options, kit.policy):
            command += ["--node-config", values]
        if self.options.cold:
            return [*command, "--isolation", "subprocess"]
        return [*command, "--isolation", "process", "--superexec-auth-secret-file", str(kit.secret)]

    def _warm(self) -> list[str]:
        kit, policy, options = self.kit, self.kit.policy, self.options
        return [
            sys.executable, "-m", "server_app.deploy.flower.warm", "--kind", "flwr-clientapp",
            "--runtime", f"127.0.0.1:{self.port}", "--secret", str(kit.secret),
            "--preload", "client_app.app", "--apps", policy.apps, "--max-rounds", str(policy.max_rounds),
            "--min-examples", str(policy.min_examples), "--min-steps", str(policy.min_steps),
            "--may-train", options.may_train,
            "--threads", str(options.threads), "--max-memory", str(options.max_memory),
            "--audit", str(kit.logs / "audit.log"), "--rounds", str(kit.state / "rounds.json"),
            "--ready", str(self.ready), "--work", str(kit.alive.with_name(WORK)),
            "--tasks", str(kit.state / TOKENS),
        ]  # fmt: skip

    def look(self) -> None:
        """Say what has changed, and refuse to go on without enough memory.

        Raises:
            ConfigError: The node's processes alone use more than they may.
        """
        quiet_s = self._quiet_s()
        if self.kit.alive.exists() and quiet_s < timing.NODE_SILENT_S:
            if not self.connected or self.said_lost:
                say(f"connected to {self.kit.link}")
                self._said = ""
            self.connected, self.said_lost, self.refused_since = True, False, 0.0
        elif self.connected and quiet_s > timing.NODE_SILENT_S and not self.said_lost:
            say(f"lost the SuperLink since {quiet_s:.0f} s: trying again")
            self.said_lost = True
        lost = not self.connected or quiet_s > timing.NODE_SILENT_S
        if time.monotonic() > self._probed + (timing.PORT_LOOK_S if lost else timing.CERTIFICATE_LOOK_S):
            self._probed = time.monotonic()
            self.probe.look()
        self._tell_of_port(lost)
        self._move_port()
        if self.limit is not None and self.connected and self.ready.exists():
            self.ready.unlink(missing_ok=True)
            self._check_memory(self.limit)

    def _begun(self, pid: int) -> None:
        """Forget the SuperNode that was there before."""
        self.kit.alive.unlink(missing_ok=True)
        self.connected, self.said_lost = False, False
        self._answers_since = 0.0

    def _quiet_s(self) -> float:
        """Return for how long there was no exchange, in seconds; a start counts as one."""
        up_s = self.supervisor.children[SUPERNODE].uptime_s()
        try:
            return min(up_s, time.time() - self.kit.alive.stat().st_mtime)
        except FileNotFoundError:
            return up_s

    def _tell_of_port(self, lost: bool) -> None:
        """Say why the SuperLink cannot be reached, or that its certificate ends soon; each once."""
        found = self.probe.found
        if found is None:
            return
        if lost:
            self._answers_since = (self._answers_since or time.monotonic()) if found.answers else 0.0
        words = [finding.text for finding in found.findings]
        if lost and found.trouble:
            where = f'the address is the key "link" of {self.kit.path / CONFIG}'
            words = [f"{self.kit.link}: {found.trouble} Trying again; {where}"]
        for text in words:
            if text != self._said:
                say(text)
                self._said = text

    def _health(self) -> str:
        quiet_s = self._quiet_s()
        if quiet_s < timing.NODE_STALE_S:
            if quiet_s < timing.NODE_SILENT_S:
                self._answers_since = 0.0
            return ""
        if not self._answers_since or time.monotonic() < self._answers_since + timing.NODE_STALE_S:
            return ""
        self._answers_since = 0.0
        return f"no exchange with {self.kit.link} for {quiet_s:.0f} s, though its port answers"

    def _explain(self, code: int, log: str) -> str:
        """Say why the SuperNode ended, from what it logged."""
        told = [line[9:] for line in re.findall(r"^bouquet: .*$", log, re.MULTILINE)]
        told = [line for line in told if not line.startswith("connected to")]
        host = self.link[0]
        if "[code: 2004]" in log:
            self.refused_since = self.refused_since or time.monotonic()
            if time.monotonic() < self.refused_since + timing.NOT_LET_IN_S:
                return (
                    f"was not let in by {host}: it holds an earlier process of this node for online "
                    "(for up to 60 s), or does not know its key"
                )
            return (
                f"was not let in: key not accepted. Ask whoever runs {host} to register {self.kit.name}, "
                "or to check that its key was not revoked"
            )
        if "CERTIFICATE_VERIFY_FAILED" in log or "handshake failed" in log.lower():
            return (
                f"ended: {self.kit.link} has no certificate for {host} that {self.kit.ca_certificate} "
                "vouches for. Is this kit of this federation, and has the certificate expired?"
            )
        return f"{how_it_ended(code)}: {told[-1]}" if told else how_it_ended(code)

    def _move_port(self) -> None:
        """Take another port if another process has taken this one."""
        child = self.supervisor.children[SUPERNODE]
        if child.process is not None or "address already in use" not in self.supervisor.tail(SUPERNODE):
            return
        self.port = free_port()
        child.command = self._supernode()
        child.due = 0.0
        self.supervisor.look()
        if WARM in self.supervisor.children:
            self.supervisor.children[WARM].command = self._warm()
            self.supervisor.restart(WARM, "the SuperNode has moved to another port")

    def _check_memory(self, limit: MemoryLimit) -> None:
        used = limit.used()
        needs = used + TASK_BYTES
        if needs > limit.most:
            raise ConfigError(
                f"--max-memory {spell(limit.most)}: this node needs at least {spell(needs)}: its processes "
                f"use {spell(used)} before any task, and the smallest task {spell(TASK_BYTES)}"
            )
        say(f"memory: {spell(used)} of {spell(limit.most)} before any task")


def node_config(name: str, options: Options, policy: Policy) -> str:
    """Return the node config, as Flower's command takes it: who the node is, and what its owner allows."""
    values: dict[str, str | int | bool] = {}
    if options.data is not None:
        values = {"client-name": name, "data-path": str(options.data.resolve())}
    elif options.partition is not None:
        values = {"partition-id": options.partition[0], "num-partitions": options.partition[1]}
    allowed = {
        "min-examples": policy.min_examples, "min-steps": policy.min_steps, "run-paths": policy.run_paths
    }  # fmt: skip
    values |= {key: value for key, value in allowed.items() if value}
    return " ".join(f"{key}={toml(value)}" for key, value in values.items())


def environment(kit: NodeKit, options: Options) -> dict[str, str]:
    """Return what is added to the environment of the node's processes."""
    env = kit.environment() | flower.NODE
    if options.threads:
        env |= dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(options.threads)
        )
    if options.max_memory:
        env["MALLOC_ARENA_MAX"] = "2"  # each arena keeps what was freed in it
    return env
