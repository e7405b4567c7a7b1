"""``bouquet node``: runs the exchange with the SuperLink and the warm parent of the tasks.

This process keeps the connection; its only child, which must be single-threaded, forks for each message. It
says in plain words what happens. A connection on which nothing was exchanged for 30 s, although the
SuperLink's port has answered all that time, is replaced.
"""

import os
import re
import threading
import time
from functools import partial

from server_app.deploy.host.forks import ForkedProcess
from server_app.deploy.host.modules import module_command
from server_app.deploy.host.processes import Child, Supervisor, only_one, say
from server_app.deploy.host.resource_limits import MemoryLimit
from server_app.deploy.host.tasks import Tasks
from server_app.deploy.kits.certificates import check_kit
from server_app.deploy.kits.kit import CONFIG, NodeKit
from server_app.deploy.kits.parsing import read_address
from server_app.deploy.node import warm
from server_app.deploy.node.connection import connection
from server_app.deploy.node.identity import Identities
from server_app.deploy.node.message_loop import MessageLoop
from server_app.deploy.node.options import Options, check, environment, node_config, site
from server_app.deploy.node.own_data import check_data
from task import portable, timing
from task.config.paths import state_in
from task.errors import ConfigError
from task.privacy.noise_ledger import NoiseLedger
from task.storage.files import FILE, make_folder

WARM, WARM_PORTABLE, APP = "warm", "warm-portable", "client_app.app"


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
    with only_one(kit.lock, f"the node {kit.name}"), Supervisor(kit.logs) as supervisor:
        limits = node_config(kit.name, options, kit.policy)
        if spent := NoiseLedger.of(state_in(kit.cache), limits).summary():
            say(f"privacy: {spent}")
        # What another app than the installed one can read is not known here.
        if options.data is not None and kit.policy.apps == "installed":
            say(f"reading {options.data}")
            most, types = options.max_memory, options.column_types
            say(f"data: {check_data(options.data, kit.name, kit.cache, most, types)}")
        node = _NodeProcess(kit, options, supervisor)
        try:
            node.start()
            supervisor.run(threading.Event(), node.look)
        finally:
            node.loop.close()


