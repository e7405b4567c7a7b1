"""Federated dropout over whole federations: against the reference, over nodes, resumed, attacked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.answer import answer
from client_app.data.node import open_node
from strategies import FedAvg
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.errors import ConfigError, WireError
from task.models.family import ModelFamily
from task.numerics import seeds
from task.numerics.arrays import Arrays, sha256
from task.resolve.read import read_config
from task.resolve.validate import check_names
from task.wire import messages as wire
from tests.reference import dropout, mlp
from tests.support.federation import (
    SIZES,
    Keep,
    Played,
    batches_of,
    owners_config,
    play,
    read_by,
    write_owners,
)

HIDDEN = 64  # units of the model "mlp"


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


def config(owners: Path, **keys: Any) -> dict[str, Any]:
    return owners_config(owners, **({"model": "mlp", "dropout_width": 0.5} | keys))


def test_it_is_the_reference(tmp_path: Path) -> None:
    data = write_owners(tmp_path / "owners.npz")
    keys = config(tmp_path / "owners.npz", fraction_train=0.6, batch_size=5, local_epochs=2)
    played = play(keys)
    names = sorted(data)

    def kept(t: int, k: int) -> list[int]:
        rng = seeds.rng_for(keys["seed"], "dropout", t, names[k])
        return sorted(rng.choice(HIDDEN, HIDDEN // 2, replace=False).tolist())

    trace = dropout.run(
        {k: data[name] for k, name in enumerate(names)},
        played.arrays(0),
        cohorts=[[names.index(c) for c in cohort] for cohort in played.selected()],
        lr=0.1,
        batches=batches_of(keys["seed"], names, SIZES, 5),
        epochs=2,
        kept=kept,
    )
    for t, want in enumerate(trace.models):
        got = played.arrays(t)
        assert mlp.norm(mlp.plus(got, want, -1.0)) < 1e-6 * mlp.norm(want), t
    assert mlp.norm(mlp.plus(trace.models[-1], trace.models[0], -1.0)) > 0.1


@pytest.mark.parametrize(
    "keys", [{}, {"model": "mlp-bn"}, {"algorithm": "fedadam"}, {"selection": "cycle"}], ids=str
)
def test_the_spread_over_nodes_and_a_resume_change_no_bit(keys: dict[str, Any], owners: Path) -> None:
    played = [play(config(owners, **keys), nodes=nodes, seed=nodes) for nodes in (1, 3, 5)]
    hashes = [[row["model_sha256"] for row in p.rows] for p in played]
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(set(hashes[0])) == 5
    rest = play(config(owners, **keys), nodes=2, journal=Keep(played[0].keep.snapshots[2]))
    assert [row["model_sha256"] for row in rest.rows] == hashes[0][3:]


def test_a_stack_and_clients_one_by_one_agree(owners: Path) -> None:
    together, alone = (play(config(owners, stack=stack)).arrays(4) for stack in (0, 1))
    for name, a in together.items():
        np.testing.assert_allclose(a, alone[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "keys", [{}, {"model": "mlp-bn"}, {"algorithm": "fedprox", "fedprox__mu": 0.5}], ids=str
)
def test_parts_that_are_the_whole_are_the_algorithm_itself(keys: dict[str, Any], owners: Path) -> None:
    plain = play(config(owners, dropout_width=1.0, **keys))
    all_whole = {"dropout_width": 1.0, "width__levels": "1,0.5", "width__shares": "1,0"}
    parted = play(config(owners, **all_whole, **keys))
    assert parted.strategy.entry.parted
    assert sha256(parted.arrays(4)) == sha256(plain.arrays(4))


def sizes(played: Played) -> tuple[int, int]:
    row = played.rows[1]
    return row["bytes_down"], row["bytes_up"]


def test_what_travels_is_small(owners: Path) -> None:
    """Of the model's 4 bytes each: inputs 4 x 64, biases 64, outputs 64 x 3 and their 3 biases."""
    whole, part = (play(config(owners, dropout_width=w), nodes=5) for w in (1.0, 0.25))
    (whole_down, whole_up), (part_down, part_up) = sizes(whole), sizes(part)
    saved = 5 * 4 * 48 * (4 + 1 + 3)  # five clients, 48 of 64 units
    assert whole_up - part_up == saved
    assert saved - 5 * 200 < whole_down - part_down < saved  # names of records
    for message in part.messages():
        assert wire.ARRAYS not in message.content.array_records
        (client,) = wire.clients_of(message)
        assert message.content.array_records[f"arrays.{client}"]["1.weight"].shape == (16, 4)
        assert "population" not in message.content.config_records["config"]
    seconds = [play(config(owners, dropout_width=w, devices__spread=0.0)).rows[1] for w in (1.0, 0.25)]
    assert seconds[0]["simulated_seconds"] - seconds[1]["simulated_seconds"] == pytest.approx(
        2 * 4 * 48 * 8 / (1.4 * 125_000)
    )


# ------------------------------------------------------------------------------------------- codecs


