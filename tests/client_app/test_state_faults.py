"""Kept state when things go wrong: kills, full disks, folders that cannot be written, two at once."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.memory.state import StateStore
from strategies.engine.recovery import oldest_checkpoint
from task.errors import StateError
from task.numerics.arrays import Arrays
from task.storage.files import sync_folder

# The children only save; nothing that another thread may hold matters to them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def fields_of(t: float, size: int = 4) -> dict[str, Arrays]:
    """Return fields whose every number is t."""
    body = {f"{i}.weight": np.full(size, t, np.float32) for i in range(3)}
    return {"body": body, "head": {"b": np.array(t)}}


def save(store: StateStore, t: int, every: int = 1, size: int = 4) -> None:
    store.save("a", "ditto", t, fields_of(t, size), "run", oldest_checkpoint(t, every))


def loaded(store: StateStore, before: int | None = None) -> int | None:
    """Return the round of a client's state, which must be whole: all its numbers are of that round."""
    kept = store.load("a", "ditto", "run", before)
    if kept is None:
        return None
    arrays = [a for named in kept.fields.values() for a in named.values()]
    assert len(arrays) == 4
    assert {x for a in arrays for x in (a.min(), a.max())} == {float(kept.round)}
    return kept.round


def names_in(store: StateStore) -> set[str]:
    return {p.name for p in store.path("a", "run").parent.iterdir()}


class Child:
    """A forked process that does `work` with its own copy of this object."""

    def __init__(self, work: Callable[[Child], None]) -> None:
        self.reader, self.writer = os.pipe()
        self.stdin, self.release = os.pipe()
        self.buffer = b""
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            os.close(self.release)  # so that `wait` ends with the parent, too
            try:
                work(self)
                code = 0
            except BaseException as err:
                self.tell(f"{type(err).__name__}: {err}")
            finally:
                os._exit(code)
        os.close(self.writer)
        os.close(self.stdin)

    def tell(self, line: object) -> None:
        """Tell the parent a line; for the child."""
        os.write(self.writer, f"{line}\n".encode())

    def wait(self) -> None:
        """Wait until the parent asks for the end; for the child."""
        os.read(self.stdin, 1)

    def line(self) -> str:
        """Return its next line."""
        while b"\n" not in self.buffer:
            chunk = os.read(self.reader, 65536)
            assert chunk, "the child has ended"
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode()

    def stop_when(self, true: Callable[[], bool], pauses: Iterable[float]) -> None:
        """Stop it again and again, after each of the pauses, until something holds while it stands still."""
        for pause in pauses:
            if select.select([self.reader], [], [], pause)[0]:
                self.buffer += os.read(self.reader, 65536)
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)
            if true():
                return
            os.kill(self.pid, signal.SIGCONT)

    def killed(self) -> list[str]:
        """Kill it and return the rest of its lines."""
        os.kill(self.pid, signal.SIGKILL)
        return self.ended()[1]

    def ended(self) -> tuple[int, list[str]]:
        """Wait for its end; return its status, negative if a signal ended it, and the rest of its lines."""
        with suppress(BrokenPipeError):
            os.write(self.release, b"x")
        os.close(self.release)
        while chunk := os.read(self.reader, 65536):
            self.buffer += chunk
        os.close(self.reader)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return status, self.buffer.decode().splitlines()


def error_of(act: Callable[[], object]) -> str:
    """Return what `act` says when it fails, in a process of its own."""

    def work(child: Child) -> None:
        with pytest.raises(StateError) as error:
            act()
        child.tell(error.value)

    status, lines = Child(work).ended()
    assert status == 0, lines
    return lines[0]


# ---------------------------------------------------------------------------------------------- killed


def test_fifty_kills_leave_a_whole_state_of_the_last_round_or_the_one_before(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "r")
    rng = np.random.default_rng(11)
    save(store, 1, size=2**18)
    done = 1

    def rounds(child: Child) -> None:
        for t in range(done + 1, 10**6):
            save(store, t, size=2**18)  # three of 1 MiB
            child.tell(t)

    def in_a_write() -> bool:
        return any(name.startswith(".") for name in names_in(store))

    for kill in range(50):
        writes = kill % 2 == 0  # the others at any moment
        child = Child(rounds)
        first = child.line()
        child.stop_when(lambda: not writes or in_a_write(), (float(rng.uniform(0, 0.01)) for _ in count()))  # noqa: B023
        done = int([first, *child.killed()][-1])
        found = loaded(store)
        assert found in (done, done + 1)
        assert kill % 10 or loaded(store, found) == found - 1  # what a resume may ask for
        leftovers = [n for n in names_in(store) if n.startswith(".")]
        assert len(leftovers) <= 1
        assert leftovers or not writes
        done = found
    save(store, done + 1)
    assert names_in(store) == {f"a{v}.safetensors" for v in ("", f"@{done}", f"@{done - 1}")}