class _NodeProcess:
    """One node: its exchange with the SuperLink, its child process, and what was reported of them."""

    def __init__(self, kit: NodeKit, options: Options, supervisor: Supervisor) -> None:
        self.kit, self.options, self.supervisor = kit, options, supervisor
        self.limit = MemoryLimit(options.max_memory, os.getpid()) if options.max_memory else None
        # The second have a parent with fixed kernels, which is started for the first portable run.
        self.tasks = {fixed: Tasks(self.limit) for fixed in (False, True)}
        make_folder(kit.flwr_home)
        # Before the connection: a process with threads cannot be forked.
        self._add_parent(WARM, self.tasks[False], environment(kit, options), fork=warm.is_loaded())
        client, self.probe = connection(kit, options)
        config = node_config(kit.name, options, kit.policy, kit.models, kit.he_key)
        rounds = kit.state / "rounds.json"
        mine, identity = site(kit, options), Identities(kit).of
        self.loop = MessageLoop(client, self.tasks, mine, config, options.max_memory, rounds, identity)
        self.connected = False
        self._lost = False
        self._has_memory = self.limit is None
        self._began = time.monotonic()
        self._touched = 0.0  # last exchange noted in the file `alive`
        self._refused_since = 0.0
        self._answers_since = 0.0  # since when the port answers without a break; 0 = it does not
        self._probed = -timing.CERTIFICATE_LOOK_S  # when a probe of the port began
        self._said: set[str] = set()  # since it was connected last

    def start(self) -> None:
        """Start the loop."""
        self.kit.alive.unlink(missing_ok=True)
        say(f"node {self.kit.name}: connecting to {self.kit.link}")
        self.loop.start()

    def _add_parent(self, name: str, tasks: Tasks, env: dict[str, str], *, fork: bool = False) -> None:
        command = module_command("server_app.deploy.node.warm", APP)
        work = partial(ForkedProcess, partial(warm.serve, APP)) if fork else None
        self.supervisor.add(Child(name, command, env, stdin=tasks.stdin, fork=work))

    def look(self) -> None:
        """Say what has changed, and refuse to go on without enough memory.

        Raises:
            ConfigError: The node's processes, or a run's data, need more than they may use.
        """
        if self.loop.lacks_memory:
            raise ConfigError(self.loop.lacks_memory)
        quiet_s = self._quiet_s()
        if self.tasks[True].wanted and WARM_PORTABLE not in self.supervisor.children:
            env = environment(self.kit, self.options) | portable.SETTINGS
            self._add_parent(WARM_PORTABLE, self.tasks[True], env)
        if (heard := self.loop.client.heard) > self._touched:
            self.kit.alive.touch(FILE)
            self._touched = heard
        if heard and quiet_s < timing.NODE_SILENT_S and not self.loop.refused:
            if not self.connected or self._lost:
                say(f"connected to {self.kit.link}")
                self._said.clear()
                self._probed = -timing.CERTIFICATE_LOOK_S  # the last may be older than the link
            self.connected, self._lost, self._refused_since = True, False, 0.0
        elif self.connected and quiet_s > timing.NODE_SILENT_S and not self._lost:
            say(f"no contact with the SuperLink for {quiet_s:.0f} s: trying again")
            self._lost = True
        lost = not self.connected or quiet_s > timing.NODE_SILENT_S
        if time.monotonic() > self._probed + (timing.PORT_LOOK_S if lost else timing.CERTIFICATE_LOOK_S):
            self._probed = time.monotonic()
            self.probe.look()
        self._tell_of_port(lost)
        if self.loop.refused and (text := self._refusal()):
            self._tell(text)
        self._redial(quiet_s)
        if (
            not self._has_memory
            and self.limit is not None
            and self.connected
            and self.tasks[False].ready.is_set()
        ):
            self._has_memory = True
            say(self.limit.before_tasks())

    def _quiet_s(self) -> float:
        """Return for how long there was no exchange, in seconds; the start counts as one."""
        return time.monotonic() - max(self.loop.client.heard, self._began)

    def _tell(self, text: str) -> None:
        """Say a line, but not the same twice, whatever the time in it."""
        if (words := re.sub(r"\d", "", text)) not in self._said:
            say(text)
            self._said.add(words)

    def _tell_of_port(self, lost: bool) -> None:
        """Say why the SuperLink cannot be reached, or that its certificate ends soon."""
        found = self.probe.found
        if found is None:
            return
        if lost:
            works = found.answers and not found.trouble
            self._answers_since = (self._answers_since or time.monotonic()) if works else 0.0
        if lost and found.trouble:
            where = f'the address is the key "link" of {self.kit.path / CONFIG}'
            self._tell(f"{self.kit.link}: {found.trouble} Trying again; {where}")
            return
        for finding in found.findings:
            self._tell(finding.text)

    def _redial(self, quiet_s: float) -> None:
        """Replace a connection on which nothing comes, although the port answers."""
        if quiet_s < timing.NODE_SILENT_S:
            self._answers_since = 0.0
        answers = self._answers_since and time.monotonic() > self._answers_since + timing.NODE_STALE_S
        if quiet_s > timing.NODE_STALE_S and answers and not self.loop.refused:
            self._answers_since = 0.0
            say(f"no answer from {self.kit.link} for {quiet_s:.0f} s, though its port is open: reconnecting")
            self.loop.client.redial()

    def _refusal(self) -> str:
        """Return why the SuperLink does not let this node in; "" while that is usual, as at a first start."""
        self._refused_since = self._refused_since or time.monotonic()
        host, _ = read_address(self.kit.link, "link")
        if not self.loop.held:
            return f"was refused by {host}: {self.loop.refused}"
        refused_s = time.monotonic() - self._refused_since
        if refused_s < timing.NOT_LET_IN_S:
            if self.connected:
                return (
                    f"was refused by {host}, which accepted the key of {self.kit.name} before: the key was "
                    "revoked, or the link has just started and will read its keys soon"
                )
            if refused_s < timing.KEYS_READ_S:
                return ""
            return (
                f"waiting for {host} to let {self.kit.name} in: a link that has just started reads its keys "
                "first, and one that counts an earlier process of this node as online waits up to 60 s for it"
            )
        return (
            f"was refused: key not accepted. Ask the operator of {host} to register {self.kit.name}, "
            "or to check that its key was not revoked"
        )
