"""Runs that follow each other on one federation of four gRPC nodes with TLS and kits: what one process gives.

Every run here is known from a test in one process; what is shown is that its bytes cross the wire unchanged.
In one with a frozen part one of the nodes has its file and the others are sent it once. In the last ones a
node is killed at each of the four stages of secure aggregation.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from server_app.engines.federation import Federation, federation
from server_app.extras.verify.receipts import COUNTED
from server_app.extras.verify.signatures import NAMED, SIGNED
from server_app.results.folder import ENCRYPTED, MODEL, RunFolder, to_json
from server_app.run.encryption import decrypt
from server_app.takeout.model_file import find
from task.config.read import read_recipe
from task.encryption import ckks
from task.errors import BouquetError, ConfigError, WireError
from task.numerics.arrays import state_of
from task.privacy import noise
from task.privacy.accounting import epsilon
from task.privacy.noise_ledger import FILE
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from task.storage.files import write_safetensors
from tests.privacy import test_central
from tests.privacy.test_ledger import end, lines
from tests.support import frozen_models
from tests.support.brought import imported_from
from tests.support.contents import contents
from tests.support.federation import in_one_process, play, read_by
from tests.support.grid import LocalGrid
from tests.support.killer import killer
from tests.support.transcripts import found, texts

pytestmark = pytest.mark.system
NODES = ("a", "b", "c", "d")
DEMO: dict[str, Any] = {
    **read_recipe("demo"), "partition": "iid", "num-server-rounds": 5, "progress": "none",
}  # fmt: skip
DIGITS: dict[str, Any] = {
    "dataset": "digits", "num-server-rounds": 2, "device": "cpu", "progress": "none",
    "fraction-evaluate": 0.0,
}  # fmt: skip
NARROW: dict[str, Any] = {
    **DIGITS, "model": "logistic", "num-clients": 8, "max-examples": 600, "secagg": True, "secagg-bits": 32,
    "max-update-norm": 10.0,
}  # fmt: skip
Z, DELTA = 2.0, 0.01
NOISE: dict[str, Any] = {
    **DIGITS, "model": "logistic", "num-clients": 8, "max-examples": 600, "secagg": True,
    "fraction-train": 1.0, "num-server-rounds": 1, "dp.noise": Z, "dp.clip": 0.3, "dp.delta": DELTA,
    "dp.noise-by": "nodes",
}  # fmt: skip
FROZEN: dict[str, Any] = {
    "algorithm": "scaffold", "model": "frozen_nets:Bert", "trainable": "*lora*,classifier*",
    "dataset": "digits",
    "num-clients": 6, "max-examples": 120, "num-server-rounds": 3, "device": "cpu", "progress": "none",
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "parts": {"algorithm": "fedavgm", "dropout-width": 0.5, "codec.up": "int8", "pixels": "centred"},
    "codes": {"algorithm": "fedadam", "codec.up": "stc", "codec.down": "stc", "codec.keep": 0.05},
    "fedprox": {
        "algorithm": "fedprox", "fedprox.mu": 0.1, "fedprox.adaptive": True, "stragglers": 0.5,
        "local-epochs": 2, "augment": "crops-flips", "augment-contrast": 0.5, "crop": 6,
        "pixels": "standardised",
    },
    "peers": {"algorithm": "d-psgd", "d-psgd.route": "directed-ring", "fraction-train": 0.8},
    "asynchronous": {"algorithm": "fedbuff", "fraction-train": 0.5},
    "edges": {"algorithm": "hierfavg", "hierfavg.kappa2": 2},
}  # fmt: skip

# Once the file beside the module is there, `d` is killed in round 2 at the stage that the file names.
IS_DUE = """
def is_due(stage, server_round):
    wanted = pathlib.Path(__file__).with_name("stage")
    return KIT.name == "d" and server_round == 2 and wanted.exists() and wanted.read_text() == stage
"""


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the module that every process of the federation imports first."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "sitecustomize.py").write_text(killer(IS_DUE))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of a model's frozen part, drawn with another seed; the model's code lies beside it."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.copy(frozen_models.__file__, folder / "frozen_nets.py")
    with pytest.MonkeyPatch.context() as patch, imported_from(folder):
        patch.setenv("BOUQUET_CODE", str(folder))
        patch.setattr("task.trust._named", {FROZEN["model"]})
        drawn = model_of(read_config(FROZEN | {"seed": 9}), (1, 8, 8), 10)
        write_safetensors(folder / "base.safetensors", state_of(drawn))
        yield folder / "base.safetensors"


@pytest.fixture(scope="module")
def fed(early: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The federation of all runs; its kits have a key for encrypted ones, and `a` has the frozen part."""
    nodes = {name: ["--partition", f"{i}/{len(NODES)}"] for i, name in enumerate(NODES)}
    nodes["a"] += ["--initial-model", str(base)]
    path = os.pathsep.join([str(early), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with federation(nodes, tmp_path_factory.mktemp("four") / "runs", ["frozen_nets"], he=True) as made:
            yield made


def deployed(fed: Federation, keys: dict[str, Any]) -> RunFolder:
    """Do the run on the federation; return the result folder."""
    fed.run(keys)
    return RunFolder(fed.kit.runs / keys["run-name"])


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("parts", "codes") else pytest.mark.full) for n in CASES],
)
def test_a_run_on_nodes_is_that_of_one_process_to_the_byte(
    name: str, fed: Federation, tmp_path: Path
) -> None:
    keys = read_by(DEMO | CASES[name] | {"run-name": name})
    there, here = deployed(fed, keys), RunFolder(in_one_process(keys, tmp_path))
    a, b = there.rounds(), here.rounds()
    assert len(a) == 6
    for key in ("round", "selected", "model_sha256", "accuracy", "train_loss", "metrics"):
        assert [row[key] for row in a] == [row[key] for row in b], key
    assert (there.path / MODEL).read_bytes() == (here.path / MODEL).read_bytes()
    assert [q["reason"] for row in a + b for q in row["quarantined"]] == []
    for sent in ([row["bytes_down"] for row in rows] for rows in (a, b)):
        assert name != "codes" or sent[2] < sent[1] / 1.5  # codes go on from the first round's model


