from __future__ import annotations

import math
from typing import Any

import pytest

from server_app.results.clients import gather, participation
from server_app.results.headline import headline, short
from server_app.results.plots import by_round
from server_app.results.summary import measured_on, summarise
from task.units import human_bytes, human_seconds

RUN = {"algorithm": "fedavg", "dataset": "digits", "model": "mlp", "seed": 7, "target-accuracy": 0.625}


def row(number: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    """Return a row of rounds.jsonl that cost 2 s, 100 bytes down and 50 up (round 0: 1 s, none)."""
    moved = {"bytes_down": 100, "bytes_up": 50} if number else {"bytes_down": 0, "bytes_up": 0}
    loss = None if accuracy is None else 1 - accuracy
    seconds = {"total": 2.0 if number else 1.0}
    base = {"round": number, "accuracy": accuracy, "loss": loss, "quarantined": [], "skipped": False}
    return base | moved | {"seconds": seconds, "model_sha256": f"sha-{number}"} | more


def client(
    name: str, server_round: int, accuracy: float, phase: str = "evaluate", examples: int = 5
) -> dict[str, Any]:
    base = {"name": name, "round": server_round, "phase": phase, "examples": examples}
    return base | {"metrics": {"accuracy": accuracy}}


def trained(name: str, server_round: int, accuracy: float | None, examples: int) -> dict[str, Any]:
    """Return a training row of clients.jsonl with the client's own model tested on so many examples."""
    metrics = {"train-loss": 0.1, "test-accuracy": accuracy, "test-loss": 0.2, "test-examples": examples}
    return {"name": name, "round": server_round, "phase": "train", "examples": 100, "metrics": metrics}


def personal(number: int, accuracy: float | None) -> dict[str, Any]:
    """Return a row of a personalised run: nothing central."""
    loss = None if accuracy is None else 2 - accuracy
    return row(number, None, client_accuracy=accuracy, client_loss=loss)


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
    assert found["bytes_down_to_target"] == {"0.625": 150.0, "0.75": 200.0, "1.5": None}
    assert found["bytes_up_to_target"] == {"0.625": 75.0, "0.75": 100.0, "1.5": None}
    assert found["bytes_by_client"] is None  # these lines do not say any
    assert (found["accuracy"], found["loss"]) == (0.75, 0.25)
    assert (found["best_accuracy"], found["best_round"]) == (1.0, 3)
    assert (found["rounds"], found["seconds"]) == (4, 9.0)
    assert (found["bytes_up"], found["bytes_down"]) == (200, 400)
    assert (found["quarantined"], found["skipped"], found["model_sha256"]) == (2, 0, "sha-4")
    spread = {"round": 3, "count": 2, "mean": 0.5, "std": 0.25, "worst_decile": 0.25, "jain": 0.8}
    best = {"weighted_mean": 0.5, "best_round": 3, "best_weighted_mean": 0.5, "best_mean": 0.5}
    assert found["clients"] == pytest.approx(spread | best)
    assert found["clients_after"] == dict.fromkeys(found["clients"]) | {"count": 0}
    assert found["measured_on"] == "server"
    assert {k: found[k] for k in ("algorithm", "dataset", "seed")} == {
        "algorithm": "fedavg",
        "dataset": "digits",
        "seed": 7,
    }


def test_the_accuracy_of_a_personalised_run_is_the_clients() -> None:
    rows = [personal(0, None), personal(1, 0.5), personal(2, None), personal(3, 1.0), personal(4, 0.75)]
    found = summarise(rows, [], RUN, targets=[0.75])
    assert found["measured_on"] == measured_on(rows) == "clients"
    assert (found["accuracy"], found["loss"]) == (0.75, 1.25)
    assert (found["best_accuracy"], found["best_round"]) == (1.0, 3)
    # The same curve as in the test above, so the same crossings.
    assert found["rounds_to_target"] == {"0.625": 1.5, "0.75": 2.0}
    assert found["seconds_to_target"] == {"0.625": 4.0, "0.75": 5.0}
    assert found["bytes_to_target"] == {"0.625": 225.0, "0.75": 300.0}
    assert (found["client_accuracy"], found["client_loss"]) == (0.75, 1.25)
    shown = dict(headline(found))
    assert shown["Accuracy, final"] == "0.750 (clients, weighted by examples)"
    assert shown["Accuracy, best"] == "1.000 (round 3)"
    assert shown["Loss, final"] == "1.250 (clients, weighted by examples)"
    assert "Client accuracy, final" not in shown  # it is the same


def test_a_best_round_that_fewer_clients_tested_says_so() -> None:
    rows = [personal(1, 0.5), personal(2, 1.0), personal(3, 0.75)]
    three = [client(name, t, 0.5) for t in (1, 3) for name in "abc"]
    found = summarise(rows, [*three, client("a", 2, 1.0), client("b", 2, 1.0)], RUN)
    assert (found["best_accuracy"], found["best_round"]) == (1.0, 2)
    assert dict(headline(found))["Accuracy, best"] == "1.000 (round 2, 2 of 3 clients)"
    all_tested = summarise(rows, [*three, *(client(name, 2, 1.0) for name in "abc")], RUN)
    assert dict(headline(all_tested))["Accuracy, best"] == "1.000 (round 2)"


def test_a_central_accuracy_is_the_headline_wherever_there_is_one() -> None:
    rows = [row(0, 0.25), personal(1, 1.0), personal(2, 0.75)]
    found = summarise(rows, [], RUN, targets=[])
    assert (found["measured_on"], found["accuracy"], found["loss"]) == ("server", 0.25, 0.75)
    assert found["rounds_to_target"] == {"0.625": None}
    assert dict(headline(found))["Client accuracy, final"] == "0.750"
    other = summarise(rows, [], RUN, targets=[], on="clients")
    assert (other["measured_on"], other["accuracy"], other["best_round"]) == ("clients", 0.75, 1)
    assert other["rounds_to_target"] == {"0.625": 1.0}
    assert measured_on([personal(0, None), row(1, math.nan)]) is None


def test_the_spread_over_clients_by_hand() -> None:
    """Round 1 is better by examples, round 2 by clients; of two equal rounds the first is the best."""
    lines = [
        *(client("a", 1, 1.0, examples=3), client("b", 1, 0.0, examples=1)),  # 0.75; 0.5
        *(client("a", 2, 0.5, examples=3), client("b", 2, 0.75, examples=1)),  # 0.5625; 0.625
        *(client("a", 4, 1.0, examples=3), client("b", 4, 0.0, examples=1)),
    ]
    found = summarise([], lines, RUN)["clients"]
    # Jain of 1 and 0: 1 / (2 * 1)
    spread = {"round": 4, "count": 2, "mean": 0.5, "std": 0.5, "worst_decile": 0.0, "jain": 0.5}
    best = {"weighted_mean": 0.75, "best_round": 1, "best_weighted_mean": 0.75, "best_mean": 0.5}
    assert found == pytest.approx(spread | best)
    # Neither the order of the lines nor reading them beforehand changes a number.
    assert summarise([], lines[::-1], RUN)["clients"] == found
    assert summarise([], gather(iter(lines)), RUN)["clients"] == found


def test_after_local_training_by_hand() -> None:
    lines = [
        trained("a", 1, 0.5, 10),
        trained("b", 1, 1.0, 30),  # 0.875 by examples, 0.75 by clients
        trained("c", 1, 0.0, 0),  # without test data of its own
        trained("a", 2, 0.25, 10),
        trained("b", 2, None, 30),
    ]
    found = summarise([], lines, RUN)
    spread = {"round": 2, "count": 1, "mean": 0.25, "std": 0.0, "worst_decile": 0.25, "jain": 1.0}
    best = {"weighted_mean": 0.25, "best_round": 1, "best_weighted_mean": 0.875, "best_mean": 0.75}
    assert found["clients_after"] == pytest.approx(spread | best)
    assert found["clients"]["count"] == 0
    assert found["participation"]["clients"] == 3
    assert (
        dict(headline(found))["After local training"]
        == "0.250 weighted by examples, 0.250 unweighted, std 0.000"
    )


def test_bytes_by_client_by_hand() -> None:
    """Of those that took part: a has 30 and 5, b 10 and 15; who was held out does not count."""
    moved = [("a", 10, 1), ("a", 20, 4), ("b", 10, 15)]
    lines = [client(n, 1, 0.5) | {"bytes_down": d, "bytes_up": u} for n, d, u in moved]
    held = client("c", 1, 0.5, "heldout") | {"bytes_down": 999, "bytes_up": 999}
    found = summarise([row(0, 0.25), row(1, 0.5)], [*lines, held], RUN)
    assert found["bytes_by_client"] == {"down": {"mean": 20.0, "max": 30}, "up": {"mean": 10.0, "max": 15}}
    words = dict(headline(found))
    assert words["Sent to clients"] == "100 B; 20 B a client, at most 30 B"
    assert words["Received from clients"] == "50 B; 10 B a client, at most 15 B"
    assert words["Bytes to accuracy"] == "0.5: 100 B to clients, 50 B from clients"
    assert words["Time"].endswith(" to accuracy 0.5")


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
    took_part = (("a", 1), ("a", 2), ("b", 2), ("a", 2), ("a", 3))  # a trained twice in round 2
    lines = [client(name, t, 0.5, phase="train") for name, t in took_part]
    times = gather([*lines, client("c", 3, 0.5)]).times
    took = participation(rows, times)
    # Jain: 4^2 / (5 * (9 + 1)) = 0.32
    assert took == {
        "population": 5, "clients": 2, "max": 3, "jain": pytest.approx(0.32),
        "histogram": {"0": 3, "1": 1, "3": 1},
    }  # fmt: skip
    assert list(took["histogram"]) == ["0", "1", "3"]
    found = summarise(rows, lines, RUN)
    assert found["participation"] == took
    assert dict(headline(found))["Participation"] == "2 of 5 clients, up to 3 rounds each"
    assert participation([], {}) == {"population": 0, "clients": 0, "max": 0, "jain": None, "histogram": {}}


def test_files_of_before_version_1_read_the_same() -> None:
    """A folder of an older version has other names: `most`, and phases with hyphens."""
    took = {"population": 5, "clients": 2, "jain": 0.32, "histogram": {}}
    size = {"mean": 20.0}
    now = {"participation": took | {"max": 3}, "bytes_by_client": {"down": size | {"max": 30}}}
    old = {"participation": took | {"most": 3}, "bytes_by_client": {"down": size | {"most": 30}}}
    assert headline(old) == headline(now)
    rows = [row(1, 0.5, seconds={"roll-call": 1.0}), row(2, 0.5, seconds={"roll_call": 2.0})]  # a resumed run
    (seconds,) = (plot for plot in by_round(rows) if plot.name == "seconds")
    assert [one.name for one in seconds.series] == ["roll call"]
    assert [point.y for point in seconds.series[0].points] == [1.0, 2.0]


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
    said = {
        0.42: "420 ms", 0.9951: "1.00 s", 9.996: "10.0 s", 42: "42.0 s", 59.96: "0:01:00", 3723: "1:02:03",
        172_799: "47:59:59", 200_000: "2.31 days", 1e300: "1.16e+295 days",
    }  # fmt: skip
    assert {x: human_seconds(x) for x in said} == said


@pytest.mark.parametrize("examples", [-40, 0])
def test_counts_that_no_client_can_have_do_not_break_the_summary(examples: int) -> None:
    lines = [
        {"name": n, "round": 1, "phase": "train", "examples": 5,
         "metrics": {"test-accuracy": 0.5, "test-examples": count}}
        for n, count in (("a", 40), ("b", examples))
    ]  # fmt: skip
    assert summarise([], lines, {})["clients_after"]["weighted_mean"] == 0.5