@pytest.mark.parametrize("codec", ["fp16", "int8", "eden", "rand-k"])
def test_a_code_of_a_part_is_relative_to_what_its_client_received(codec: str, owners: Path) -> None:
    keys = config(
        owners, codec__up=codec, codec__keep=0.5, codec__bits=4, codec__block=64, max_update_norm=50.0
    )
    keys = read_by(keys)
    played = [play(keys, nodes=nodes, seed=nodes) for nodes in (1, 3, 5)]
    assert [p.keep.lines for p in played] == [[], [], []]
    hashes = [[row["model_sha256"] for row in p.rows] for p in played]
    assert hashes[0] == hashes[1] == hashes[2]
    raw = play(config(owners), nodes=5)
    assert played[2].rows[1]["bytes_up"] < raw.rows[1]["bytes_up"]
    moved = mlp.norm(mlp.plus(raw.arrays(1), raw.arrays(0), -1.0))
    # codes of an update are near it; codes of the model would be off by the model's own size
    off = mlp.norm(mlp.plus(played[0].arrays(1), raw.arrays(1), -1.0))
    assert off < {"fp16": 1e-3, "int8": 0.05, "eden": 0.5, "rand-k": 1.5}[codec] * moved


# ------------------------------------------------------------------------------------------ hostile


Harm = Callable[[Arrays], None]


def of_the_whole_model(arrays: Arrays) -> None:
    arrays["1.weight"] = np.zeros((HIDDEN, 4), np.float32)


def huge(arrays: Arrays) -> None:
    arrays["1.weight"] = np.zeros((1 << 20, 4), np.float32)


def not_numbers(arrays: Arrays) -> None:
    arrays["3.bias"] = np.full(3, np.nan, np.float32)


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (of_the_whole_model, r"1.weight': expected float32\[32, 4\]; got float32\[64, 4\]"),
        (huge, "at most .* bytes"),
        (not_numbers, "finite number"),
    ],
)
@pytest.mark.parametrize("nodes", [2, 5])
def test_a_reply_of_another_form_is_refused_by_name(harm: Harm, line: str, nodes: int, owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        records = reply.content.array_records if node == 0 else ()
        for name in [n for n in records if n.partition(".")[0] == wire.ARRAYS]:
            arrays = wire.read_arrays(records[name])
            harm(arrays)
            reply.content[name] = wire.pack_arrays(arrays)
        return reply

    played = play(config(owners, num_server_rounds=1), nodes=nodes, tamper=tamper)
    refused = {q.client for q in played.keep.lines}
    assert refused
    assert played.rows[1]["answered"] == len(SIZES) - len(refused)
    assert all(re.search(line, str(q)) for q in played.keep.lines), played.keep.lines


def test_an_attack_is_measured_from_what_its_client_received(owners: Path) -> None:
    """Everybody sends w^t - Delta, so that the mean moves the other way by as much."""
    honest = play(config(owners, num_server_rounds=1))
    flipped = play(config(owners, num_server_rounds=1, attack__kind="sign-flip", attack__fraction=1.0))
    start, there, back = honest.arrays(0), honest.arrays(1), flipped.arrays(1)
    for name in start:
        np.testing.assert_allclose(back[name] - start[name], start[name] - there[name], atol=1e-6)
    assert np.abs(there["1.weight"] - start["1.weight"]).max() > 1e-3


@pytest.mark.parametrize("nodes", [1, 5])
def test_a_bound_on_updates_is_relative_to_the_part(nodes: int, owners: Path) -> None:
    """A part less the whole model, or less another part, would be far from it."""
    fine = play(config(owners, num_server_rounds=1, max_update_norm=5.0), nodes=nodes)
    assert fine.keep.lines == []
    none = play(config(owners, num_server_rounds=1, max_update_norm=1e-6), nodes=nodes)
    assert {q.client for q in none.keep.lines} == set(SIZES)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "keys",
    [
        {"ala": True},
        {"codec__up": "top-k"},
        {"codec__down": "int8"},
        {"structured__kind": "mask"},
        {"selection": "oort"},
        {"selection": "power-of-choice"},
        {"attack__kind": "little-is-enough"},
    ],
    ids=str,
)
def test_what_needs_whole_models_is_refused(keys: dict[str, Any], owners: Path) -> None:
    with pytest.raises(ConfigError, match='"dropout-width": expected 1 with'):
        check_names(read_config(config(owners, **keys)))


def test_a_model_without_hidden_layers_is_refused_before_round_1(owners: Path) -> None:
    with pytest.raises(ConfigError, match='"dropout-width": expected a model with hidden layers'):
        play(config(owners, model="logistic"))


def test_a_strategy_without_the_family_says_what_is_missing(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any) -> ModelFamily | None:
        return None

    monkeypatch.setattr("tests.support.federation.family_of", none)
    with pytest.raises(ConfigError, match=r"expected a family of models, .*mixed_models\.set_family"):
        play(config(owners))


def test_another_loop_cannot_drive_it() -> None:
    strategy = FedAvg(Config(train=TrainConfig(dropout_width=0.5)))
    assert "client half" in strategy.registry.membership.why_no_stock_clients


@pytest.mark.parametrize("harm", ["no part", "no names"])
def test_a_node_refuses_an_order_without_a_part_for_each_client(harm: str, owners: Path) -> None:
    keys = config(owners, num_server_rounds=1)
    (message,) = play(keys, nodes=1).messages()
    told = message.content.config_records["config"]
    if harm == "no part":
        told["arrays:anna"] = []
    else:
        del told["clients"], told["epochs"]
    with pytest.raises(WireError, match=r"expected 'arrays' for each client, .*dropout-width"):
        answer(open_node(read_config(keys), {}), message.content)
