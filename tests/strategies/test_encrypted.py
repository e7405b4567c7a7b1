"""Runs under homomorphic encryption: the plain runs' models, and a server that sees ciphertexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from client_app.app import make_app
from strategies import strategy_of
from task.catalogue.algorithms import ALGORITHMS
from task.config.paths import state_root
from task.config.read import as_run_config
from task.encryption import ckks
from task.errors import ConfigError
from task.features import CHOICES
from task.numerics.arrays import state_of
from task.resolve.read import read_config
from task.resolve.run_model import model_of, parts_of
from task.wire import messages as wire
from tests.support.federation import Keep, Played, owners_config, play, write_owners
from tests.support.grid import LocalGrid
from tests.support.shapes import by_shape
from tests.test_contract import config

HE = next(c for c in CHOICES if c.key == "he")
ADMITTED = [name for name, entry in ALGORITHMS.items() if not HE.why_not(entry)]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


def opened(played: Played, server_round: int) -> dict[str, np.ndarray]:
    key = ckks.read_key(state_root(played.strategy.config) / ckks.KEY_FILE)
    return key.open(played.arrays(server_round))


@pytest.mark.parametrize("name", by_shape((n,) for n in ADMITTED))
def test_the_models_are_those_of_the_plain_run(name: str, owners: Path) -> None:
    keys = config(owners, name, num_server_rounds=2, local_test_fraction=0.3, fraction_evaluate=1.0)
    plain, encrypted = play(keys, nodes=3), play(keys | {"he": True}, nodes=3)
    assert not any(row["quarantined"] or row["skipped"] for row in encrypted.rows)
    found, want = opened(encrypted, 2), plain.arrays(2)
    assert found.keys() == want.keys()
    assert {n: a.dtype for n, a in found.items()} == {n: a.dtype for n, a in want.items()}
    assert max(np.abs(found[n] - want[n]).max() for n in want) < 1e-6
    assert encrypted.rows[2]["client_loss"] == pytest.approx(plain.rows[2]["client_loss"], abs=1e-5)


def test_the_algorithms_that_encrypt_are_those_whose_server_takes_a_mean() -> None:
    assert {"fedavg", "fedprox", "fedper", "fedbn", "ditto", "moon"} < set(ADMITTED)
    others = ("fedavgm", "fedadam", "scaffold", "fednova", "feddyn", "median", "krum", "fsvrg", "centralised")
    assert not {*others, "local-only"} & {*ADMITTED}


def test_only_the_first_model_is_in_clear_on_the_wire(owners: Path) -> None:
    class Watching(LocalGrid):
        up: list[tuple[str, Any]] = []  # noqa: RUF012

        def _deliver(self, message: Message) -> Message | None:
            reply = super()._deliver(message)
            if reply is not None and message.metadata.message_type in ("train", "evaluate"):
                Watching.up.append((message.metadata.message_type, reply.content))
            return reply

    keys = owners_config(owners, he=True, num_server_rounds=3, fraction_evaluate=1.0, local_test_fraction=0.3)
    played = play(keys, nodes=5, grid_type=Watching)
    assert [len(m.content["config"]["clients"]) for m in played.messages()] == [1] * 15  # type: ignore
    for kind, content in Watching.up:
        records = {k: set(r) for k, r in content.array_records.items()}
        assert records == ({"arrays.ciphertext": {"ciphertext"}} if kind == "train" else {})
    for message in (*played.messages(), *played.messages("evaluate")):
        first = message.metadata.message_type == "train" and message.metadata.group_id == "1"
        in_clear = {"1.weight", "1.bias"} if first else {"ciphertext", "form"}
        assert set(message.content.array_records["arrays"]) == in_clear
    assert all(ckks.sealed(played.arrays(t)) for t in (1, 2, 3))
    twice = play(keys, nodes=5)
    assert (
        twice.rows[1]["model_sha256"] != played.rows[1]["model_sha256"]
    )  # fresh randomness in each ciphertext


def test_a_lost_answer_and_an_early_end_leave_the_mean_of_the_others(owners: Path) -> None:
    keys = owners_config(owners, num_server_rounds=2, round_timeout=2.0, fraction_evaluate=0.4,
                         local_test_fraction=0.3)  # fmt: skip

    class Losing(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            reply = super()._deliver(message)
            kind, t = message.metadata.message_type, message.metadata.group_id
            return None if (self.index[message.metadata.dst_node_id], kind, t) == (1, "train", "2") else reply

    plain, encrypted = (
        play(keys, nodes=3, grid_type=Losing),
        play(keys | {"he": True}, nodes=3, grid_type=Losing),
    )
    assert 0 < encrypted.rows[2]["answered"] == plain.rows[2]["answered"] < 5
    found, want = opened(encrypted, 2), plain.arrays(2)
    assert max(np.abs(found[n] - want[n]).max() for n in want) < 1e-6


def test_a_resumed_run_goes_on_under_its_key(owners: Path) -> None:
    keys = owners_config(owners, he=True, num_server_rounds=3, fraction_evaluate=1.0, local_test_fraction=0.3)
    whole = play(keys, nodes=2)
    resumed = play(keys, nodes=3, journal=Keep(whole.keep.snapshots[1]))
    key = ckks.read_key(state_root(resumed.strategy.config) / ckks.KEY_FILE)
    taken = resumed.keep.snapshots[-1].model
    want = opened(whole, 3)
    found = key.open(taken)
    assert max(np.abs(found[n] - want[n]).max() for n in want) < 1e-6


def test_a_number_beyond_the_range_is_named_with_its_client_and_round(owners: Path) -> None:
    keys = owners_config(owners, he=True, num_server_rounds=1, fraction_evaluate=1.0, local_test_fraction=0.3)
    attack = {"attack.kind": "scale", "attack.fraction": 0.2, "attack.scale": 1e8}
    played = play(keys | attack, nodes=2)
    (bad,) = played.keep.lines
    assert str(bad).startswith(f"round 1: client {bad.client}: field '1.")
    assert "at most 4096" in bad.expected
    assert played.rows[1]["answered"] == 4


def test_a_model_with_counters_is_refused() -> None:
    run = read_config({"he": True, "model": "cnn-bn"})
    with pytest.raises(ConfigError, match=r'"he": the model shares .*num_batches_tracked'):
        parts_of(model_of(run, (1, 8, 8), 10), run)


def nodes_with(folder: Path, keys: list[str]) -> list[dict[str, Any]]:
    """Return node configs of nodes with data of their own, each with one of the key files."""
    rng, made = np.random.default_rng(2), []
    for i, key in enumerate(keys):
        np.savez(
            folder / f"ward-{i}.npz", x=rng.normal(size=(40, 4)).astype(np.float32), y=rng.integers(0, 3, 40)
        )
        own: dict[str, Any] = {"client-name": f"ward-{i}", "data-path": str(folder / f"ward-{i}.npz")}
        made.append({**own, ckks.NODE_KEY: key, "keep-models": str(folder / f"kept-{i}")})
    return made


def run_on(nodes: list[dict[str, Any]], **more: Any) -> tuple[Keep, Any]:
    given: dict[str, Any] = {
        "dataset": "npz", "model": "logistic", "num-classes": 3, "num-server-rounds": 2, "device": "cpu",
        "he": True, "run-name": "trial", "fraction-evaluate": 1.0, "local-test-fraction": 0.25,
    }  # fmt: skip
    run = read_config(given | more)
    strategy = strategy_of(run.algorithm)(run)
    grid = LocalGrid(make_app(), nodes, as_run_config(run))
    context = ckks.id_of(Path(nodes[0][ckks.NODE_KEY]).read_bytes())
    strategy.registry.membership.expect_code({ckks.KEY_FILE: context} if run.server.he else {})
    model, keep = model_of(run, (4,), 3), Keep()
    strategy.start(
        grid, wire.pack_arrays(state_of(model)), num_rounds=2, timeout=20, journal=keep,
        trainable=parts_of(model, run).trainable,
    )  # fmt: skip
    return keep, strategy


def test_nodes_hold_the_model_and_one_with_another_key_is_left_out(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for path in (mine, other):
        path.write_bytes(ckks.new_key())
    nodes = nodes_with(tmp_path, [str(mine)] * 3 + [str(other), ""])
    keep, strategy = run_on(nodes)
    assert keep.rows[2]["answered"] == 3
    assert not keep.lines
    reasons = sorted(row["reason"] for row in strategy.registry.left_out())
    assert "encrypts with a different key than the run's" in reasons[1] + reasons[0]
    assert any("expected a key on this node, he.context in its kit" in text for text in reasons)
    want = ckks.read_key(mine).open(keep.snapshots[2].model)
    kept = [load_file(tmp_path / f"kept-{i}" / "trial.safetensors") for i in range(3)]
    for arrays in kept:  # of the evaluation after the last round
        assert all((arrays[n] == want[n]).all() for n in want)
    refused, _ = run_on([{**nodes[0], ckks.REQUIRED: True}], he=False)
    assert refused.lines
    assert all("policy: he = true; expected a run with" in line.got for line in refused.lines)


def test_the_clients_measure_what_the_server_cannot_open() -> None:
    with pytest.raises(ConfigError, match='"evaluate-every": nothing in this run reads it'):
        read_config({"he": True, "evaluate-every": 5})
    assert read_config({"he": True}).server.fraction_evaluate == 1.0
