"""Homomorphic encryption on real gRPC nodes with TLS and kits: the plain model, a link without a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from server_app.engines.federation import federation
from server_app.results.folder import ENCRYPTED, MODEL, RunFolder
from server_app.takeout.decrypt import decrypt
from server_app.takeout.model import find
from task.encryption import ckks
from task.errors import ConfigError, WireError
from tests.support.federation import play

pytestmark = pytest.mark.system
KEYS: dict[str, Any] = {
    "dataset": "digits", "num-clients": 6, "num-server-rounds": 2, "max-examples": 300, "device": "cpu",
    "progress": "none", "fraction-evaluate": 1.0,
}  # fmt: skip


def test_three_nodes_with_kits_end_in_the_plain_runs_model(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    nodes = {f"ward-{i}": ["--partition", f"{i}/3"] for i in range(3)}
    with federation(nodes, runs, he=True) as fed:
        kits = fed.kit.path.parent
        fed.run({**KEYS, "he": True, "run-name": "he"})
        key = (kits / "he" / ckks.KEY_FILE).read_bytes()
        # Nothing of the link, neither kit nor database, logs and results, has the key or a part of it.
        parts = [key[at : at + 64] for at in range(len(key) // 4, len(key) - 64, len(key) // 8)]
        files = [p for folder in (kits / "link", runs) for p in folder.rglob("*") if p.is_file()]
        for path in files:
            data = path.read_bytes()
            assert not any(part in data for part in parts), path
    folder = RunFolder(runs / "he")
    assert folder.result()["encrypted"]  # type: ignore[index]
    rows = folder.rounds()
    assert not any(row["skipped"] or row["quarantined"] for row in rows)
    assert [row["loss"] for row in rows] == [None] * 3
    assert rows[2]["client_accuracy"] > 0
    assert ckks.sealed(load_file(folder.path / ENCRYPTED))

    plain = play(KEYS, nodes=2)
    found, want = load_file(folder.path / MODEL), plain.arrays(2)
    assert max(np.abs(found[n] - want[n]).max() for n in want) < 1e-6
    (folder.path / MODEL).unlink()
    with pytest.raises(ConfigError, match=r"its model is encrypted; .*bouquet decrypt"):
        find(folder.path)
    (tmp_path / "other").write_bytes(ckks.new_key())
    with pytest.raises(WireError, match="another key's"):
        decrypt(folder.path, tmp_path / "other")