EVENTS = ("open", "os.", "tempfile.", "shutil.")


@pytest.mark.parametrize(("links", "durable"), [(True, True), (False, True), (True, False)])
def test_a_kill_before_any_of_the_operations_of_a_save_does_no_harm(
    links: bool, durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was resumed from round 5 saves its round 6, next to 6, 8 and 9 of the abandoned course."""
    if not links:
        monkeypatch.setattr(os, "link", refused_link)
    for t in (1, 4, 6, 8, 9):
        save(StateStore(tmp_path / "before", "r"), t, every=5)
    outcomes = []
    while 0 not in outcomes:
        root = tmp_path / f"killed before operation {len(outcomes)}"
        shutil.copytree(tmp_path / "before", root)
        store, left = StateStore(root, "r", durable=durable), len(outcomes)

        def hook(event: str, args: Any) -> None:
            nonlocal left
            left -= event.startswith(EVENTS)
            if left < 0:
                left = 10**6
                os.kill(os.getpid(), signal.SIGKILL)

        def work(child: Child) -> None:
            sys.addaudithook(hook)
            save(store, 6, every=5)  # noqa: B023 - the child runs at once

        status, lines = Child(work).ended()
        assert status in (0, -signal.SIGKILL), lines
        outcomes.append(status)
        assert loaded(store, 6) == 4
        if loaded(store) != 6:
            assert loaded(store) == 9
            save(store, 6, every=5)
            assert names_in(store) == {"a.safetensors", "a@4.safetensors"}
        save(store, 10, every=5)
        assert [loaded(store, t) for t in (11, 10, 6)] == [10, 6, 4]
        assert names_in(store) == {"a.safetensors", "a@6.safetensors", "a@4.safetensors"}
    assert len(outcomes) > 10


def refused_link(*args: Any) -> None:
    raise OSError(errno.EOPNOTSUPP, "operation not supported")


# ------------------------------------------------------------------------------- disks and folders


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    store = StateStore(tmp_path / "state", "r")
    for t in (1, 2, 3):
        save(store, t)
    return store


@contextmanager
def nothing_changes(store: StateStore) -> Iterator[None]:
    folder = store.path("a", "run").parent
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    yield
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]


@pytest.mark.parametrize("which", ["the arrays", "the folder"])
@pytest.mark.parametrize("t", [4, 3])
def test_a_disk_that_is_full_at_the_sync_leaves_all_as_it_was(
    which: str, t: int, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the new file has its name by then: a client whose round failed keeps what it had."""
    fsync = os.fsync

    def full(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}") == (which == "the folder"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    path = store.path("a", "run")
    with nothing_changes(store):
        with pytest.raises(StateError, match=r"client a: .*No space left on device.*Free space") as error:
            save(store, t)
        assert str(path) in str(error.value)


def test_a_first_save_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StateStore(tmp_path, "r")
    store.path("a", "run").parent.mkdir(parents=True)

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("task.storage.files.sync_folder", full)
    with pytest.raises(StateError, match="No space left"):
        save(store, 1)
    assert names_in(store) == set()
    assert loaded(store) is None


def test_a_write_that_the_system_cuts_short_leaves_all_as_it_was(store: StateStore) -> None:
    """For real: the process may write no file beyond 100 kB, as under a quota."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        save(store, 4, size=2**18)

    with nothing_changes(store):
        said = error_of(limited)
    assert "File too large" in said
    assert "cannot be written" in said


@pytest.mark.parametrize("act", ["save", "lock"])
def test_a_read_only_folder_is_named(act: str, store: StateStore) -> None:
    """For real, and as a user whom permissions bind."""
    folder = store.path("a", "run").parent
    if os.geteuid() == 0:
        for path in (store.root, *store.root.rglob("*")):
            os.chown(path, 65534, 65534)
    folder.chmod(0o555)

    def powerless() -> None:
        os.chdir(store.root)  # the way there need not be open to that user
        if os.geteuid() == 0:
            os.setuid(65534)
        again = StateStore(Path(), "r")
        assert loaded(again) == 3
        if act == "save":
            save(again, 4)
        with again.lock("a", "run"):
            pass

    try:
        with nothing_changes(store):
            said = error_of(powerless)
    finally:
        folder.chmod(0o755)
    assert "client a: kept state r/run/a.safetensors cannot be written" in said
    assert "Permission denied" in said


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    store = StateStore(tmp_path / "state", "r")
    for act in (lambda: save(store, 1), lambda: loaded(store), lambda: store.lock("a", "run").__enter__()):
        with pytest.raises(StateError, match=r"client a: kept state .*a\.safetensors cannot be") as error:
            act()
        assert os.strerror(errno.ENOTDIR) in str(error.value) or "File exists" in str(error.value)


def test_a_file_that_cannot_be_opened_is_neither_damaged_nor_missing(store: StateStore) -> None:
    """For real: the process may open no more files."""

    def bound() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        next_one = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
        loaded(store)

    with nothing_changes(store):
        said = error_of(bound)
    assert "a.safetensors cannot be read: " in said
    assert "Too many open files" in said


def test_new_folders_are_synced_up_to_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def spy(folder: Path) -> None:
        synced.append(folder.relative_to(tmp_path).as_posix())
        sync_folder(folder)

    monkeypatch.setattr("task.storage.files.sync_folder", spy)
    save(StateStore(tmp_path / "state", "r"), 1)
    assert synced == [".", "state", "state/r", "state/r/run"]


def test_a_save_of_a_simulation_leaves_the_syncing_to_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, synced = StateStore(tmp_path / "state", "r", durable=False), []
    save(store, 1)  # makes the folders
    monkeypatch.setattr(os, "fsync", synced.append)
    for t in (2, 3):
        save(store, t)
    assert synced == []
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]
    save(StateStore(tmp_path / "state", "r"), 4)
    assert len(synced) == 2


# ------------------------------------------------------------------------------------------ two at once


def holding(store: StateStore, client: str = "a") -> Child:
    """Return a process that trains a client until its end is asked for."""

    def work(child: Child) -> None:
        with store.lock(client, "run"):
            child.tell("held")
            child.wait()

    child = Child(work)
    assert child.line() == "held"
    return child


def test_the_second_process_that_trains_a_client_is_told_who_does(store: StateStore) -> None:
    file = store.path("a", "run").with_suffix(".lock")
    file.write_text("process 123456789012345678 on some machine with a longer name")  # an earlier holder
    first = holding(store)
    here = re.escape(platform.node())
    said = rf"client a: .*{re.escape(str(file))} held by process {first.pid} on {here}\. Let that process end"
    for _ in range(2):
        with pytest.raises(StateError, match=said), store.lock("a", "run"):
            pass
    with store.lock("b", "run"), store.lock("a", "another run"):
        pass  # others are free
    assert loaded(store) == 3  # and so is reading
    assert first.ended()[0] == 0
    with store.lock("a", "run"):
        save(store, 4)
    assert loaded(store) == 4


def test_a_process_that_is_killed_frees_its_lock(store: StateStore) -> None:
    holding(store).killed()
    with store.lock("a", "run"):
        later = error_of(lambda: store.lock("a", "run").__enter__())
    assert f"process {os.getpid()} on " in later


def test_a_block_that_fails_frees_the_lock(store: StateStore) -> None:
    with pytest.raises(ZeroDivisionError), store.lock("a", "run"):
        raise ZeroDivisionError
    holding(store).ended()


def test_a_forked_child_neither_keeps_its_parents_lock_nor_frees_it(store: StateStore) -> None:
    with store.lock("a", "run"):
        child = Child(Child.wait)
    holding(store).ended()  # though the child still has the file open
    child.ended()
    with ExitStack() as held:
        held.enter_context(store.lock("a", "run"))
        assert Child(lambda child: held.close()).ended()[0] == 0
        assert "held by process" in error_of(lambda: store.lock("a", "run").__enter__())


def test_without_locks_it_goes_on(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refused)
        with store.lock("a", "run"), store.lock("a", "run"):
            save(store, 4)
    monkeypatch.setattr("task.storage.locks.fcntl", None)
    with store.lock("a", "run"), store.lock("a", "run"):
        save(store, 5)
    assert loaded(store) == 5


def test_locks_do_not_count_as_state(store: StateStore) -> None:
    with store.lock("a", "run"), store.lock("new", "run"):
        assert store.load("new", "ditto", "run") is None
        save(store, 4)
    assert loaded(store) == 4
