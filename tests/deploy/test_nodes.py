"""Several nodes of one command: each by itself, in memory that they share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from server_app.cli import deploy
from server_app.cli.main import app
from server_app.deploy.host.host import free_port
from server_app.deploy.host.resource_limits import proportional_bytes
from server_app.deploy.kits.kit import read_node_kit
from server_app.deploy.kits.provision import provision
from task.errors import ConfigError
from tests.faults.runs import write_ward

NAMES = ("ada", "bob", "cyd")


@pytest.fixture
def kits(tmp_path: Path) -> list[str]:
    """Kits of three nodes whose link does not run, and a file for each; that of cyd is broken."""
    provision(tmp_path / "kits", f"127.0.0.1:{free_port()}", NAMES)
    for i, name in enumerate(NAMES):
        write_ward(tmp_path / f"{name}.csv", seed=i, rows=60)
    (tmp_path / "cyd.csv").write_text("x,label\nq,1\n")
    return [str(tmp_path / "kits" / name) for name in NAMES]


def files(kits: list[str]) -> list[str]:
    return [word for kit in kits for word in ("--data", f"{Path(kit).parents[1] / Path(kit).name}.csv")]


@pytest.mark.system
def test_a_node_of_several_ends_by_itself_and_all_end_with_the_command(
    kits: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "nodes.log"
    command = [str(Path(sys.executable).with_name("bouquet")), "node", *kits, *files(kits)]

    def until(true: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 120
        while not true():
            assert nodes.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def said(text: str) -> None:
        until(lambda: text in log.read_text())

    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as nodes:
        try:
            said("node cyd ended with exit code 65; the other nodes continue")
            said("ada: data: csv, 58 training")
            said("bob: 127.0.0.1:")
            ada, bob = (psutil.Process(int(read_node_kit(kit).lock.read_text())) for kit in kits[:2])
            own = sum(proportional_bytes(p.pid, ("Private_Dirty",)) for p in (ada, *ada.children()))
            assert own < 60e6, f"a node that shares PyTorch has {own / 1e6:.0f} MB of its own"
            (parent,) = ada.children()
            parent.kill()
            said("ada: warm was killed by SIGKILL; starting it again")
            bob.kill()
            said("node bob was killed by SIGKILL; the other nodes continue")
            until(lambda: len(ada.children()) == 1)
            every = psutil.Process(nodes.pid).children(recursive=True)
        finally:
            nodes.terminate()
        assert nodes.wait(60) == 65
    assert ada in every
    assert not [p for p in every if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_each_node_gets_its_own_data_and_all_other_options(
    kits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(deploy.os, "execve", lambda *arguments: given.append(arguments))
    own, limits = files(kits[:2]), ["--max-memory", "600M", "--threads", "1"]
    result = CliRunner().invoke(app, ["node", *kits[:2], *own, *limits, "--http"])
    assert not result.exception, result.output
    ((_, command, env),) = given
    assert command[-2:-1] == ["server_app.cli.nodes"]
    ada, bob = json.loads(command[-1])
    assert ada == {"name": "ada", "words": [kits[0], *own[:2], *limits, "--http"], "log": "", "ended": ""}
    assert bob["words"] == [kits[1], *own[2:], *limits, "--http"]
    assert env.items() >= (os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}).items()


def test_data_for_some_of_the_kits_are_refused(kits: list[str]) -> None:
    with pytest.raises(ConfigError, match="--data: expected one for each kit, 3 in all; got 2"):
        CliRunner().invoke(app, ["node", *kits, *files(kits[:2])], catch_exceptions=False)
    with pytest.raises(ConfigError, match="--partition: expected one for each kit, 2 in all; got 1"):
        CliRunner().invoke(app, ["node", *kits[:2], "--partition", "0/2"], catch_exceptions=False)
