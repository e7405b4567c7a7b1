"""Our nodes on Flower's own SuperLink, and Flower's own SuperNode next to ours on a link: the same models.

From Flower 1.40 on its nodes and its SuperLink speak HTTP, before gRPC; ours speak both.
"""

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from server_app.deploy.host.host import free_port
from server_app.deploy.kits.kit import read_node_kit
from server_app.deploy.kits.kitfiles import set_key
from server_app.deploy.kits.provision import provision
from task.config.read import read_recipe
from tests.support.federation import read_by
from tests.support.link import BIN, running_link
from tests.support.stock import GRPC, stock
from tests.system.test_node import running_node

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(600)]
KEYS = dict(read_recipe("demo")) | {"num-server-rounds": 2, "progress": "none"}


def models(folder: Path) -> list[str]:
    """Return the hashes of a run's models."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert not any(row["quarantined"] for row in rows)
    return [row["model_sha256"] for row in rows]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The models of the run in the simulation."""
    runs = tmp_path_factory.mktemp("simulation")
    keys = " ".join(f"{k}={json.dumps(v)}" for k, v in KEYS.items())
    line = [str(BIN / "bouquet"), "run", "--run-name", "it", "--runs-dir", str(runs), "-c", keys]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return models(runs / "it")


def test_flowers_supernode_works_beside_ours_on_a_link(simulated: list[str], tmp_path: Path) -> None:
    with running_link(tmp_path / "link", ["ward-1", "ward-2", "ward-3"], http=True) as link:
        kit = read_node_kit(link.kits / "ward-2")
        set_key(link.kits / "ward-3" / "kit.toml", "link", link.kit.fleet_http)
        line = [
            str(BIN / "flower-supernode"), "--superlink", kit.link if GRPC else link.kit.fleet_http,
            "--root-certificates", str(kit.ca_certificate),
            "--auth-supernode-private-key", str(kit.key), "--port", str(free_port()),
            "--node-config", "partition-id=1 num-partitions=3",
        ]  # fmt: skip
        with (
            running_node(link, "ward-1", "--partition", "0/3"),
            running_node(link, "ward-3", "--partition", "2/3", "--http"),
            (tmp_path / "supernode.log").open("wb") as log,
            subprocess.Popen(line, env=os.environ | link.env, stdout=log, stderr=log) as theirs,
        ):
            run = link.submit(read_by(KEYS | {"min-nodes": 3, "run-name": "it", "runs-dir": str(tmp_path)}))
            try:
                assert link.wait(run) == "finished:completed", link.logs()
            finally:
                theirs.terminate()
    assert models(tmp_path / "it") == simulated


def test_our_nodes_work_on_flowers_superlink(simulated: list[str], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with stock(tmp_path / "home", []) as theirs:
        provision(tmp_path / "kits", theirs.fleet, ["ward-1", "ward-2"])
        with ExitStack() as running:
            for i, name in enumerate(("ward-1", "ward-2")):
                kit = read_node_kit(tmp_path / "kits" / name)
                shutil.copyfile(theirs.home / "ca.crt", kit.ca_certificate)
                theirs.register(kit.public_key)
                log = running.enter_context((tmp_path / f"{name}.log").open("wb"))
                line = [str(BIN / "bouquet"), "node", str(kit.path), "--partition", f"{i}/2"]
                line += [] if GRPC else ["--http"]
                node = running.enter_context(subprocess.Popen(line, stdout=log, stderr=log))
                running.callback(node.terminate)
            theirs.run(KEYS | {"min-nodes": 2, "run-name": "it", "runs-dir": str(tmp_path)})
    assert models(tmp_path / "it") == simulated
