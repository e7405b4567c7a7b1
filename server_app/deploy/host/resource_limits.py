"""Limits for small machines: on memory, and on the bandwidth to the SuperLink."""

import asyncio
import os
import re
import socket
import threading
import time
from pathlib import Path

import psutil

from server_app.deploy.host.processes import SUPERVISOR
from task.errors import ConfigError
from task.units import size_option

TASK_BYTES = (
    64 * 1024**2
)  # least that a task needs in addition to its parent's memory: torch's first operation, a model
MEMORY = "--max-memory"  # prefix of a node's texts about memory
CHUNK = 16 * 1024
BUFFER = 64 * 1024  # what waits in the relay delays the heartbeats behind it
RATES = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


class MemoryLimit:
    """The most memory that all processes of a node may use together.

    Proportional shares are added up, so pages that several processes share count once. What the system can
    drop and read again does not count, such as the code of libraries and memory-mapped data: it would depend
    on what else runs on the machine.

    Args:
        most: Bytes.
        root: Process whose descendants are counted, and itself; without one the supervisor.
    """

    def __init__(self, most: int, root: int = 0) -> None:
        self.most = most
        self._root = psutil.Process(root or int(os.environ.get(SUPERVISOR, os.getpid())))

    def used(self) -> int:
        """Return what the node uses, in bytes."""
        processes = [self._root, *self._root.children(recursive=True)]
        return sum(proportional_bytes(process.pid, ("Pss_Anon", "Pss_Shmem")) for process in processes)

    def before_tasks(self) -> str:
        """Return a line about what the node uses before its first task.

        Raises:
            ConfigError: A task would have no room.
        """
        used, most = self.used(), size_option(self.most)
        if used + TASK_BYTES > self.most:
            raise ConfigError(
                f"{MEMORY} {most}: this node needs at least {size_option(used + TASK_BYTES)}: its processes "
                f"use {size_option(used)} before any task, and the smallest task {size_option(TASK_BYTES)}"
            )
        return f"memory: {size_option(used)} of {most} before any task"

    def data_limit(self) -> int:
        """Return the RLIMIT_DATA with which this process can use up what is left, and no more.

        It counts what is private and writable, touched or not. An allocation beyond it fails in the process
        that asks for it, at once, where a look from outside may come too late.
        """
        return data_bytes() + max(self.most - self.used(), 0)


_ASKED = re.compile(r"you tried to allocate (\d+) bytes|Unable to allocate ([\d.]+) (\w+) for an array")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")  # each 1024 of the one before


def lacking(err: BaseException) -> int | None:
    """Return how many bytes a failed allocation requested, by its error or the error's cause.

    Returns:
        0 where it does not say how many, as Python's own `MemoryError`; None for an error of another kind.
    """
    seen: BaseException | None = err
    while seen is not None:
        if found := _ASKED.search(str(seen)):  # PyTorch's words, then NumPy's
            return int(found[1] or float(found[2]) * 1024 ** _UNITS.index(found[3]))
        if isinstance(seen, MemoryError) or "allocate memory" in str(seen):
            return 0
        seen = seen.__cause__
    return None


def proportional_bytes(pid: int, kinds: tuple[str, ...] = ("Pss",)) -> int:
    """Return a process's share of the memory that it uses, in bytes; 0 when it has ended.

    Args:
        pid: Of the process.
        kinds: What is added up, as Linux names it.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    return sum(int(found.get(kind, 0)) for kind in kinds) * 1024


def data_bytes() -> int:
    """Return how much private writable memory this process has mapped, in bytes."""
    match = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def read_rate(text: str) -> float:
    """Return the bytes per second of a bandwidth such as ``2mbit``.

    Raises:
        ConfigError: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text.lower())
    if not match or float(match[1]) == 0:
        raise ConfigError(f'--bandwidth: expected a rate such as "2mbit" or "500kbit"; got {text!r}')
    return float(match[1]) * RATES[match[2]] / 8


class ByteBucket:
    """A token bucket of a rate in bytes per second, with bursts of a tenth of a second's worth.

    Args:
        rate: Bytes per second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = time.monotonic()

    def pause_s(self, size: int) -> float:
        """Take `size` bytes; return for how long to wait before they may go, in seconds."""
        now = time.monotonic()
        self._free = max(self._free, now - 0.1) + size / self.rate
        return max(0.0, self._free - now)


class SlowLink:
    """A TCP relay on loopback that limits the bytes per second in each direction.

    It sees ciphertext only: the ends speak TLS through it. It works in a thread of its own.

    Args:
        address: Host and port to relay to.
        rate: Bytes per second, in each direction, over all connections together.
    """

    def __init__(self, address: tuple[str, int], rate: float) -> None:
        self.address, self.rate = address, rate
        self.port = 0
        self.passed = [0, 0]  # bytes up and down
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._open: set[asyncio.Future[list[None]]] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="slow-link", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()

    async def _listen(self, port: int = 0) -> None:
        self._up, self._down = ByteBucket(self.rate), ByteBucket(self.rate)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        listener.bind(("127.0.0.1", port))
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=CHUNK)
        self.port = listener.getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, out = await asyncio.open_connection(*self.address)
        except OSError:
            writer.close()
            return
        ways = [self._pass(reader, out, self._up, 0), self._pass(there, writer, self._down, 1)]
        both = asyncio.gather(*ways)
        self._open.add(both)
        try:
            await both  # one end may have sent everything but still receive
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(both)
            for end in (writer, out):
                end.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, bucket: ByteBucket, way: int
    ) -> None:
        while data := await source.read(CHUNK):
            await asyncio.sleep(bucket.pause_s(len(data)))
            sink.write(data)
            await sink.drain()
            self.passed[way] += len(data)
        sink.write_eof()

    def cut(self) -> None:
        """Cut all connections and accept none until `heal`."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for both in self._open:
            both.cancel()

    def heal(self) -> None:
        """Accept connections again, on the same port."""
        asyncio.run_coroutine_threadsafe(self._listen(self.port), self._loop).result()
