"""``bouquet link``: starts and supervises the SuperLink and the SuperExec of its ServerApps.

The supervisor restarts processes that ended and a SuperLink that does not answer. A second thread talks to
the SuperLink: it registers the nodes of the kit, unregisters revoked ones, and runs the jobs. The state of
both is written to ``state/status.json`` every `timing.STATUS_S`.
"""

import errno
import os
import re
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil

from server_app.deploy.calls.control import Control, NodeState, public_key
from server_app.deploy.calls.control_calls import LinkError
from server_app.deploy.host.app_integrity import App, own_app
from server_app.deploy.host.host import marked
from server_app.deploy.host.modules import module_command
from server_app.deploy.host.processes import Child, Supervisor, how_it_ended, only_one, say
from server_app.deploy.host.proxy import without_proxies
from server_app.deploy.kits.certificates import check_kit, kit_findings, node_fingerprint
from server_app.deploy.kits.kit import CONFIG, LinkKit
from server_app.deploy.kits.parsing import read_address
from server_app.deploy.link.jobs import Jobs
from server_app.deploy.link.runner import Runner, bundle
from server_app.deploy.link.status import Seen, flower_lines, node_apps, write_ended, write_status
from server_app.run.confined import KIT
from task import timing
from task.errors import PACKAGES, BouquetError, ConfigError
from task.flower.names import cannot_serve
from task.storage.files import make_folder
from task.units import human_bytes

SUPERLINK, WARM, FLEET_HTTP, SUBMIT = "superlink", "warm", "fleet-http", "submit"
SMALLEST_DISK = 64 * 1024**2  # bytes
# For the GNU C library: blocks of 1 MiB or more go back to the system when they are freed. Else a process
# that only passes messages on keeps the memory of several large ones.
FREES_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": f"{1024**2}"}


