"""The compose stack, from a machine without any image: base, image, four containers, a run, a killed node.

Where no Docker engine answers these tests fail, so that nobody takes them for passed; BOUQUET_NO_DOCKER=1
says that there is none on purpose. $XDG_CACHE_HOME/bouquet-docker keeps the base's packed file system.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.system,
    pytest.mark.full,
    pytest.mark.docker,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.environ.get("BOUQUET_NO_DOCKER") == "1", reason="BOUQUET_NO_DOCKER=1"),
]
FOLDER = Path(__file__).resolve().parents[2] / "docker"
BASE, IMAGE = "bouquet-base:local", "bouquet:test"
NODES = ("node-1", "node-2", "node-3")
# Run by the container's python: to print whether a TCP port of a host opens.
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"
# To kill the child of the container's first process, which the kernel takes all others with.
KILL = """
import os, pathlib
for p in pathlib.Path("/proc").glob("[0-9]*"):
    fields = (p / "stat").read_text().rpartition(")")[2].split()
    if fields[1] == "1" and int(p.name) != os.getpid():
        os.kill(int(p.name), 9)
"""


def call(*command: str, timeout_s: float = 300, check: bool = True, **more: str) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(
        command, env=os.environ | more, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, (
        f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


def succeeds(*command: str, timeout_s: float = 60) -> bool:
    return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode == 0


def wait_for(true: Callable[[], bool], what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(1)


@dataclass(frozen=True)
class Stack:
    """A running stack of its own name."""

    compose: tuple[str, ...]
    project: str

    def __call__(self, *words: str, timeout_s: float = 300, check: bool = True) -> str:
        line = (*self.compose, "-p", self.project, "-f", str(FOLDER / "compose.yaml"), *words)
        return call(*line, timeout_s=timeout_s, check=check, BOUQUET_IMAGE=IMAGE)

    def id(self, service: str) -> str:
        return self("ps", "-q", service).strip()

    def inspect(self, service: str) -> dict[str, object]:
        return dict(json.loads(call("docker", "inspect", self.id(service)))[0])

    def health(self, service: str) -> str:
        return call(
            "docker", "inspect", "-f", "{{.State.Health.Status}}", self.id(service), check=False
        ).strip()

    def python(self, service: str, code: str, *arguments: str) -> bool:
        return succeeds("docker", "exec", self.id(service), "python3", "-c", code, *arguments)

    def read(self, path: str) -> str:
        return call("docker", "exec", self.id("link"), "cat", path, check=False)


@pytest.fixture(scope="module")
def image() -> str:
    """The image, built from a base that is built, if it is not there, from Debian's packages."""
    if not succeeds("docker", "info"):
        pytest.fail("no Docker engine answers (`docker info`); BOUQUET_NO_DOCKER=1 leaves these tests out")
    call(str(FOLDER / "base.sh"), BASE, timeout_s=900)
    # CI reaches no index of CPU wheels: an empty TORCH_INDEX is the default index.
    build = {"BASE": BASE, "TORCH_INDEX": os.environ.get("TORCH_INDEX", "")}
    call(str(FOLDER / "build.sh"), IMAGE, timeout_s=1800, **build)
    return IMAGE


@pytest.fixture(scope="module")
def stack(image: str) -> Iterator[Stack]:
    """The stack, healthy; afterwards nothing of it is left."""
    compose = ("docker", "compose") if succeeds("docker", "compose", "version") else ("docker-compose",)
    stack = Stack(compose, f"bouquet-test-{uuid.uuid4().hex[:8]}")
    try:
        stack("up", "-d", "--no-build", timeout_s=600)
        for service in ("link", *NODES):
            wait_for(lambda s=service: stack.health(s) == "healthy", f"{service} to be healthy", 600)  # type: ignore[misc]
        yield stack
        stack("down", "--volumes", "--timeout", "20")
        for kind in (["ps", "-a"], ["volume", "ls"], ["network", "ls"]):
            left = call(
                "docker", *kind, "-q", "--filter", f"label=com.docker.compose.project={stack.project}"
            )
            assert not left, f"docker {kind[0]}: {left}"
    finally:
        stack("down", "--volumes", "--timeout", "5", check=False)


def simulation(tmp_path: Path, name: str, *keys: str) -> bytes:
    """Return the model of an undisturbed simulation, by the same libraries: those of the image."""
    container = f"bouquet-test-{uuid.uuid4().hex[:8]}"
    more = [word for key in keys for word in ("-c", key)]
    try:
        call(
            "docker", "run", "--name", container, "--network", "none", IMAGE,
            "run", "--recipe", "demo", "--run-name", name, "--runs-dir", "/tmp/runs", *more, timeout_s=900,
        )  # fmt: skip
        call("docker", "cp", f"{container}:/tmp/runs/{name}/model.safetensors", str(tmp_path / name))
        return (tmp_path / name).read_bytes()
    finally:
        call("docker", "rm", "-f", container, check=False)


def model(stack: Stack, name: str, tmp_path: Path) -> bytes:
    """Return the model of a run of the stack."""
    copy = tmp_path / f"{name}-stack"
    call("docker", "cp", f"{stack.id('link')}:/kit/runs/{name}/model.safetensors", str(copy))
    return copy.read_bytes()


