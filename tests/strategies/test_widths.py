"""Clients with parts of the model, of several widths or drawn each round: against the reference, attacked."""

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
from client_app.data.registration import registration_of
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
from task.wire.registration import read_registration, registration_content
from tests.reference import dropout, mlp
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import (
    SIZES,
    Played,
    batches_of,
    owners_config,
    play,
    read_by,
    write_owners,
)
from tests.support.nodes import own_nodes

HIDDEN = 64  # units of the model "mlp"
LEVELS = {1.0: 64, 0.5: 32, 0.22: 15}  # and the units that they have, rounded up
SCHEMES = ("nested", "rolling", "random")


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


def config(owners: Path, **keys: Any) -> dict[str, Any]:
    """Return a run of clients of three widths."""
    mixed = {"model": "mlp", "width__levels": "1,0.5,0.22", "width__shares": "0.4,0.3,0.3"}
    return owners_config(owners, **(mixed | keys))


def dropping(owners: Path, **keys: Any) -> dict[str, Any]:
    """Return a run of federated dropout."""
    return owners_config(owners, **({"model": "mlp", "dropout_width": 0.5} | keys))


def dealt(name: str, seed: int = 3) -> float:
    """Return a client's width: 40 %, 30 % and 30 % of the draws."""
    draw = seeds.rng_for(seed, "widths", 0, name).random()
    return [*LEVELS][0 if draw < 0.4 else 1 if draw < 0.7 else 2]


def hashes(played: Played) -> list[str]:
    return [row["model_sha256"] for row in played.rows]


def test_the_owners_have_all_levels() -> None:
    assert {dealt(name) for name in SIZES} == {*LEVELS}


@pytest.mark.parametrize("scheme", ["nested", "rolling", "dropout"])
def test_it_is_the_reference(scheme: str, tmp_path: Path) -> None:
    data = write_owners(tmp_path / "owners.npz")
    more: dict[str, Any] = {"fraction_train": 0.6, "batch_size": 5, "local_epochs": 2}
    made = dropping if scheme == "dropout" else config
    keys = made(tmp_path / "owners.npz", **more, **({} if scheme == "dropout" else {"width__scheme": scheme}))
    played, names = play(keys), sorted(data)

    def kept(t: int, k: int) -> list[int]:
        if scheme == "dropout":
            rng = seeds.rng_for(keys["seed"], "dropout", t, names[k])
            return sorted(rng.choice(HIDDEN, HIDDEN // 2, replace=False).tolist())
        start = t - 1 if scheme == "rolling" else 0
        return [(start + i) % HIDDEN for i in range(LEVELS[dealt(names[k])])]

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
    "keys",
    [
        *({"width__scheme": scheme} for scheme in SCHEMES),
        {"model": "mlp-bn", "algorithm": "fedadam"},
        {"codec__up": "int8", "width__scheme": "rolling"},
        {"dropout_width": 0.5, "selection": "cycle", "width__levels": "", "width__shares": ""},
    ],
    ids=str,
)
def test_the_spread_over_nodes_and_a_resume_change_no_bit(keys: dict[str, Any], owners: Path) -> None:
    given = read_by(config(owners, **keys))
    whole = the_same_on_any_nodes_and_resumed(given, nodes=(1, 10))
    assert len(set(hashes(whole))) == 5


@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        ("nested", {}),
        ("rolling", {"model": "mlp-bn"}),
        ("random", {"algorithm": "fedprox", "fedprox__mu": 0.5}),
    ],
)
def test_where_all_have_the_whole_it_is_the_run_without(
    scheme: str, more: dict[str, Any], owners: Path
) -> None:
    keys = {"width__levels": "1,0.5", "width__shares": "1,0", "width__scheme": scheme}
    plain, whole = (play(owners_config(owners, **{"model": "mlp"} | more | k)) for k in ({}, keys))
    assert whole.strategy.entry.parted
    assert sha256(whole.arrays(4)) == sha256(plain.arrays(4))


def test_one_random_level_is_federated_dropout(owners: Path) -> None:
    old = play(owners_config(owners, model="mlp", dropout_width=0.5))
    new = play(owners_config(owners, model="mlp", width__levels="0.5", width__scheme="random"))
    assert hashes(old) == hashes(new)


def test_a_stack_and_clients_one_by_one_agree(owners: Path) -> None:
    together, alone = (play(dropping(owners, stack=stack)).arrays(4) for stack in (0, 1))
    for name, a in together.items():
        np.testing.assert_allclose(a, alone[name], rtol=1e-5, atol=1e-6)


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
    assert rows == {c: LEVELS[dealt(c)] for c in SIZES}


def sizes(played: Played) -> tuple[int, int]:
    row = played.rows[1]
    return row["bytes_down"], row["bytes_up"]


