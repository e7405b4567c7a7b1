"""Clients that have nothing to measure a model on, and what the data card counts."""

from __future__ import annotations

from pathlib import Path

from server_app.run.data_card import data_card, server_data
from strategies.engine.fold import Folded
from task.resolve.read import read_config
from task.wire.checks import NO_TESTS
from task.wire.messages import RejectedReply
from tests.support.federation import owners_config, play, write_owners


def test_a_client_without_test_examples_is_named_and_not_quarantined(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz", {"anna": 1, "ben": 12, "cleo": 9})
    keys = owners_config(
        tmp_path / "owners.npz", local_test_fraction=0.3, fraction_evaluate=1.0, num_server_rounds=1
    )
    row = play(keys, nodes=2).rows[1]
    assert (row["untested"], row["quarantined"]) == (["anna"], [])
    assert row["client_accuracy"] is not None


def test_nobody_escapes_the_quarantine_of_a_training_by_that_name() -> None:
    line = RejectedReply("anna", 1, NO_TESTS, "some", "none")
    training, evaluation = (Folded(None, [line], {}, 0) for _ in range(2))
    assert (training.set_apart("train"), training.untested) == ([line], [])
    assert (evaluation.set_apart("evaluate"), evaluation.untested) == ([], ["anna"])


def test_the_data_card_counts_what_is_left_once_public_examples_are_taken() -> None:
    config = read_config(
        {"algorithm": "fedmd", "num-clients": 5, "public.examples": 300, "local-test-fraction": 0.0,
         "fraction-evaluate": 0.0}
    )  # fmt: skip
    dataset = server_data(config)
    assert dataset is not None
    card = data_card(config, dataset, labelled=True)
    assert card is not None
    assert card["public_examples"] == 300
    assert sum(map(sum, card["labels"]["counts"])) == dataset.num_train - 300
