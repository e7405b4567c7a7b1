"""Clients of several widths over whole federations: against the reference, over nodes, resumed, attacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.data.node import open_node
from client_app.data.registration import registration_of
from task.errors import ConfigError, WireError
from task.numerics import seeds
from task.numerics.arrays import sha256
from task.resolve.read import read_config
from task.resolve.validate import check_names
from task.wire import messages as wire
from task.wire.registration import read_registration, registration_content
from tests.reference import dropout, mlp
from tests.support.federation import SIZES, Keep, batches_of, owners_config, play, read_by, write_owners
from tests.support.nodes import own_nodes

HIDDEN = 64  # units of the model "mlp"
LEVELS = (1.0, 0.5, 0.22)  # of 64 units: 64, 32 and, rounded up, 15
SCHEMES = ("nested", "rolling", "random")


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


def config(owners: Path, **keys: Any) -> dict[str, Any]:
    mixed = {"model": "mlp", "width__levels": "1,0.5,0.22", "width__shares": "0.4,0.3,0.3"}
    return owners_config(owners, **(mixed | keys))


def dealt(name: str, seed: int = 3) -> float:
    """Return a client's width: 40 %, 30 % and 30 % of the draws."""
    draw = seeds.rng_for(seed, "widths", 0, name).random()
    return LEVELS[0 if draw < 0.4 else 1 if draw < 0.7 else 2]


def test_the_owners_have_all_levels() -> None:
    assert {dealt(name) for name in SIZES} == set(LEVELS)


@pytest.mark.parametrize("scheme", ["nested", "rolling"])
def test_it_is_the_reference(scheme: str, tmp_path: Path) -> None:
    data = write_owners(tmp_path / "owners.npz")
    keys = config(tmp_path / "owners.npz", fraction_train=0.6, batch_size=5, width__scheme=scheme)
    played = play(keys)
    names = sorted(data)

    def kept(t: int, k: int) -> list[int]:
        count = {1.0: 64, 0.5: 32, 0.22: 15}[dealt(names[k])]
        start = t - 1 if scheme == "rolling" else 0
        return [(start + i) % HIDDEN for i in range(count)]

    trace = dropout.run(
        {k: data[name] for k, name in enumerate(names)},
        played.arrays(0),
        cohorts=[[names.index(c) for c in cohort] for cohort in played.selected()],
        lr=0.1,
        batches=batches_of(keys["seed"], names, SIZES, 5),
        epochs=1,
        kept=kept,
    )
    for t, want in enumerate(trace.models):
        got = played.arrays(t)
        assert mlp.norm(mlp.plus(got, want, -1.0)) < 1e-6 * mlp.norm(want), t
    assert mlp.norm(mlp.plus(trace.models[-1], trace.models[0], -1.0)) > 0.1


@pytest.mark.parametrize(
    "keys",
    [
        *({"width__scheme": scheme} for scheme in SCHEMES),
        {"model": "mlp-bn", "algorithm": "fedadam"},
        {"codec__up": "int8", "width__scheme": "rolling"},
    ],
    ids=str,
)
def test_the_spread_over_nodes_and_a_resume_change_no_bit(keys: dict[str, Any], owners: Path) -> None:
    given = read_by(config(owners, **keys))
    played = [play(given, nodes=nodes, seed=nodes) for nodes in (1, 3, 10)]
    assert [p.keep.lines for p in played] == [[], [], []]
    hashes = [[row["model_sha256"] for row in p.rows] for p in played]
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(set(hashes[0])) == 5
    seconds = [[row["simulated_seconds"] for row in p.rows[1:]] for p in played]
    assert seconds[0] == seconds[1] == seconds[2]
    rest = play(given, nodes=2, journal=Keep(played[0].keep.snapshots[2]))
    assert [row["model_sha256"] for row in rest.rows] == hashes[0][3:]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_where_all_have_the_whole_it_is_the_run_without(scheme: str, owners: Path) -> None:
    plain = play(owners_config(owners, model="mlp"))
    keys = {"width__levels": "1,0.5", "width__shares": "1,0", "width__scheme": scheme}
    whole = play(owners_config(owners, model="mlp", **keys))
    assert whole.strategy.entry.parted
    assert sha256(whole.arrays(4)) == sha256(plain.arrays(4))


def test_one_random_level_is_federated_dropout(owners: Path) -> None:
    old = play(owners_config(owners, model="mlp", dropout_width=0.5))
    new = play(owners_config(owners, model="mlp", width__levels="0.5", width__scheme="random"))
    assert [row["model_sha256"] for row in old.rows] == [row["model_sha256"] for row in new.rows]


def test_a_unit_that_nobody_has_stays_as_it_was(owners: Path) -> None:
    played = play(config(owners, width__levels="0.5,0.25", width__shares="0.5,0.5"))
    before, after = played.arrays(0), played.arrays(4)
    assert (after["1.weight"][32:] == before["1.weight"][32:]).all()
    assert (after["3.weight"][:, 32:] == before["3.weight"][:, 32:]).all()
    assert (after["1.weight"][:32] != before["1.weight"][:32]).any(axis=1).all()


