from __future__ import annotations

import math
from typing import Any

import pytest

from server_app.summary import headline, human_bytes, human_seconds, participation, short, summarise

RUN = {"algorithm": "fedavg", "dataset": "digits", "model": "mlp", "seed": 7, "target-accuracy": 0.625}


def row(number: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    """Return a row of rounds.jsonl that cost 2 s, 100 bytes down and 50 up (round 0: 1 s, none)."""
    moved = {"bytes_down": 100, "bytes_up": 50} if number else {"bytes_down": 0, "bytes_up": 0}
    loss = None if accuracy is None else 1 - accuracy
    seconds = {"total": 2.0 if number else 1.0}
    base = {"round": number, "accuracy": accuracy, "loss": loss, "quarantined": [], "skipped": False}
    return base | moved | {"seconds": seconds, "model_sha256": f"sha-{number}"} | more


def client(name: str, server_round: int, accuracy: float, phase: str = "evaluate") -> dict[str, Any]:
    return {
        "name": name,
        "round": server_round,
        "phase": phase,
        "examples": 5,
        "metrics": {"accuracy": accuracy},
    }


def test_summary_by_hand() -> None:
    rows = [row(0, 0.25), row(1, 0.5), row(2, None), row(3, 1.0, quarantined=[{}, {}]), row(4, 0.75)]
    clients = [
        client("a", 1, 0.1),
        client("a", 3, 0.25),
        client("b", 3, 0.75),
        client("a", 4, 0.9, phase="train"),
    ]
    found = summarise(rows, clients, RUN, targets=[0.75, 1.5])
    # 0.625 is a quarter, 0.75 half of the way from round 1 (3 s, 150 bytes) to round 3 (7 s, 450 bytes).
    assert found["rounds_to_target"] == {"0.625": 1.5, "0.75": 2.0, "1.5": None}
    assert found["seconds_to_target"] == {"0.625": 4.0, "0.75": 5.0, "1.5": None}
    assert found["bytes_to_target"] == {"0.625": 225.0, "0.75": 300.0, "1.5": None}
    assert (found["accuracy"], found["loss"]) == (0.75, 0.25)
    assert (found["best_accuracy"], found["best_round"]) == (1.0, 3)
    assert (found["rounds"], found["seconds"]) == (4, 9.0)
    assert (found["bytes_up"], found["bytes_down"]) == (200, 400)
    assert (found["quarantined"], found["skipped"], found["model_sha256"]) == (2, 0, "sha-4")
    assert found["clients"] == pytest.approx(
        {"round": 3, "count": 2, "mean": 0.5, "std": 0.25, "worst_decile": 0.25, "jain": 0.8}
    )
    assert {k: found[k] for k in ("algorithm", "dataset", "seed")} == {
        "algorithm": "fedavg",
        "dataset": "digits",
        "seed": 7,
    }


def test_simulated_seconds_are_added_up_like_the_others() -> None:
    rows = [row(0, 0.25), row(1, 0.5, simulated_seconds=3.0), row(2, 1.0, simulated_seconds=5.0)]
    found = summarise(rows, [], RUN | {"selection": "oort"}, targets=[0.75])
    assert found["simulated_seconds"] == 8.0
    assert found["simulated_seconds_to_target"] == {"0.625": 4.25, "0.75": 5.5}  # a quarter, half of 3 to 8
    assert dict(headline(found))["Time, simulated devices"] == "8.00 s"
    assert "Time, simulated devices" not in dict(headline(found | {"selection": "uniform"}))


def test_participation_by_hand() -> None:
    """Of five clients a took part in three rounds, b in one; that c was evaluated is no taking part."""
    rows = [row(0, None, population=0), row(1, None, population=5), row(2, None, population=4)]
    lines = [client(name, t, 0.5, phase="train") for name, t in (("a", 1), ("a", 2), ("b", 2), ("a", 3))]
    took = participation(rows, [*lines, client("c", 3, 0.5)])
    # Jain: 4^2 / (5 * (9 + 1)) = 0.32
    assert took == {
        "population": 5, "clients": 2, "most": 3, "jain": pytest.approx(0.32),
        "histogram": {"0": 3, "1": 1, "3": 1},
    }  # fmt: skip
    assert list(took["histogram"]) == ["0", "1", "3"]
    found = summarise(rows, lines, RUN)
    assert found["participation"] == took
    assert dict(headline(found))["Took part"] == "2 of 5 clients, at most 3 times"
    assert participation([], []) == {"population": 0, "clients": 0, "most": 0, "jain": None, "histogram": {}}


def test_a_loss_that_went_to_nan_does_not_bring_back_an_old_one() -> None:
    found = summarise([row(0, 0.5), row(1, 0.1, loss=math.nan), row(2, None)], [], RUN)
    assert (found["accuracy"], found["loss"]) == (0.1, None)


def test_summary_of_nothing() -> None:
    found = summarise([], [], RUN)
    assert found["rounds"] == 0
    assert found["accuracy"] is found["best_accuracy"] is found["clients"]["mean"] is None
    assert list(found["rounds_to_target"]) == ["0.5", "0.625", "0.8", "0.9", "0.95", "0.97", "0.99"]
    assert not any(found["rounds_to_target"].values())
    assert dict(headline(found))["Rounds"] == "0"
    assert "Accuracy, final" not in dict(headline(found))


def test_numbers_in_words() -> None:
    assert [short(x) for x in (0.3126, 0.0004, 12345.6, 0.0, None)] == [
        "0.313",
        "0.0004",
        "1.23e+04",
        "0.000",
        "",
    ]
    assert [human_bytes(x) for x in (0, 999, 1000, 12_345_678)] == ["0 B", "999 B", "1.0 kB", "12.3 MB"]
    assert [human_seconds(x) for x in (0.42, 42, 3723)] == ["0.42 s", "42.0 s", "1:02:03"]