def test_what_travels_is_small(owners: Path) -> None:
    """Of the model's 4 bytes each: inputs 4 x 64, biases 64, outputs 64 x 3 and their 3 biases."""
    whole, part = (play(dropping(owners, dropout_width=w), nodes=5) for w in (1.0, 0.25))
    (whole_down, whole_up), (part_down, part_up) = sizes(whole), sizes(part)
    saved = 5 * 4 * 48 * (4 + 1 + 3)  # five clients, 48 of 64 units
    assert whole_up - part_up == saved
    assert saved - 5 * 200 < whole_down - part_down < saved  # names of records
    for message in part.messages():
        assert wire.ARRAYS not in message.content.array_records
        (client,) = wire.clients_of(message)
        assert message.content.array_records[f"arrays.{client}"]["1.weight"].shape == (16, 4)
        assert "population" not in message.content.config_records["config"]
    seconds = [play(dropping(owners, dropout_width=w, devices__spread=0.0)).rows[1] for w in (1.0, 0.25)]
    assert seconds[0]["simulated_seconds"] - seconds[1]["simulated_seconds"] == pytest.approx(
        2 * 4 * 48 * 8 / (1.4 * 125_000)
    )


# ------------------------------------------------------------------------------------------- codecs


@pytest.mark.parametrize("codec", ["fp16", "int8", "eden", "rand-k"])
def test_a_code_of_a_part_is_relative_to_what_its_client_received(codec: str, owners: Path) -> None:
    keys = dropping(
        owners, codec__up=codec, codec__keep=0.5, codec__bits=4, codec__block=64, max_update_norm=50.0
    )
    keys = read_by(keys)
    played = [play(keys, nodes=nodes, seed=nodes) for nodes in (1, 3, 5)]
    assert [p.keep.lines for p in played] == [[], [], []]
    assert hashes(played[0]) == hashes(played[1]) == hashes(played[2])
    raw = play(dropping(owners), nodes=5)
    assert played[2].rows[1]["bytes_up"] < raw.rows[1]["bytes_up"]
    moved = mlp.norm(mlp.plus(raw.arrays(1), raw.arrays(0), -1.0))
    # codes of an update are near it; codes of the model would be off by the model's own size
    off = mlp.norm(mlp.plus(played[0].arrays(1), raw.arrays(1), -1.0))
    assert off < {"fp16": 1e-3, "int8": 0.05, "eden": 0.5, "rand-k": 1.5}[codec] * moved


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
    assert rows == {n: LEVELS[said.get(n, dealt(n))] for n in SIZES}


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

    played = play(dropping(owners, num_server_rounds=1), nodes=nodes, tamper=tamper)
    refused = {q.client for q in played.keep.lines}
    assert refused
    assert played.rows[1]["answered"] == len(SIZES) - len(refused)
    assert all(re.search(line, str(q)) for q in played.keep.lines), played.keep.lines


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


def test_an_attack_is_measured_from_what_its_client_received(owners: Path) -> None:
    """Everybody sends w^t - Delta, so that the mean moves the other way by as much."""
    honest = play(dropping(owners, num_server_rounds=1))
    flipped = play(dropping(owners, num_server_rounds=1, attack__kind="sign-flip", attack__fraction=1.0))
    start, there, back = honest.arrays(0), honest.arrays(1), flipped.arrays(1)
    for name in start:
        np.testing.assert_allclose(back[name] - start[name], start[name] - there[name], atol=1e-6)
    assert np.abs(there["1.weight"] - start["1.weight"]).max() > 1e-3


@pytest.mark.parametrize("nodes", [1, 5])
def test_a_bound_on_updates_is_relative_to_the_part(nodes: int, owners: Path) -> None:
    """A part less the whole model, or less another part, would be far from it."""
    fine = play(dropping(owners, num_server_rounds=1, max_update_norm=5.0), nodes=nodes)
    assert fine.keep.lines == []
    none = play(dropping(owners, num_server_rounds=1, max_update_norm=1e-6), nodes=nodes)
    assert {q.client for q in none.keep.lines} == set(SIZES)


# ------------------------------------------------------------------------------------------ refusals


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
    ],
    ids=str,
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], why: str, owners: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        check_names(read_config(config(owners, **keys)))


@pytest.mark.parametrize(("key", "made"), [("dropout-width", dropping), ("width.levels", config)])
def test_a_model_without_hidden_layers_is_refused_before_round_1(
    key: str, made: Callable[..., dict[str, Any]], owners: Path
) -> None:
    with pytest.raises(ConfigError, match=f'"{re.escape(key)}": expected a model with hidden layers'):
        play(made(owners, model="logistic"))


def test_a_strategy_without_the_family_says_what_is_missing(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any) -> ModelFamily | None:
        return None

    monkeypatch.setattr("tests.support.federation.family_of", none)
    with pytest.raises(ConfigError, match=r"expected a family of models, .*mixed_models\.set_family"):
        play(dropping(owners))


def test_another_loop_cannot_drive_it() -> None:
    strategy = FedAvg(Config(train=TrainConfig(dropout_width=0.5)))
    assert "client half" in strategy.registry.membership.why_no_stock_clients


@pytest.mark.parametrize("harm", ["no part", "no names"])
def test_a_node_refuses_an_order_without_a_part_for_each_client(harm: str, owners: Path) -> None:
    keys = dropping(owners, num_server_rounds=1)
    (message,) = play(keys, nodes=1).messages()
    told = message.content.config_records["config"]
    if harm == "no part":
        told["arrays:anna"] = []
    else:
        del told["clients"], told["epochs"]
    with pytest.raises(WireError, match=r"expected 'arrays' for each client, .*dropout-width"):
        answer(open_node(read_config(keys), {}), message.content)
