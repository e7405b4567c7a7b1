"""Sums of 32 bits and noise by the nodes on four gRPC nodes with TLS and kits, in one federation."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from server_app.engines.federation import Federation, federation
from server_app.results.folder import MODEL, RunFolder
from task.privacy.accounting import epsilon
from task.privacy.noise import Stream
from task.privacy.noise_ledger import FILE
from task.privacy.noise_ledger import epsilon as at_the_node
from tests.privacy.test_central import Ledger, run
from tests.support.federation import play

pytestmark = pytest.mark.system
NODES = ("a", "b", "c", "d")
KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "logistic", "num-clients": 8, "num-server-rounds": 2, "max-examples": 600,
    "device": "cpu", "progress": "none", "fraction-evaluate": 0.0, "secagg": True,
}  # fmt: skip
NARROW: dict[str, Any] = {"secagg-bits": 32, "max-update-norm": 10.0}
Z, DELTA = 2.0, 0.01
NOISE: dict[str, Any] = {
    "dp.noise": Z, "dp.clip": 0.3, "dp.delta": DELTA, "dp.noise-by": "nodes", "fraction-train": 1.0,
    "num-server-rounds": 1,
}  # fmt: skip


def kept(fed: Federation, name: str) -> list[dict[str, Any]]:
    """Return the lines of a node's own ledger."""
    path = fed.kit.path.parent / name / "cache" / "state" / FILE
    return [json.loads(line) for line in path.read_text().splitlines()]


def simulation(keys: dict[str, Any]) -> Any:
    return run({**KEYS, **keys}, Ledger(), nodes=4)


def test_four_nodes_end_as_the_simulation_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    with federation({n: ["--partition", f"{i}/4"] for i, n in enumerate(NODES)}, runs) as fed:
        fed.run({**KEYS, **NARROW, "run-name": "narrow"})
        fed.run({**KEYS, **NOISE, "run-name": "noised"})
        spent = {name: kept(fed, name) for name in NODES}
    narrow = play({**KEYS, **NARROW}, nodes=3)
    assert [r["model_sha256"] for r in RunFolder(runs / "narrow").rounds()] == [
        r["model_sha256"] for r in narrow.rows
    ]
    # Who takes part, the clip and epsilon are the simulation's.
    simulated = simulation(NOISE)
    for row, want in zip(RunFolder(runs / "noised").rounds(), simulated.rows, strict=True):
        for key in ("epsilon", "dp_clip", "answered", "quarantined"):
            assert row[key] == want[key], key
    result = RunFolder(runs / "noised").result()
    assert result is not None
    assert result["privacy"]["epsilon"] == epsilon([(1.0, Z)], DELTA)  # type: ignore[index]
    # Noise is each attempt's own. Without it the model would be the simulation's without it.
    monkeypatch.setattr(Stream, "integers", lambda self, size, std: np.zeros(size, np.int64))
    plain, found = simulation(NOISE).arrays(1), load_file(runs / "noised" / MODEL)
    off = np.concatenate([(found[n] - plain[n]).ravel() for n in plain])
    wide = Z * 0.3 * (4 / 2) ** 0.5 / 8  # z C sqrt(n / (t - c)) / M
    assert off.std() == pytest.approx(wide, rel=4 / (2 * off.size) ** 0.5)
    assert abs(off.mean()) < 4 * wide / off.size**0.5
    # Each node has written the one noised sum down, and no other.
    for name, lines in spent.items():
        assert [(line["round"], line["phase"], line["noise"]) for line in lines] == [(1, "train", Z)], name


@pytest.mark.full  # a minute: the link holds a killed node for online
def test_a_killed_node_knows_what_it_has_spent_and_keeps_to_its_owners_ceiling(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with federation({n: ["--partition", f"{i}/4"] for i, n in enumerate(NODES)}, runs) as fed:
        fed.run({**KEYS, **NOISE, "run-name": "first"})
        d, kit = fed.processes["d"], fed.kit.path.parent / "d"
        os.kill(d.pid, signal.SIGKILL)
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
