"""`bouquet node` against a SuperLink with TLS and keys: admitted, restarted, slow, stopped cleanly."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from server_app.deploy.host.resource_limits import SlowLink
from server_app.deploy.kits.parsing import read_address
from server_app.deploy.kits.provision import provision
from task.config.read import read_recipe
from tests.support.federation import read_by
from tests.support.link import BIN, Link, running_link
from tests.support.signals import hear_ctrl_c

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


class Node:
    """A running `bouquet node`."""

    def __init__(self, link: Link, name: str, *options: str) -> None:
        self.kit = link.kits / name
        self.log = link.kits / f"{name}.err"
        self.link = link
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(BIN / "bouquet"), "node", str(self.kit), *options], stderr=log, stdout=log,
                env=os.environ.copy(), preexec_fn=hear_ctrl_c,
            )  # fmt: skip

    def said(self) -> str:
        """Return what it said so far."""
        return self.log.read_text(errors="replace")

    def until(self, true: Callable[[], object], within_s: float = 120.0) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < deadline, self.said() + self.link.logs()
            time.sleep(0.1)

    def tree(self) -> list[psutil.Process]:
        """Return its processes, without itself and without those of messages that have just ended."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def child(self, module: str) -> psutil.Process:
        """Return the child that runs a module."""
        return next(p for p in self.tree() if module in p.cmdline())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Stop it; return how long it took, in seconds."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        return time.monotonic() - began


@contextmanager
def running_node(link: Link, name: str, *options: str) -> Iterator[Node]:
    """Start a node and stop it in the end."""
    node = Node(link, name, *options)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.stop()


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    with running_link(tmp_path_factory.mktemp("link"), ["ward-1", "ward-2"]) as running:
        yield running


def run(link: Link, name: str, folder: Path, more: Mapping[str, object]) -> list[dict[str, object]]:
    """Run the demo on one node; return its rounds."""
    keys = dict(read_recipe("demo")) | {
        "min-nodes": 1, "run-name": name, "runs-dir": str(folder), "progress": "none",
        "num-server-rounds": 2, "fraction-evaluate": 0.0, "partition": "iid", **more,
    }  # fmt: skip
    number = link.submit(read_by(keys))
    assert link.wait(number) == "finished:completed", link.logs()
    return [json.loads(line) for line in (folder / name / "rounds.jsonl").read_text().splitlines()]


# A model of 0.8 MB: 3.2 s at 2 Mbit/s.
BIG = {
    "model": "cnn", "dataset": "digits", "num-server-rounds": 1, "num-clients": 50, "fraction-train": 0.02,
}  # fmt: skip


def test_runs_go_on_when_its_processes_are_killed_and_nothing_is_left_in_the_end(
    link: Link, tmp_path: Path
) -> None:
    with running_node(link, "ward-1", "--partition", "0/1") as node:
        node.until(lambda: "connected to" in node.said())
        assert len(run(link, "before", tmp_path, {})) == 3
        odd = {"min-nodes": 1, "run-name": "odd", "runs-dir": str(tmp_path), "data-dir": "/srv"}
        link.submit(read_by({**read_recipe("demo"), **odd}))
        node.until(lambda: 'run odd: run-config key "data-dir": expected none' in node.said())
        node.child("server_app.deploy.node.warm").kill()
        node.until(lambda: "warm was killed by SIGKILL; starting it again in 0.5 s" in node.said())
        assert len(run(link, "after", tmp_path, {})) == 3
        node.process.kill()
        node.process.wait()
    with running_node(link, "ward-1", "--partition", "0/1", "--bandwidth", "2mbit") as node:
        node.until(lambda: node.said().count("connected to 127") == 2, 180)
        assert "waiting for" not in node.said()  # it is admitted at once, being where that was
        rounds = run(link, "again", tmp_path, BIG)
        assert len(rounds) == 2
        train_s = rounds[1]["seconds"]["train"]  # type: ignore[index]
        assert 6 < train_s < 120  # down and up
        tree = node.tree()
        lines = " ".join(" ".join(p.cmdline()) for p in tree)
        assert (node.kit / "node.key").read_text()[40:80] not in lines
        assert node.stop(signal.SIGINT) < 15
        assert node.process.returncode == 0, node.said()
        _, alive = psutil.wait_procs(tree, timeout=5)
        assert not alive
    assert node.said().rstrip().endswith("node stopped")


@pytest.mark.full
def test_an_upload_that_is_cut_for_five_seconds_arrives(link: Link, tmp_path: Path) -> None:
    config = link.kits / "ward-2" / "kit.toml"
    before = config.read_text()
    relay = SlowLink(read_address(link.kit.address, ""), 125_000.0)
    config.write_text(before.replace(link.kit.address, f"127.0.0.1:{relay.port}"))

    def cut() -> None:
        start = relay.passed[0]
        while relay.passed[0] < start + 400_000:  # all that is sent up before is small
            time.sleep(0.05)
        relay.cut()
        time.sleep(5)
        relay.heal()

    try:
        with running_node(link, "ward-2", "--partition", "0/1") as node, ThreadPoolExecutor(1) as pool:
            node.until(lambda: "connected to" in node.said())
            cutting = pool.submit(cut)
            rounds = run(link, "cut", tmp_path, BIG)
            assert cutting.done()
            cutting.result()
            assert "starting it again" not in node.said()
    finally:
        config.write_text(before)
    assert rounds[1]["answered"] == 1
    assert rounds[1]["seconds"]["train"] > 5  # type: ignore[index]


def test_a_node_with_too_little_memory_says_what_it_needs(link: Link) -> None:
    with running_node(link, "ward-2", "--max-memory", "100M") as node:
        node.until(lambda: node.process.poll() is not None)
    assert node.process.returncode == 78
    assert "--max-memory 100M: this node needs at least " in node.said()


def test_a_key_that_is_not_registered_is_named(link: Link, tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    provision(kits, link.kit.address, ["ward-9"])
    other = dataclasses.replace(link, kits=kits)
    with running_node(other, "ward-9") as node:
        node.until(lambda: "did not sign the link's certificate" in node.said())
        time.sleep(5)  # gRPC tries again every two seconds
        assert node.said().splitlines()[-1].endswith(f"{kits / 'ward-9' / 'kit.toml'}"), (
            "the reason is not last"
        )
    (kits / "ward-9" / "ca.crt").write_bytes((link.kits / "ward-1" / "ca.crt").read_bytes())
    with running_node(other, "ward-9") as node:
        node.until(lambda: "waiting for 127.0.0.1 to let ward-9 in" in node.said())
        assert node.process.poll() is None