def test_image_has_a_user_and_no_key(image: str) -> None:
    config = json.loads(call("docker", "image", "inspect", image))[0]["Config"]
    assert config["User"] == "10001:10001"
    history = call("docker", "history", "--no-trunc", image)
    assert "BEGIN CERTIFICATE" not in history
    found = call(
        "docker", "run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "sh", image, "-c",
        "grep -rlI -e 'BEGIN.*PRIVATE KEY-' --include='*.key' --include='*.pem' --include='id_*' "
        "/app /kit /kits /data /etc /home /root /src /srv /tmp /var /opt/venv 2>/dev/null;"
        "find / -xdev -name '*.secret' -o -xdev -name .netrc -o -xdev -name pip.conf -o -xdev -name uv.toml",
        check=False,
    )  # fmt: skip
    assert found == ""


def test_containers_hold_no_more_than_they_need(stack: Stack) -> None:
    for service in ("link", *NODES):
        host = stack.inspect(service)["HostConfig"]
        assert isinstance(host, dict)
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0
        assert host["NanoCpus"] > 0
        assert host["PidsLimit"] > 0
        status = call("docker", "exec", stack.id(service), "cat", "/proc/self/status")
        values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert values["Uid"].split() == ["10001"] * 4
        assert int(values["CapEff"], 16) == 0
        assert values["NoNewPrivs"] == "1"
        assert not succeeds("docker", "exec", stack.id(service), "touch", "/app/written")
        assert not succeeds("docker", "exec", stack.id(service), "touch", "/data/written")
        assert succeeds("docker", "exec", stack.id(service), "touch", "/kit/logs/written")


def test_nodes_reach_the_fleet_api_and_nothing_else(stack: Stack) -> None:
    networks = stack.inspect("link")["NetworkSettings"]
    assert isinstance(networks, dict)
    addresses = [network["IPAddress"] for network in networks["Networks"].values()]
    assert len(addresses) == len(NODES)
    # On loopback the Control API is there, so a refusal below is one.
    assert stack.python("link", KNOCK, "127.0.0.1", "8000")
    assert stack.python("node-1", KNOCK, "link", "9092")
    for node in NODES:
        for address in ("link", *addresses):
            assert not stack.python(node, KNOCK, address, "8000"), f"{node} reaches Control at {address}"
        for other in NODES:
            if other != node:
                assert not stack.python(node, "import socket, sys; socket.gethostbyname(sys.argv[1])", other)
    # Somebody else on the network of a node finds Fleet too, and Control no more than the node does.
    network = f"{stack.project}_to-node-2"
    outsider = ("docker", "run", "--rm", "--network", network, "--entrypoint", "python3", IMAGE, "-c", KNOCK)
    assert succeeds(*outsider, "link", "9092")
    assert not succeeds(*outsider, "link", "8000")


def test_demo_ends_in_the_bytes_of_the_simulation(stack: Stack, tmp_path: Path) -> None:
    stack(
        "exec", "-T", "link", "bouquet", "run", "--link", "/kit", "--recipe", "demo", "--run-name", "demo",
        "-c", "min-nodes=3", timeout_s=1500,
    )  # fmt: skip
    result = json.loads(stack.read("/kit/runs/demo/result.json"))
    assert result["rounds"] == 20
    assert result["quarantined"] == 0
    assert model(stack, "demo", tmp_path) == simulation(tmp_path, "demo")


def test_killed_node_comes_back_and_nothing_is_lost(stack: Stack, tmp_path: Path) -> None:
    rounds = "num-server-rounds=10"
    # All five clients of a round must answer, however long a slow machine takes to start a node again.
    stack(
        "exec", "-T", "link", "bouquet", "run", "--link", "/kit", "--recipe", "demo", "--run-name", "killed",
        "-c", f"min-nodes=3 min-replies=5 roll-call-timeout=600 {rounds}", "--detach",
    )  # fmt: skip
    lines = lambda: stack.read("/kit/runs/killed/rounds.jsonl").count("\n")  # noqa: E731
    wait_for(lambda: lines() >= 3, "the third round", 600)
    stack.python("node-2", KILL)
    wait_for(lambda: stack.inspect("node-2")["RestartCount"] == 1, "Docker to restart node-2", 120)
    assert lines() < 10, "the node was killed too late"
    wait_for(lambda: stack.read("/kit/runs/killed/result.json") != "", "the end of the run", 900)
    wait_for(lambda: stack.health("node-2") == "healthy", "node-2 to be healthy", 300)
    assert json.loads(stack.read("/kit/runs/killed/result.json"))["rounds"] == 10
    assert model(stack, "killed", tmp_path) == simulation(tmp_path, "killed", rounds)


def test_provisioning_again_keeps_the_keys(stack: Stack) -> None:
    before = [call("docker", "exec", stack.id(n), "cat", "/kit/node.pub") for n in NODES]
    said = stack("run", "--rm", "provision")
    assert said.count("kept") >= len(NODES)
    assert [call("docker", "exec", stack.id(n), "cat", "/kit/node.pub") for n in NODES] == before
    # Nobody but a node has its private key, the authority's volume included.
    volume = f"{stack.project}_authority:/kits/authority:ro"
    find = ("--entrypoint", "find", IMAGE, "/kits/authority", "-name", "node.key")
    listed = call("docker", "run", "--rm", "-v", volume, *find)
    assert listed == ""