def test_clients_privacy_is_clipped_folded_and_noised_alike(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "dp.noise": 0.4,
        "dp.clip": 1.0,
        "dp.delta": 0.01,
        "dp.clip-quantile": 0.4,
        "max-update-norm": 0.0,
    }
    keys = DEMO | more | {"algorithm": "scaffold", "num-server-rounds": 4, "fraction-evaluate": 0.0}
    keys = read_by(keys | {"run-name": "private"})
    there = deployed(fed, keys).path
    assert len(lines(there)) == 5
    secret = (there / "privacy/secret").read_bytes()
    monkeypatch.setattr(noise, "draw_secret", lambda: secret)
    here = in_one_process(keys, tmp_path)
    assert end(here) == end(there)
    assert lines(here) == lines(there)


def test_sums_of_32_bits_and_noise_by_the_nodes(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, noised = (
        deployed(fed, keys | {"run-name": name}) for name, keys in (("narrow", NARROW), ("noised", NOISE))
    )
    plain = play(NARROW, nodes=3)
    assert [row["model_sha256"] for row in narrow.rounds()] == [row["model_sha256"] for row in plain.rows]
    # Who takes part, the clip and epsilon are the simulation's.
    simulated = test_central.run(NOISE, test_central.Ledger(), nodes=4)
    for row, want in zip(noised.rounds(), simulated.rows, strict=True):
        for key in ("epsilon", "dp_clip", "answered", "quarantined"):
            assert row[key] == want[key], key
    result = noised.result()
    assert result is not None
    assert result["privacy"]["epsilon"] == epsilon([(1.0, Z)], DELTA)  # type: ignore[index]
    # Noise is each attempt's own. Without it the model would be the simulation's without it.
    monkeypatch.setattr(noise.Stream, "integers", lambda self, size, std: np.zeros(size, np.int64))
    silent = test_central.run(NOISE, test_central.Ledger(), nodes=4).arrays(1)
    got = load_file(noised.path / MODEL)
    off = np.concatenate([(got[n] - silent[n]).ravel() for n in silent])
    wide = Z * 0.3 * (4 / 2) ** 0.5 / 8  # z C sqrt(n / (t - c)) / M
    assert off.std() == pytest.approx(wide, rel=4 / (2 * off.size) ** 0.5)
    assert abs(off.mean()) < 4 * wide / off.size**0.5
    # Each node has written the one noised sum down, and no other.
    for name in NODES:
        path = fed.kit.path.parent / name / "cache" / "state" / FILE
        kept = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["round"], line["phase"], line["noise"]) for line in kept] == [(1, "train", Z)], name


def test_each_node_finds_its_uploads_in_the_transcript_by_its_kit(fed: Federation) -> None:
    keys = DIGITS | {"num-clients": 6, "max-examples": 300, "secagg": True, "transcript": "full"}
    folder, kits = deployed(fed, keys | {"run-name": "public"}).path, fed.kit.path.parent
    for name in NODES:
        made = found(folder, kits / name)
        assert texts(made) == []
        assert (made.counts[COUNTED], made.counts[NAMED], made.counts[SIGNED]) == (2, 8, 8)
        assert not any("certificate" in note for note in made.notes)
    path = folder / "transcript/rounds.jsonl"
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert {u["node"] for u in written[1]["phases"][0]["uploads"]} == set(NODES)
    # What `a` has sent stands there in the name of `b`, which has no receipt of it.
    for upload in written[2]["phases"][0]["uploads"]:
        upload["node"] = {"a": "b", "b": "a"}.get(upload["node"], upload["node"])
    path.write_bytes(b"".join(to_json(line) for line in written))
    got = texts(found(folder, kits / "b"))
    assert any(
        "round 2, node b: node b: expected keys that the node of that name has signed" in t for t in got
    )
    assert any("round 2, node b: there is an upload in its name" in t for t in got)
    shutil.rmtree(kits / "c" / "cache" / "state" / ".receipts")
    with pytest.raises(Exception, match="expected receipts of the run"):
        found(folder, kits / "c")


