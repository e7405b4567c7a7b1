"""Clients of several kinds of models: who has which, what they keep, and what is refused before round 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data.node import open_node
from client_app.data.registration import registration_of
from server_app.run.evaluate import by_model
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError, WireError
from task.models.family import Levels
from task.numerics.arrays import Arrays
from task.resolve.model_checks import check_levels
from task.resolve.read import read_config
from task.resolve.run_model import levels_of
from task.resolve.validate import check_names
from task.wire.registration import read_registration, registration_content
from tests.support.federation import SIZES, owners_config, play, write_owners
from tests.support.kept import kept_by
from tests.support.nodes import own_nodes

MIXED = {"models__levels": "logistic,mlp,2nn", "models__features": 8, "num_server_rounds": 2, "seed": 6}
# First layers by model of 4 inputs: the outputs of the first linear layer.
FIRST = {"logistic": 8, "mlp": 64, "2nn": 200}


def config(folder: Path, **keys: Any) -> dict[str, Any]:
    file = folder / "owners.npz"
    if not file.exists():
        write_owners(file)
    given = {"algorithm": "fedproto", "state_dir": str(folder / "state")} | MIXED | keys
    found = owners_config(file, **given)
    return {k: v for k, v in found.items() if k != "model" or "model" in keys}


def firsts(kept: Mapping[str, Arrays]) -> dict[str, int]:
    return {client: len(arrays["1.weight"]) for client, arrays in kept.items()}


def dealt(keys: dict[str, Any]) -> dict[str, str]:
    levels = levels_of(read_config(keys))
    return {name: levels.of(name) for name in sorted(SIZES)}


def test_each_client_trains_and_keeps_the_model_that_its_name_draws(tmp_path: Path) -> None:
    keys = config(tmp_path)
    who = dealt(keys)
    assert len({*who.values()}) == 3
    kept = kept_by(keys, play(keys), "personal")
    assert firsts(kept) == {name: FIRST[model] for name, model in who.items()}
    node = open_node(read_config(keys), {})
    for name, model in who.items():
        assert {n: a.shape for n, a in kept[name].items()} == {
            n: a.shape for n, a in node.initial(name).items()
        }
        assert node.seen_by(name).model == model
        last = max(n for n in kept[name] if n.endswith("weight"))
        assert kept[name][last].shape[1] == 8  # features that the head reads


@pytest.mark.parametrize("algorithm", ["fedproto", "local-only"])
def test_neither_nodes_nor_their_number_change_a_byte(algorithm: str, tmp_path: Path) -> None:
    def models(nodes: int) -> Any:
        keys = config(tmp_path, algorithm=algorithm, state_dir=str(tmp_path / f"{nodes}"))
        played = play(keys, nodes=nodes, seed=nodes)
        return [r["model_sha256"] for r in played.rows], kept_by(keys, played, "personal")

    (shas, kept), (others, apart) = models(1), models(5)
    assert shas == others
    assert all(np.array_equal(a, apart[c][n]) for c, arrays in kept.items() for n, a in arrays.items())


def test_a_client_has_the_model_that_its_node_says(tmp_path: Path) -> None:
    said = {"anna": "2nn", "ben": "2nn", "cleo": "logistic", "dora": "mlp"}
    keys = config(tmp_path, num_classes=3)
    assert {n: dealt(keys)[n] for n in said} != said
    played = play(keys, grid_type=own_nodes(tmp_path, "model", said))
    assert [row["quarantined"] for row in played.rows[1:]] == [[], []]
    registered = {name: played.strategy.registry.model(name) for name in SIZES}
    assert registered == {**dict.fromkeys(SIZES), **said}
    levels = levels_of(read_config(keys), played.strategy.registry.model)
    assert {n: levels.of(n) for n in said} == said


def test_a_model_that_the_run_does_not_have_ends_it_before_round_1(tmp_path: Path) -> None:
    grid = own_nodes(tmp_path, "model", dict.fromkeys(SIZES, "cnn"))
    with pytest.raises(ConfigError, match=r'"model": expected one of the run\'s, logistic, mlp, 2nn .*"cnn"'):
        play(config(tmp_path, num_classes=3), grid_type=grid)


def test_a_node_without_data_of_its_own_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected model with data of the node's own"):
        open_node(read_config(config(tmp_path)), {"model": "mlp"})


def test_a_registration_of_a_model_is_of_one_client(tmp_path: Path) -> None:
    content = registration_content(registration_of(open_node(read_config(config(tmp_path)), {})))
    assert read_registration(content).model == ""
    content.config_records["roll_call"]["model"] = "mlp"
    with pytest.raises(WireError, match="expected a model of one client; got 5"):
        read_registration(content)


def test_features_of_unlike_widths_are_refused(tmp_path: Path) -> None:
    keys = read_config(config(tmp_path, models__features=0))
    expected = r"FedProto reads features.*logistic 4, mlp 64, 2nn 200. Set models.features"
    with pytest.raises(ConfigError, match=expected):
        check_levels(keys, (4,), 3)
    alone = read_config(config(tmp_path, models__features=0, algorithm="local-only"))
    assert check_levels(alone, (4,), 3) == {"logistic": 15, "mlp": 515, "2nn": 41803}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"models__levels": "mlp,mlp"}, '"models.levels": expected names of models, each once'),
        ({"models__levels": "mlp,ml"}, '"models.levels": .*mlp'),
        ({"models__shares": "0.5,0.5"}, '"models.shares": expected 3 shares'),
        ({"models__shares": "0.5,0.6,-0.1"}, '"models.shares"'),
        ({"models__levels": "", "models__shares": "1"}, '"models.shares": nothing in this run reads it'),
        ({"model": "2nn"}, '"model": nothing in this run reads it'),
        (
            {"algorithm": "fedavg", "models__levels": "2nn,mlp", "models__shares": ""},
            '"models.levels": models.levels = "2nn,mlp" does not go with algorithm = "fedavg"',
        ),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_names(read_config(config(tmp_path, **keys)))


@pytest.mark.parametrize("algorithm", ["fedproto", "fedmd"])
def test_texts_are_refused(algorithm: str) -> None:
    keys = {"algorithm": algorithm, "dataset": "shakespeare", "model": "char-lstm", "partition": "natural"}
    with pytest.raises(ConfigError, match=f'"dataset": "{algorithm}" needs one class an example'):
        check_names(read_config(keys))


def test_a_level_of_a_users_own_is_code_that_a_site_must_allow() -> None:
    from client_app.data.owner import keys_of_node

    with pytest.raises(ConfigError, match=r'packages: expected one that .* got "net"'):
        keys_of_node({"models.levels": "mlp,net.parts:Small"}, {})


def test_results_by_model_by_hand() -> None:
    def line(name: str, at: int, n: int, accuracy: float, phase: str = "evaluate") -> dict[str, Any]:
        metrics = {"accuracy": accuracy, "loss": 2 * accuracy}
        return {"name": name, "round": at, "phase": phase, "examples": n, "metrics": metrics}

    of = {"a": "mlp", "b": "mlp", "c": "2nn"}
    lines = [line("a", 1, 5, 0.1), line("a", 2, 1, 0.4), line("b", 2, 3, 0.8), line("c", 3, 1, 0.0, "train")]
    levels = Levels(("mlp", "2nn"), (0.5, 0.5), 1, of.__getitem__)
    rows = by_model(levels, {"mlp": 10, "2nn": 20}, lines, of)
    assert rows[0] == {
        "model": "mlp", "parameters": 10, "clients": 2, "accuracy": pytest.approx(0.7),
        "loss": pytest.approx(1.4),
    }  # fmt: skip
    assert rows[1] == {"model": "2nn", "parameters": 20, "clients": 1, "accuracy": None, "loss": None}


def test_a_clients_own_model_is_taken_and_written_as_of_its_kind(tmp_path: Path) -> None:
    """`bouquet predict --client` and `export` of a run's client that has another model than the first."""
    from client_app.own_models import kept_model
    from server_app.takeout.clients import Clients
    from server_app.takeout.last_order import evaluation_order
    from server_app.takeout.model import own_of
    from task.catalogue.entry import evaluation_of
    from task.resolve.model_card import card_of

    keys = config(tmp_path)
    played, given = play(keys), read_config(keys)
    client = next(name for name, model in dealt(keys).items() if model == "2nn")
    node, entry = open_node(given, {}), evaluation_of(ALGORITHMS["fedproto"])
    order = evaluation_order(2, played.arrays(2), entry, client, played.strategy.engine.run_id, ())
    assert set(order.arrays) == {"prototypes"}
    whole = card_of(given, (4,), 3, node.dataset)
    clients = Clients(given, {}, whole)
    taken = own_of(clients, whole, given, entry, order, {})
    assert [json.loads(c.metadata()["bouquet"])["model"] for c in (whole, taken.card)] == [
        "logistic, mlp, 2nn",
        "2nn",
    ]
    assert taken.card.config.models.levels == ""
    kept = kept_by(keys, played, "personal")[client]
    assert all(np.array_equal(t.numpy(), kept[n]) for n, t in taken.model.state_dict().items())
    assert kept_model(clients.node, entry, order, client) is taken.model
