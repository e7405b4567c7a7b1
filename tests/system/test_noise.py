"""Noise by the nodes on four gRPC nodes with TLS and kits, of which one is killed between two runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from server_app.engines.federation import Federation, federation
from server_app.results.folder import RunFolder
from task.privacy.noise_ledger import FILE
from task.privacy.noise_ledger import epsilon as at_the_node

pytestmark = pytest.mark.system
NODES = ("a", "b", "c", "d")
KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "logistic", "num-clients": 8, "num-server-rounds": 2, "max-examples": 600,
    "device": "cpu", "progress": "none", "fraction-evaluate": 0.0, "secagg": True,
}  # fmt: skip
Z, DELTA = 2.0, 0.01
NOISE: dict[str, Any] = {
    "dp.noise": Z, "dp.clip": 0.3, "dp.delta": DELTA, "dp.noise-by": "nodes", "fraction-train": 1.0,
    "num-server-rounds": 1,
}  # fmt: skip


def kept(fed: Federation, name: str) -> list[dict[str, Any]]:
    """Return the lines of a node's own ledger."""
    path = fed.kit.path.parent / name / "cache" / "state" / FILE
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full  # a minute: the link holds a killed node for online
def test_a_killed_node_knows_what_it_has_spent_and_keeps_to_its_owners_ceiling(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with federation({n: ["--partition", f"{i}/4"] for i, n in enumerate(NODES)}, runs) as fed:
        fed.run({**KEYS, **NOISE, "run-name": "first"})
        d, kit = fed.node("d"), fed.kit.path.parent / "d"
        d.kill()
        d.wait()
        most = at_the_node([Z], DELTA) + 0.01
        text = (kit / "kit.toml").read_text().replace("max-epsilon = 0.0", f"max-epsilon = {most}")
        (kit / "kit.toml").write_text(text.replace("delta = 1e-5", f"delta = {DELTA}"))
        fed.start("d", "node", str(kit), "--partition", "3/4")
        fed.run({**KEYS, **NOISE, "run-name": "second"})
        spent = {name: kept(fed, name) for name in NODES}
        said = "".join(path.read_text() for path in [kit.with_suffix(".log"), *kit.glob("logs/*.log")])
    first, second = (RunFolder(runs / name).rounds()[1] for name in ("first", "second"))
    assert first["quarantined"] == []
    assert not second["skipped"]
    assert len(second["quarantined"]) == 2
    assert all(f"policy: max-epsilon = {most:g}" in q["got"] for q in second["quarantined"])
    assert {name: len(lines) for name, lines in spent.items()} == {"a": 2, "b": 2, "c": 2, "d": 1}
    once = f"epsilon = {at_the_node([Z], DELTA):.4g}"
    assert re.search(rf"privacy: {once} at .* after 1 noised sums", said)  # after its sum
    assert re.search(rf"privacy: {once} of .* after 1 noised sums", said)  # when it starts again
