"""A run of three real nodes under secure aggregation, checked by its transcript and from each node's kit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from server_app.engines.federation import federation
from server_app.results.folder import to_json
from server_app.verify.receipts import COUNTED
from server_app.verify.signatures import NAMED, SIGNED
from tests.support.transcripts import found, texts

pytestmark = pytest.mark.system
KEYS = {
    "dataset": "digits", "num-clients": 6, "num-server-rounds": 2, "max-examples": 300, "device": "cpu",
    "progress": "none", "secagg": True, "transcript": "full", "run-name": "it",
}  # fmt: skip


def test_each_node_finds_its_uploads_in_the_transcript_by_its_kit(tmp_path: Path) -> None:
    names, runs = ("a", "b", "c"), tmp_path / "runs"
    with federation({n: ["--partition", f"{i}/3"] for i, n in enumerate(names)}, runs) as fed:
        fed.run(KEYS)
        kits = fed.kit.path.parent
        for name in names:
            made = found(runs / "it", kits / name)
            assert texts(made) == []
            assert (made.counts[COUNTED], made.counts[NAMED], made.counts[SIGNED]) == (2, 6, 6)
            assert not any("certificate" in note for note in made.notes)
        path = runs / "it/transcript/rounds.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {u["node"] for u in lines[1]["phases"][0]["uploads"]} == set(names)
        # What `a` has sent stands there in the name of `b`, which has no receipt of it.
        for upload in lines[2]["phases"][0]["uploads"]:
            upload["node"] = {"a": "b", "b": "a"}.get(upload["node"], upload["node"])
        path.write_bytes(b"".join(to_json(line) for line in lines))
        got = texts(found(runs / "it", kits / "b"))
        assert any(
            "round 2, node b: node b: expected keys that the node of that name has signed" in t for t in got
        )
        assert any("round 2, node b: there is an upload in its name" in t for t in got)
        shutil.rmtree(kits / "c" / "cache" / "state" / ".receipts")
        with pytest.raises(Exception, match="expected receipts of the run"):
            found(runs / "it", kits / "c")
