"""HierFAVG: which edge a client belongs to, and where it is FedAvg bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from strategies.rules.hierfavg import share_out
from task.config.algorithm_sections import HierFAVGConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.read import read_config
from task.resolve.validate import check_names
from tests.support.federation import Played, play
from tests.support.personal import keys_of

EVERYBODY = {"fraction_train": 1.0, "fraction_evaluate": 0.0, "lr_decay": 1.0, "model": "logistic"}


def run(folder: Path, algorithm: str, nodes: int = 2, **more: Any) -> Played:
    return play(keys_of(folder, algorithm, **EVERYBODY | more), nodes=nodes)


def edges(known: dict[str, str], names: str, **knobs: Any) -> dict[str, str]:
    return share_out(known, names.split(), Config(hierfavg=HierFAVGConfig(**knobs)))


def test_with_one_edge_r_rounds_are_kappa2_r_rounds_of_fedavg(tmp_path: Path) -> None:
    one = run(tmp_path, "hierfavg", hierfavg__edges=1, hierfavg__kappa2=3, num_server_rounds=2)
    other = run(tmp_path, "fedavg", num_server_rounds=6)
    assert [one.rows[t]["model_sha256"] for t in (0, 1, 2)] == [
        other.rows[t]["model_sha256"] for t in (0, 3, 6)
    ]


def test_edges_by_number_are_blocks_of_names_and_last() -> None:
    first = edges({}, "d c b a e")
    assert first == {"a": "edge-1", "b": "edge-1", "c": "edge-1", "d": "edge-2", "e": "edge-2"}
    # a newcomer joins the smaller edge, the next one the first of equal ones; who is away keeps its place
    assert edges(first, "aa ab e") == first | {"aa": "edge-2", "ab": "edge-1"}


def test_edges_by_name() -> None:
    found = edges({}, "north-1 south-1 north-2", pattern="^[a-z]+")
    assert found == {"north-1": "north", "north-2": "north", "south-1": "south"}
    assert edges({}, "ward/7 ward/8", pattern="^(.*)/") == {"ward/7": "ward", "ward/8": "ward"}


def test_a_name_without_an_edge_is_refused_before_round_1_and_left_out_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=r"does not match '9'; expected an edge in every client's name"):
        edges({}, "north-1 9", pattern="^[a-z]+")
    assert edges({"north-1": "north"}, "north-1 9", pattern="^[a-z]+") == {"north-1": "north"}
    assert "does not match '9', so it does not take part" in caplog.text


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"hierfavg.edges": 11, "num-clients": 10}, r'"hierfavg.edges": expected at most the 10 clients'),
        ({"hierfavg.pattern": "("}, r'"hierfavg.pattern": expected a regular expression; got .\(.'),
    ],
)
def test_impossible_edges_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_names(read_config({"algorithm": "hierfavg", **keys}))


def test_more_edges_than_owners_are_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at most the 5 clients that are online before round 1"):
        run(tmp_path, "hierfavg", hierfavg__edges=6)


def test_an_edge_that_does_not_answer_is_left_out_of_the_mean(tmp_path: Path) -> None:
    """Edges of one client each, asked one after the other, and again: anna's is the first of five."""
    keys = keys_of(tmp_path, "hierfavg", **EVERYBODY, hierfavg__edges=5, num_server_rounds=1)

    def without(fails: set[int], **more: Any) -> dict[str, Any]:
        number = iter(range(99))

        def tamper(node: int, reply: Message) -> Message:
            if reply.metadata.message_type == "train" and next(number) in fails:
                reply.content.clear()
            return reply

        return play(keys | more, nodes=5, tamper=tamper).rows[1]

    def cut(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["metrics"], row["answered"], row["skipped"], len(row["quarantined"])

    both, once = without({0, 5}), without({5})
    assert cut(both) == ({"edges": 4}, 4, False, 2)
    assert cut(once) == ({"edges": 5}, 5, False, 1)  # its model of the first edge round counts
    assert both["model_sha256"] != once["model_sha256"]
    assert without({0, 5}, **{"min-replies": 5})["skipped"]


def test_simulated_seconds_count_every_training_and_edges_work_at_once(tmp_path: Path) -> None:
    """No link costs anything here; then kappa_2 edge rounds take kappa_2 times the slowest client's."""
    fast = {"devices__bandwidth": 1e9, "num_server_rounds": 1}
    one = run(tmp_path, "fedavg", **fast).rows[1]["simulated_seconds"]
    three = run(tmp_path, "hierfavg", hierfavg__kappa2=3, **fast).rows[1]["simulated_seconds"]
    assert three == pytest.approx(3 * one, rel=1e-4)


def test_the_state_holds_a_model_of_each_edge(tmp_path: Path) -> None:
    last = play(keys_of(tmp_path, "hierfavg", fraction_evaluate=0.0)).keep.snapshots[-1].arrays
    assert {bytes(a) for n, a in last.items() if n.startswith("edges/")} == {b"edge-1", b"edge-2"}