class Keeper:
    """Talks to the SuperLink about its nodes and jobs. `run` needs a thread of its own.

    `fab` is the app's bundle; `started` is called after each submission of a run.
    """

    def __init__(self, kit: LinkKit, fab: bytes, started: Callable[[], None]) -> None:
        self.kit = kit
        self.seen = Seen(app=own_app())
        self.control = Control(kit)
        self.jobs = Jobs(kit.jobs, kit.runs)
        app = str(own_app(PACKAGES))
        self._runner = Runner(self.jobs, self.control, fab, say, kit.max_runs, started, app=app)
        self._looked_at = -timing.NODES_CALM_S
        self._told: set[str] = set()
        self._wrong: list[str] = []  # about the kit's keys

    def run(self, over: threading.Event) -> None:
        """Check repeatedly until the event is set."""
        while not over.wait(timing.LINK_LOOK_S):
            try:
                self.look()
            except Exception as err:  # any error: this thread must continue
                self.seen.trouble = f"{type(err).__name__}: {err}"

    def look(self) -> None:
        """Check the SuperLink and the nodes if that is due, then advance the jobs."""
        try:
            if self._is_due():
                check_database(self.kit.database)
                self.seen.nodes, self.seen.apps = self._register(), node_apps(self.kit)
                self.seen.answered = self._looked_at = time.monotonic()
                self.seen.flower = flower_lines(self.kit)
                for line in self.seen.flower:
                    self._tell(line)
                self.seen.trouble, self.seen.warnings = "", self._wrong + self.jobs.damaged()
            self._runner.look(self.seen.nodes)
        except (LinkError, sqlite3.Error) as err:
            self.seen.trouble = str(err)

    def _is_due(self) -> bool:
        """Return whether to look now; seldom while all nodes are online and there is no job."""
        silent_s = time.monotonic() - self._looked_at
        if timing.NODES_LOOK_S <= silent_s < timing.NODES_CALM_S:
            nodes, keys = self.seen.nodes, {path.stem for path in self.kit.nodes.glob("[!.]*.pub")}
            calm = all(node.online for node in nodes) and {node.name for node in nodes} == keys
            return self._runner.busy or not calm
        return silent_s >= timing.NODES_CALM_S

    def _register(self) -> list[NodeState]:
        """Register the nodes of the kit, unregister the revoked ones; return all that are registered."""
        self._wrong, changed = [], False
        nodes = self.control.nodes()
        by_key = {node.key: node for node in nodes}
        for path, key in self._keys(self.kit.node_keys.values()):
            name, node = path.stem, by_key.get(key)
            if node is None:
                self.control.register(name, key)
                changed = True
                say(f"node {name} (key {node_fingerprint(path.read_bytes())}) may join")
            elif not node.registered:
                self._warn(
                    f"{path}: expected a key that was never revoked; got a revoked one. Give the node a new "
                    f"key: bouquet provision --out DIR --revoke {name}, then --node {name}"
                )
        for path, key in self._keys(self.kit.revoked_nodes):
            node = by_key.get(key)
            if node is not None and node.registered:
                self.control.unregister(node.id)
                changed = True
                key_of = node_fingerprint(path.read_bytes())
                say(f"node {node.name} (key {key_of}) is revoked and may no longer join")
        nodes = self.control.nodes() if changed else nodes
        return [node for node in nodes if node.registered]

    def _keys(self, paths: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
        """Yield the files of public keys with their keys; warn of those that hold none."""
        for path in paths:
            try:
                yield path, public_key(path)
            except ConfigError as err:
                self._warn(str(err))

    def _warn(self, text: str) -> None:
        self._wrong.append(text)
        self._tell(text)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            say(text)


def run_link(kit: LinkKit) -> None:
    """Run a link until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: A certificate has expired, or the SuperLink cannot start with what is here.
        BouquetError: Another process runs it already.
    """
    for text in check_kit(kit.path):
        say(text)
    for folder in (kit.state, kit.logs, kit.flwr_home, kit.runs, kit.jobs, kit.cache):
        make_folder(folder)
    with only_one(kit.state / "link.lock", f"the link of {kit.path}"):
        end_leftovers(kit.path)
        check_addresses(kit)
        os.environ |= without_proxies(os.environ)
        over = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # in children too, until one of them listens to it
        with Supervisor(kit.logs) as supervisor:
            env = environment(kit)
            command = superlink_command(kit, own_app())
            superlink = Child(SUPERLINK, command, env | FREES_BLOCKS, explain=why_it_ended)
            warm = Child(WARM, warm_command(kit), env)
            keeper = Keeper(kit, bundle(), lambda: _wake(warm))
            superlink.health = Health(superlink, keeper.seen)
            supervisor.add(superlink)
            supervisor.add(warm)
            if kit.fleet_http:
                relay = module_command("server_app.deploy.calls.fleet_relay", str(kit.path))
                supervisor.add(Child(FLEET_HTTP, relay, env))
            if kit.submit:
                port = module_command("server_app.deploy.link.submit_port", str(kit.path))
                supervisor.add(Child(SUBMIT, port, env))
            threading.Thread(target=keeper.run, args=(over,), daemon=True).start()
            say(
                f"link of {kit.path}: nodes come to {kit.address} (listening on {kit.fleet}"
                + (f", over HTTP on {kit.fleet_http})" if kit.fleet_http else ")")
                + (f"; Flower's commands and submitters to {kit.submit}" if kit.submit else "")
            )
            try:
                supervisor.run(over, StatusWriter(kit, supervisor, keeper))
            finally:
                write_ended(kit)
            say("stopping")
        keeper.control.close()


def _wake(warm: Child) -> None:
    """Have the parent of ServerApps look for a task at once."""
    if process := warm.running:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR1)


class Health:
    """Says when the SuperLink must be restarted.

    One that never answered may only be slow, and a new start is as slow: each gets twice the time.
    """

    def __init__(self, child: Child, seen: Seen) -> None:
        self._child, self._seen = child, seen
        self._starts_s: float = timing.SUPERLINK_STARTS_S

    def __call__(self) -> str:
        """Return why it must be restarted, "" if it need not be."""
        answered, started = self._seen.answered, self._child.started
        if answered > started:
            self._starts_s = timing.SUPERLINK_STARTS_S
        silent_s = time.monotonic() - max(answered, started)
        if silent_s <= (timing.SUPERLINK_SILENT_S if answered > started else self._starts_s):
            return ""
        if answered <= started:
            self._starts_s = min(2 * self._starts_s, timing.SUPERLINK_STARTS_LONGEST_S)
        return f"no valid answer for {silent_s:.0f} s ({self._seen.trouble or 'no answer at all'})"


