"""The compose stack, from a machine without any image: base, image, containers, a run, faults, scaling.

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
from contextlib import contextmanager
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
KIT = "/tmp/kit"  # in the container of a node: the kit that it holds
# Run by the container's python: to print whether a TCP port of a host opens.
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"
# To fail if anything but loopback (Docker's DNS) listens.
CLOSED = """
from pathlib import Path
lines = [line for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
ports = [line.split()[1] for line in lines if line.split()[3] == "0A"]
assert all(port[6:8] == "7F" for port in ports), ports
"""
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
    image: str = IMAGE

    def __call__(self, *words: str, timeout_s: float = 300, check: bool = True, **more: str) -> str:
        line = (*self.compose, "-p", self.project, "-f", str(FOLDER / "compose.yaml"), *words)
        return call(*line, timeout_s=timeout_s, check=check, **({"BOUQUET_IMAGE": self.image} | more))

    def ids(self) -> dict[str, str]:
        """Return the containers that run as nodes, by the name of the kit that each holds."""
        containers = self("ps", "-q", "node").split()
        held = [(call("docker", "exec", c, "readlink", KIT, check=False).strip(), c) for c in containers]
        names = [Path(kit).name for kit, _ in held if kit]
        assert len(set(names)) == len(names), f"two containers hold one kit: {sorted(names)}"
        return {Path(kit).name: container for kit, container in held if kit}

    def id(self, machine: str) -> str:
        """Return the container of the link, or of the node of this name."""
        return self.ids()[machine] if machine.startswith("node-") else self("ps", "-q", machine).strip()

    def inspect(self, machine: str) -> dict[str, object]:
        return dict(json.loads(call("docker", "inspect", self.id(machine)))[0])

    def healthy(self, *machines: str) -> bool:
        """Whether exactly these nodes, or the link, are healthy."""
        ids = self.ids() if machines != ("link",) else {"link": self.id("link")}
        state = ("docker", "inspect", "-f", "{{.State.Health.Status}}")
        return {*ids} == {*machines} and all(
            call(*state, container, check=False).strip() == "healthy" for container in ids.values()
        )

    def python(self, machine: str, code: str, *arguments: str) -> bool:
        return succeeds("docker", "exec", self.id(machine), "python3", "-c", code, *arguments)

    def read(self, path: str) -> str:
        return call("docker", "exec", self.id("link"), "cat", path, check=False)


@pytest.fixture(scope="module")
def image() -> str:
    """The image, built from a base that is built, if it is not there, from Debian's packages."""
    if not succeeds("docker", "info"):
        pytest.fail("no Docker engine answers (`docker info`); BOUQUET_NO_DOCKER=1 leaves these tests out")
    call(str(FOLDER / "base.sh"), BASE, timeout_s=900)
    # CI reaches no index of CPU wheels, and the default index has CUDA's: 4 GB more.
    build = {"BASE": BASE, "TORCH_INDEX": os.environ.get("TORCH_INDEX", "debian")}
    call(str(FOLDER / "build.sh"), IMAGE, timeout_s=1800, **build)
    return IMAGE


@contextmanager
def running(image: str, *nodes: str) -> Iterator[Stack]:
    """Yield a stack of these nodes, healthy; afterwards nothing of it is left."""
    compose = ("docker", "compose") if succeeds("docker", "compose", "version") else ("docker-compose",)
    stack = Stack(compose, f"bouquet-test-{uuid.uuid4().hex[:8]}", image)
    try:
        stack("up", "-d", "--no-build", timeout_s=600, NODES=str(len(nodes)))
        wait_for(lambda: stack.healthy("link"), "the link to be healthy", 600)
        wait_for(lambda: stack.healthy(*nodes), "the nodes to be healthy", 600)
        yield stack
        stack("down", "--volumes", "--timeout", "20")
        for kind in (["ps", "-a"], ["volume", "ls"], ["network", "ls"]):
            left = call(
                "docker", *kind, "-q", "--filter", f"label=com.docker.compose.project={stack.project}"
            )
            assert not left, f"docker {kind[0]}: {left}"
    finally:
        stack("down", "--volumes", "--timeout", "5", check=False)


@pytest.fixture(scope="module")
def stack(image: str) -> Iterator[Stack]:
    with running(image, *NODES) as stack:
        yield stack


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
    for machine in ("link", *NODES):
        container = stack.id(machine)
        host = dict(json.loads(call("docker", "inspect", container))[0])["HostConfig"]
        assert isinstance(host, dict)
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0
        assert host["NanoCpus"] > 0
        assert host["PidsLimit"] > 0
        status = call("docker", "exec", container, "cat", "/proc/self/status")
        values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert values["Uid"].split() == ["10001"] * 4
        assert int(values["CapEff"], 16) == 0
        assert values["NoNewPrivs"] == "1"
        assert not succeeds("docker", "exec", container, "touch", "/app/written")
        assert not succeeds("docker", "exec", container, "touch", "/data/written")
        kit = "/kit" if machine == "link" else KIT
        assert succeeds("docker", "exec", container, "touch", f"{kit}/logs/written")


def test_nodes_reach_the_fleet_api_and_nothing_else(stack: Stack) -> None:
    # On loopback the Control API is there, so a refusal below is one.
    assert stack.python("link", KNOCK, "127.0.0.1", "8000")
    for node in NODES:
        assert stack.python(node, KNOCK, "link", "9092")
        assert not stack.python(node, KNOCK, "link", "8000"), f"{node} reaches Control"
        # Nodes share a network, so nothing of a node may listen there.
        assert stack.python(node, CLOSED)
    # Another container on that network reaches the Fleet API, too, and the Control API as little as a node.
    network = f"{stack.project}_fleet"
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
    count = 40  # takes longer than it takes to find and kill the node
    rounds = f"num-server-rounds={count}"
    # All five clients of a round must answer, however long a slow machine takes to start a node again.
    stack(
        "exec", "-T", "link", "bouquet", "run", "--link", "/kit", "--recipe", "demo", "--run-name", "killed",
        "-c", f"min-nodes=3 min-replies=5 roll-call-timeout=600 {rounds}", "--detach",
    )  # fmt: skip
    lines = lambda: stack.read("/kit/runs/killed/rounds.jsonl").count("\n")  # noqa: E731
    wait_for(lambda: lines() >= 3, "the third round", 600)
    container = stack.id("node-2")
    stack.python("node-2", KILL)
    restarts = ("docker", "inspect", "-f", "{{.RestartCount}}", container)
    wait_for(lambda: call(*restarts).strip() == "1", "Docker to restart node-2", 120)
    assert lines() < count, "the node was killed too late"
    wait_for(lambda: stack.read("/kit/runs/killed/result.json") != "", "the end of the run", 900)
    wait_for(lambda: stack.healthy(*NODES), "node-2 to be healthy", 300)
    assert stack.id("node-2") == container, "another container took its kit"
    assert json.loads(stack.read("/kit/runs/killed/result.json"))["rounds"] == count
    assert model(stack, "killed", tmp_path) == simulation(tmp_path, "killed", rounds)


def keys(stack: Stack) -> dict[str, str]:
    """Return the public keys of the nodes that run, by name."""
    return {node: call("docker", "exec", c, "cat", f"{KIT}/node.pub") for node, c in stack.ids().items()}


def test_scaling_down_and_up_again_and_beyond_the_kits(stack: Stack, tmp_path: Path) -> None:
    before = keys(stack)
    assert {*before} == {*NODES}
    stack("up", "-d", "--no-build", "--no-recreate", "--scale", "node=1")
    (left,) = stack.ids()
    stack("up", "-d", "--no-build", "--no-recreate", "--scale", "node=4")
    wait_for(lambda: {*stack.ids()} == {*NODES}, "three containers to hold the three kits", 120)
    assert keys(stack) == before
    assert left in stack.ids()
    wait_for(lambda: "other containers hold all 3 kits" in stack("logs", "node"), "the fourth to say why", 60)
    wait_for(lambda: stack.healthy(*NODES), "the three to be healthy", 300)


def test_the_number_of_nodes_adds_and_revokes(stack: Stack, tmp_path: Path) -> None:
    before = keys(stack)
    five = tuple(f"node-{i}" for i in range(1, 6))
    stack("up", "-d", "--no-build", NODES="5")
    wait_for(lambda: stack.healthy(*five), "five nodes to be healthy", 300)
    assert {node: key for node, key in keys(stack).items() if node in NODES} == before
    stack(
        "exec", "-T", "link", "bouquet", "run", "--link", "/kit", "--recipe", "demo", "--run-name", "five",
        "-c", "min-nodes=5 num-server-rounds=3", timeout_s=900,
    )  # fmt: skip
    assert model(stack, "five", tmp_path) == simulation(tmp_path, "five", "num-server-rounds=3")
    stack("up", "-d", "--no-build", NODES="3")
    wait_for(lambda: stack.healthy(*NODES), "three nodes to be healthy", 300)
    enrolled = json.loads(stack.read("/kit/state/status.json"))["nodes"]
    assert {node["name"] for node in enrolled} == {*NODES}


def test_provisioning_again_keeps_the_keys(stack: Stack) -> None:
    before = keys(stack)
    said = stack("run", "--rm", "provision")
    assert said.count("kept") >= len(NODES)
    assert keys(stack) == before
    # The nodes' private keys are in their own volume only, not in the authority's.
    volume = f"{stack.project}_authority:/kits/authority:ro"
    find = ("--entrypoint", "find", IMAGE, "/kits/authority", "-name", "node.key")
    listed = call("docker", "run", "--rm", "-v", volume, *find)
    assert listed == ""