def test_each_client_gets_and_sends_its_size(owners: Path) -> None:
    played = play(config(owners, num_server_rounds=1), nodes=1)
    (message,) = played.messages()
    rows = {c: message.content.array_records[f"arrays.{c}"]["1.weight"].shape[0] for c in SIZES}
    assert rows == {c: {1.0: 64, 0.5: 32, 0.22: 15}[dealt(c)] for c in SIZES}


# ------------------------------------------------------------------------- what a client's node says


def test_a_client_has_the_width_that_its_node_says(tmp_path: Path) -> None:
    said = {"anna": 0.22, "ben": 1.0, "cleo": 0.5, "dora": 0.22}
    assert {n: dealt(n) for n in said} != said
    grid = own_nodes(tmp_path, "width", said)
    played = play(config(tmp_path / "owners.npz", num_server_rounds=2, num_classes=3), grid_type=grid)
    assert [row["quarantined"] for row in played.rows[1:]] == [[], []]
    rows = {}
    for message in played.messages():
        (client,) = wire.clients_of(message)
        rows[client] = message.content.array_records[f"arrays.{client}"]["1.weight"].shape[0]
    assert rows == {n: {1.0: 64, 0.5: 32, 0.22: 15}[said.get(n, dealt(n))] for n in SIZES}


def test_a_width_that_the_run_does_not_have_ends_it_before_round_1(tmp_path: Path) -> None:
    grid = own_nodes(tmp_path, "width", dict.fromkeys(SIZES, 0.3))
    expected = r'"width": expected one of the run\'s levels, 1, 0.5, 0.22 .*"width.levels"\); got 0.3'
    with pytest.raises(ConfigError, match=expected):
        play(config(tmp_path / "owners.npz", num_classes=3), grid_type=grid)
    with pytest.raises(ConfigError, match=r"levels, 1 .*got 0.3"):  # a run whose models are all whole
        play(owners_config(tmp_path / "owners.npz", model="mlp", num_classes=3), grid_type=grid)


def test_a_node_without_data_of_its_own_has_no_width(owners: Path) -> None:
    with pytest.raises(ConfigError, match="expected width with data of the node's own"):
        open_node(read_config(config(owners)), {"width": 0.5})


@pytest.mark.parametrize("width", [-0.5, 1.5, float("nan"), "half"])
def test_a_registration_of_no_width_is_refused(width: Any, tmp_path: Path) -> None:
    own_nodes(tmp_path, "width", {})
    keys = config(tmp_path / "owners.npz", num_classes=3)
    node = open_node(read_config(keys), {"client-name": "anna", "data-path": str(tmp_path / "anna.npz")})
    content = registration_content(registration_of(node))
    assert read_registration(content).width == 0
    content.config_records["roll_call"]["width"] = width
    with pytest.raises(WireError, match="width from 0 to 1"):
        read_registration(content)


# ------------------------------------------------------------------------------------------ hostile


@pytest.mark.parametrize("nodes", [1, 5])
def test_a_reply_of_another_level_is_refused_by_name(nodes: int, owners: Path) -> None:
    narrow = next(n for n in SIZES if dealt(n) == 0.22)

    def tamper(node: int, reply: Message) -> Message:
        records = reply.content.array_records
        name = f"arrays.{narrow}" if nodes == 1 else "arrays"
        if name in records and len(records[name]["1.bias"].numpy()) == 15:
            arrays = wire.read_arrays(records[name])
            wider = {n: np.zeros(s, np.float32) for n, s in (("1.weight", (32, 4)), ("1.bias", (32,)))}
            arrays |= wider | {"3.weight": np.zeros((3, 32), np.float32)}
            reply.content[name] = wire.pack_arrays(arrays)
        return reply

    played = play(config(owners, num_server_rounds=1), nodes=nodes, tamper=tamper)
    refused = {q.client for q in played.keep.lines}
    assert narrow in refused
    assert all("float32[15, 4]; got float32[32, 4]" in str(q) for q in played.keep.lines)


# ------------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"width__levels": "0.5,1"}, '"width.levels": expected .* the widest first; got'),
        ({"width__levels": "1,1"}, "each once"),
        ({"width__levels": "1,half"}, '"width.levels"'),
        ({"width__levels": "1.5,1"}, "at most 1"),
        ({"width__shares": "0.5,0.5"}, '"width.shares": expected 3 shares'),
        ({"width__shares": "0.5,0.6,-0.1"}, '"width.shares"'),
        ({"dropout_width": 0.5}, '"dropout-width": nothing in this run reads it'),
        ({"width__levels": "", "width__shares": "", "width__scheme": "rolling"}, '"width.scheme": nothing'),
        ({"ala": True}, '"width.levels": expected 1 with'),
        ({"codec__down": "int8"}, '"width.levels": expected 1 with'),
        ({"algorithm": "median"}, '"width.levels"'),
    ],
    ids=str,
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], why: str, owners: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        check_names(read_config(config(owners, **keys)))


def test_a_model_without_hidden_layers_is_refused_before_round_1(owners: Path) -> None:
    with pytest.raises(ConfigError, match=r'"width\.levels": expected a model with hidden layers'):
        play(config(owners, model="logistic"))