class StatusWriter:
    """Writes the status file, from the supervisor's thread, which never waits for an answer."""

    def __init__(self, kit: LinkKit, supervisor: Supervisor, keeper: Keeper) -> None:
        self._kit, self._supervisor, self._keeper = kit, supervisor, keeper
        self._due = 0.0
        self._failed = ""

    def __call__(self) -> None:
        """Write it if that is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + timing.STATUS_S
        seen = self._keeper.seen
        try:
            seen.disk = "; ".join(filter(None, map(_full, (self._kit.state, self._kit.runs))))
            seen.certificates = kit_findings(self._kit.path)
            write_status(self._kit, seen, list(self._supervisor.children.values()), self._keeper.jobs)
            self._failed = ""
        except (OSError, BouquetError) as err:  # such as a full disk; readers notice that the file is old
            if str(err) != self._failed:
                say(f"cannot write the status: {err}")
            self._failed = str(err)


def _full(folder: Path) -> str:
    """Return the problem of a folder's disk, "" if there is none."""
    free = shutil.disk_usage(folder).free
    if free >= SMALLEST_DISK:
        return ""
    least = human_bytes(SMALLEST_DISK)
    return f"{folder}: expected at least {least} of free disk; got {human_bytes(free)}"


def why_it_ended(code: int, log: str) -> str:
    """Say how the SuperLink ended.

    Raises:
        ConfigError: It cannot start here, such as with the database of a newer Flower: a new start would not
            help.
    """
    last = log.strip().rpartition("\n")[2]
    if code > 0 and (text := last.removeprefix(f"{ConfigError.__module__}.{ConfigError.__name__}: ")) != last:
        raise ConfigError(f"the SuperLink cannot start: {text}")
    if code > 0 and re.match(r"(ModuleNotFound|Import)Error: .*\bflwr\b", last):
        raise ConfigError(f"the SuperLink cannot start: {cannot_serve(last)}")
    return how_it_ended(code)


def superlink_command(kit: LinkKit, app: App) -> list[str]:
    """Return what starts the SuperLink."""
    host, port = read_address(kit.control, "control")
    return module_command(
        "server_app.deploy.flower.superlink",
        "--max-reply", str(kit.max_reply), "--max-rate", str(kit.max_rate), "--app", app.code,
        "--host", host, "--port", str(port), "--fleet-api-address", kit.fleet,
        "--ssl-ca-certfile", str(kit.ca_certificate), "--ssl-certfile", str(kit.server_certificate),
        "--ssl-keyfile", str(kit.server_key), "--enable-supernode-auth", "--database", str(kit.database),
        "--isolation", "process", "--superexec-auth-secret-file", str(kit.secret),
        "--disable-runtime-dependency-installation",
    )  # fmt: skip


def warm_command(kit: LinkKit) -> list[str]:
    """Return what starts the SuperExec of ServerApps."""
    return module_command(
        "server_app.deploy.flower.warm", "--runtime", kit.control,
        "--root-certificates", str(kit.ca_certificate), "--secret", str(kit.secret),
        "--tasks", str(kit.state / "tasks"),
    )  # fmt: skip


def environment(kit: LinkKit) -> dict[str, str]:
    """Return what is added to the environment of a link's processes."""
    telemetry = os.environ.get("FLWR_TELEMETRY_ENABLED", "0")
    return kit.environment() | {KIT: str(kit.path), "FLWR_TELEMETRY_ENABLED": telemetry}


def check_addresses(kit: LinkKit) -> None:
    """Refuse addresses that nothing can listen on here: the SuperLink would end with them at each start.

    Raises:
        BouquetError: Another program listens there.
        ConfigError: This machine has no such address.
    """
    addresses = {
        "fleet": kit.fleet,
        "control": kit.control,
        "fleet-http": kit.fleet_http,
        "submit": kit.submit,
    }
    for key, address in addresses.items():
        if not address:
            continue
        try:
            family, kind, *_, place = socket.getaddrinfo(
                *read_address(address, key), type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
                tried.listen(1)
        except OSError as err:
            taken = err.errno == errno.EADDRINUSE
            error = BouquetError if taken else ConfigError  # the last link may be just about to end
            raise error(
                f'{kit.path / CONFIG}: key "{key}": expected an address to listen on; got {address}'
                + (", but another program listens there: stop it, or" if taken else f" ({err.strerror}):")
                + " choose another"
            ) from None


def check_database(path: Path) -> None:
    """Check that the database can be written to within a second.

    Raises:
        sqlite3.Error: It is locked, full or damaged.
    """
    if not path.exists():  # the SuperLink makes it
        return
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=1.0, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")


def end_leftovers(kit: Path) -> None:
    """End the processes of this kit that a killed link left behind."""
    left = [process for process in marked(str(kit), KIT) if process.pid != os.getpid()]
    for process in left:
        say(f"ending process {process.pid}, left behind by a link that was killed")
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
