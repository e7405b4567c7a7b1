"""Limits of small machines: bandwidth through the relay, memory, and what is refused."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from server_app.deploy.host import resource_limits
from server_app.deploy.host.resource_limits import (
    ByteBucket,
    MemoryLimit,
    SlowLink,
    data_bytes,
    lacking,
    proportional_bytes,
    read_rate,
)
from task.errors import BouquetError, ConfigError
from task.units import size_option
from tests.support.waits import set_clock


def test_rates_and_sizes_are_read_and_spelled() -> None:
    assert read_rate("2mbit") == 250_000
    assert read_rate("0.5Mbit") == 62_500
    assert size_option(512 * 1024**2) == "512M"
    assert size_option(512 * 1024**2 + 1) == "513M"
    for bad in ("2", "2mb", "0mbit", "-1mbit", "fast"):
        with pytest.raises(ConfigError, match="--bandwidth"):
            read_rate(bad)


def test_a_bucket_gives_its_rate_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 B/s with a burst of 100 B: 500 B at once must wait for 400 B, which is 0.4 s."""
    clock = set_clock(monkeypatch, resource_limits)
    bucket = ByteBucket(1000.0)
    clock.pass_s(0.2)
    assert bucket.pause_s(500) == pytest.approx(0.4)
    assert bucket.pause_s(100) == pytest.approx(0.5)


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that says how many bytes came, after all of them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    total = 0
                    try:
                        while data := connection.recv(65536):
                            total += len(data)
                        connection.sendall(str(total).encode())
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=5)


def upload(port: int, size: int) -> bytes:
    """Send so many bytes; return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"x" * size)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(100):
            answer += data
        return answer


def test_the_relay_limits_the_rate_and_changes_nothing(echo: tuple[str, int]) -> None:
    relay = SlowLink(echo, 400_000.0)
    began = time.monotonic()
    assert upload(relay.port, 800_000) == b"800000"
    took_s = time.monotonic() - began
    assert 1.8 < took_s < 10  # 2 s, less a tenth of a second's burst
    assert relay.passed == [800_000, 6]


def test_a_cut_ends_connections_and_healing_lets_new_ones_in(echo: tuple[str, int]) -> None:
    relay = SlowLink(echo, 100_000.0)
    timer = threading.Timer(0.5, relay.cut)
    timer.start()
    try:
        answer = upload(relay.port, 1_000_000)
    except OSError:
        answer = b""
    timer.join()
    assert answer != b"1000000"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", relay.port), timeout=5)
    relay.heal()
    assert upload(relay.port, 1000) == b"1000"


def test_memory_is_counted_over_the_tree_and_shared_pages_once() -> None:
    """A fork shares 200 MB with its parent: together they are not 400 MB."""
    script = (
        "import os, sys, time; b = bytearray(200 * 2**20); b[::4096] = b'x' * len(b[::4096])\n"
        "pid = os.fork()\n"
        "if pid: print('ready', flush=True)\n"
        "sys.stdin.read() if pid else time.sleep(60)\n"
        "os.kill(pid, 9)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        used = MemoryLimit(2**30, process.pid).used()
        process.stdin.close()
    assert 200 * 2**20 < used < 260 * 2**20
    assert proportional_bytes(process.pid) == 0


def test_memory_that_the_system_can_drop_does_not_count(tmp_path: Path) -> None:
    """A mapped file of 200 MB that was read, as libraries and decoded data are."""
    path = tmp_path / "mapped"
    path.write_bytes(b"x" * (200 * 2**20))
    limit = MemoryLimit(2**30, os.getpid())
    before, whole = limit.used(), proportional_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped.find(b"y") == -1
        assert proportional_bytes(os.getpid()) - whole > 150 * 2**20
        assert limit.used() - before < 20 * 2**20


def test_the_limit_on_data_lets_pass_what_is_left_and_no_more() -> None:
    limit = MemoryLimit(MemoryLimit(0, os.getpid()).used() + 300 * 2**20, os.getpid())
    assert limit.data_limit() - data_bytes() == pytest.approx(300 * 2**20, abs=20 * 2**20)
    assert MemoryLimit(1, os.getpid()).data_limit() == pytest.approx(data_bytes(), abs=2**20)


@pytest.mark.parametrize(
    ("err", "asked"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."), 64),
        (MemoryError("Unable to allocate 2.5 MiB for an array with shape (9,) and data type uint8"), 2621440),
        (MemoryError(), 0),
        (OSError(12, "Cannot allocate memory"), 0),
        (ValueError("a value"), None),
    ],
)
def test_what_an_error_says_of_memory(err: Exception, asked: int | None) -> None:
    assert lacking(err) == asked
    wrapped = BouquetError("MemoryError at task.datasets, line 1")
    wrapped.__cause__ = err
    assert lacking(wrapped) == asked


def test_numpy_and_torch_still_say_how_much_they_lack() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, np.uint8)
    assert lacking(caught.value) == 1 << 60
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert lacking(failed.value) == 1 << 60