def test_encrypted_updates_end_in_the_plain_runs_model_at_a_link_without_a_key(
    fed: Federation, tmp_path: Path
) -> None:
    keys = DIGITS | {"num-clients": 6, "max-examples": 300, "fraction-evaluate": 1.0}
    folder, kits = deployed(fed, keys | {"he": True, "run-name": "he"}), fed.kit.path.parent
    key = (kits / "he" / ckks.KEY_FILE).read_bytes()
    # Nothing of the link, neither kit nor database, logs and results, has the key or a part of it.
    parts = [key[at : at + 64] for at in range(len(key) // 4, len(key) - 64, len(key) // 8)]
    for path, data in chain(contents(kits / "link"), contents(fed.kit.runs)):
        assert not any(part in data for part in parts), path
    assert folder.result()["encrypted"]  # type: ignore[index]
    rows = folder.rounds()
    assert not any(row["skipped"] or row["quarantined"] for row in rows)
    assert [row["loss"] for row in rows] == [None] * 3
    assert rows[2]["client_accuracy"] > 0
    assert ckks.sealed(load_file(folder.path / ENCRYPTED))
    plain, got = play(keys, nodes=2).arrays(2), load_file(folder.path / MODEL)
    assert max(np.abs(got[n] - plain[n]).max() for n in plain) < 1e-6
    (folder.path / MODEL).unlink()
    with pytest.raises(ConfigError, match=r"its model is encrypted; .*bouquet decrypt"):
        find(folder.path)
    (tmp_path / "other").write_bytes(ckks.new_key())
    with pytest.raises(WireError, match="another key's"):
        decrypt(folder.path, tmp_path / "other")


def test_a_frozen_part_is_sent_once_and_runs_end_in_one_model_in_one_process_resumed_and_on_nodes(
    fed: Federation, base: Path, tmp_path: Path
) -> None:
    runs, own = tmp_path / "runs", FROZEN | {"initial-model": str(base)}
    here = RunFolder(in_one_process(own | {"run-name": "here"}, runs))
    half = own | {"run-name": "half", "cache-dir": str(tmp_path / "cache")}
    in_one_process(half | {"num-server-rounds": 1}, runs)
    resumed = RunFolder(in_one_process(half | {"resume": True}, runs, nodes=3))
    shutil.copy(base, fed.kit.path)
    found = deployed(fed, FROZEN | {"initial-model": str(fed.kit.path / base.name), "run-name": "frozen"})
    rows, size = found.rounds(), found.config()["frozen"]["bytes"]
    for other in (resumed, found):
        assert [row["model_sha256"] for row in other.rounds()] == [r["model_sha256"] for r in here.rounds()]
    assert not any(row["quarantined"] for row in rows)
    sent = rows[1]["bytes_down"] - rows[2]["bytes_down"]
    assert 3 * size < sent < 3.1 * size
    assert rows[2]["bytes_down"] == rows[3]["bytes_down"] < size


SECURE: dict[str, Any] = {
    **DIGITS, "num-clients": 10, "num-server-rounds": 3, "max-examples": 600,
}  # fmt: skip


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(stage, marks=() if stage == "masked" else pytest.mark.full)
        for stage in ("keys", "shares", "masked", "unmask")
    ],
)
def test_a_run_goes_on_when_a_node_is_killed_at_a_stage(stage: str, fed: Federation, early: Path) -> None:
    if "d" not in [*fed.nodes, *fed.processes]:
        fed.start("d", "node", str(fed.kit.path.parent / "d"), "--partition", f"3/{len(NODES)}")
    (early / "stage").write_text(stage)
    folder = deployed(fed, {**SECURE, "secagg": True, "round-timeout": 8.0, "run-name": stage})
    (early / "stage").unlink()
    with pytest.raises(BouquetError, match=r"^d (ended|was killed)"):
        fed.check()
    fed.processes.pop("d", None)  # an earlier case has ended the other
    fed.nodes[:] = [name for name in fed.nodes if name != "d"]
    fed.check()  # all the others run
    rows = folder.rounds()
    out = {row["round"]: {q["client"] for q in row["quarantined"]} for row in rows}
    assert not any(row["skipped"] for row in rows)
    assert bool(out[2]) == (stage != "unmask")
    assert not out[1]

    class Silent(LocalGrid):
        """One client a node; those that were out of a round's sum do not answer."""

        def _deliver(self, message: Message) -> Message | None:
            config = message.content.config_records.get("config", {})
            mine = set(config.get("clients", ())) & out.get(int(message.metadata.group_id), set())
            return None if message.metadata.message_type == "train" and mine else super()._deliver(message)

    plain = play({**SECURE, "round-timeout": 2.0}, nodes=10, grid_type=Silent)
    assert [row["model_sha256"] for row in rows] == [row["model_sha256"] for row in plain.rows]
    lines = [json.loads(line) for line in (folder.path / "clients.jsonl").read_text().splitlines()]
    assert {line["examples"] for line in lines if line["phase"] == "train"} == {None}
