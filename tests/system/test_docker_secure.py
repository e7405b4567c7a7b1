"""The compose stack under secure aggregation and differential privacy, with a node killed at each stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.support.killer import killer
from tests.system.test_docker import KIT, call, image, pytestmark, running, wait_for
from tests.system.test_four_nodes import SECURE

__all__ = ["image", "pytestmark"]
NODES = ("node-1", "node-2", "node-3", "node-4")
KILLED = "bouquet:killed"  # the image with a node-4 that dies once at each stage
# A file of the kit counts the deaths: each is at the next stage.
IS_DUE = """
def is_due(stage, server_round):
    deaths = KIT / "logs" / "deaths"
    count = len(deaths.read_text().split()) if deaths.exists() else 0
    due = KIT.name == "node-4" and server_round > 1
    if due := due and ("keys", "shares", "masked", "unmask")[count:count + 1] == (stage,):
        with deaths.open("a") as file:
            file.write(f"{server_round} ")
    return due
"""
# By the image's own libraries: the run without masks; clients that were out of a sum do not answer.
PLAIN = """
import json, sys
from task.privacy import noise
keys, secret, out = json.load(sys.stdin)
noise.draw_secret = lambda: bytes.fromhex(secret)
from tests.support.federation import play
from tests.support.grid import LocalGrid

class Silent(LocalGrid):
    def _deliver(self, message):
        config = message.content.config_records.get("config", {})
        mine = set(config.get("clients", ())) & set(out.get(message.metadata.group_id, ()))
        return None if message.metadata.message_type == "train" and mine else super()._deliver(message)

print(json.dumps([row["model_sha256"] for row in play(keys, nodes=10, grid_type=Silent).rows]))
"""


def test_a_private_masked_run_ends_in_the_bytes_of_the_simulation(image: str, tmp_path: Path) -> None:
    python = ("--entrypoint", "python3")
    where = "import site; print(site.getsitepackages()[0])"
    site = call("docker", "run", "--rm", *python, image, "-c", where).strip()
    (tmp_path / "killer.py").write_text(killer(IS_DUE))
    (tmp_path / "killer.pth").write_text("import killer\n")
    lines = f"FROM {image}", f"COPY killer.py killer.pth {site}/", "COPY tests /tests/tests"
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).resolve().parents[1], tmp_path / "tests", ignore=ignore)
    call("docker", "build", "--tag", KILLED, str(tmp_path), timeout_s=600)
    count = 100  # long enough for the node to come back three times
    keys = {**SECURE, "secagg": True, "dp.noise": 1.0, "dp.delta": 0.01, "fraction-train": 0.8}
    keys |= {"max-examples": 200, "num-server-rounds": count, "round-timeout": 10.0}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in keys.items())
    folder = "/kit/runs/secure"
    with running(KILLED, *NODES) as stack:
        run = ("bouquet", "run", "--link", "/kit", "--run-name", "secure", "-c", f"{words} min-nodes=4")
        stack("exec", "-T", "link", *run, "--detach")
        wait_for(lambda: stack.read(f"{folder}/result.json") != "", "the end of the run", 1500)
        rows = [json.loads(line) for line in stack.read(f"{folder}/rounds.jsonl").splitlines()]
        deaths = call("docker", "exec", stack.id("node-4"), "cat", f"{KIT}/logs/deaths").split()
        show = f"print(open('{folder}/privacy/secret', 'rb').read().hex())"
        secret = call("docker", "exec", stack.id("link"), "python3", "-c", show).strip()
    assert len(rows) == count + 1
    assert not any(row["skipped"] for row in rows)
    out = {str(row["round"]): [q["client"] for q in row["quarantined"]] for row in rows}
    # At unmask its numbers had come: they are in the sum.
    assert [bool(out[death]) for death in deaths] == [True, True, True, False]
    plain = {key: value for key, value in keys.items() if key != "secagg"} | {"round-timeout": 2.0}
    (tmp_path / "plain.json").write_text(json.dumps([plain, secret, out]))
    alone = f"docker run --rm -i --network none --workdir /tests -e PYTHONPATH=/tests:/app {' '.join(python)}"
    line = f"{alone} {KILLED} -c \"$PLAIN\" < '{tmp_path / 'plain.json'}'"
    said = call("sh", "-c", line, timeout_s=900, PLAIN=PLAIN)
    assert json.loads(said.splitlines()[-1]) == [row["model_sha256"] for row in rows]
    call("docker", "image", "rm", "--force", KILLED)
