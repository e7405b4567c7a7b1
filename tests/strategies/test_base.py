"""The round loop: selection, weights, spread over nodes, quarantine, deadlines, targets."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from strategies import FedAvg, FedProx, Strategy
from task.catalogue.algorithms import ALGORITHMS
from task.config.algorithm_sections import FedProxConfig
from task.config.knobs import Config
from task.errors import ConfigError, WireError
from task.wire import checks
from task.wire import messages as wire
from tests.support.apps import adds, named_app, spread, stock_app
from tests.support.federation import Keep
from tests.support.grid import LocalGrid

COUNTS = {f"client-{i}": 10 * (i + 1) for i in range(6)}
AMOUNTS = {f"client-{i}": 0.1 * i - 0.2 for i in range(6)}


def model(*values: float) -> ArrayRecord:
    return wire.pack_arrays({"w": np.array(values or (0.0, 1.0), np.float32)})


def named_grid(nodes: int, *, tamper: Any = None, seed: int = 0, amounts: Any = AMOUNTS) -> LocalGrid:
    configs, hosted = spread(COUNTS, nodes)
    return LocalGrid(named_app(hosted, adds(amounts, COUNTS)), configs, tamper=tamper, seed=seed)


def test_weights_are_example_counts_of_those_who_answered() -> None:
    # amounts (0.2, 1.0) with 30 and 10 examples: (30*0.2 + 10*1.0) / 40 = 0.4 a round
    app = stock_app(lambda c: (0.2, 30) if c.node_config["partition-id"] == 0 else (1.0, 10))
    grid = LocalGrid(app, [{"partition-id": 0}, {"partition-id": 1}])
    result = FedAvg().start(grid, model(), num_rounds=2)
    assert wire.read_arrays(result.arrays)["w"] == pytest.approx([0.8, 1.8], rel=1e-6)
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(0.4)


def test_a_stock_client_is_known_by_the_end_of_a_long_reason() -> None:
    """In Flower's simulation kilobytes of traceback come first; all nodes would be left out."""
    app = stock_app(lambda c: (1.0, 1))

    def raised(message: Message, context: Context) -> Message:
        try:
            return app(message, context)
        except ValueError as err:
            raise RuntimeError("\n".join(["ray::ClientAppActor.run() (pid=1)"] * 200 + [str(err)])) from err

    result = FedAvg().start(LocalGrid(raised, [{}, {}]), model(), num_rounds=1)  # type: ignore[arg-type]
    assert wire.read_arrays(result.arrays)["w"] == pytest.approx([1.0, 2.0])


def test_flowers_fractions_and_lr_are_understood() -> None:
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=1.0, min_nodes=2)
    app = stock_app(lambda c: (1.0, 1))
    grid = LocalGrid(app, [{}, {}, {}, {}])
    strategy.start(grid, model(), num_rounds=1, train_config=ConfigRecord({"lr": 0.025, "note": "x"}))
    trained = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert len(trained) == 2
    assert trained[0].content["config"]["lr"] == 0.025
    assert trained[0].content["config"]["note"] == "x"
    with pytest.raises(ConfigError, match='Did you mean "fraction_train"'):
        FedAvg(fraction_trian=0.5)


def test_one_message_per_node() -> None:
    grid = named_grid(2)
    FedAvg().start(grid, model(), num_rounds=1)
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert len(sent) == 2
    assert sorted(c for m in sent for c in m.content["config"]["clients"]) == sorted(COUNTS)


def test_an_example_count_in_words_cannot_even_be_packed_and_an_undecodable_one_is_quarantined() -> None:
    with pytest.raises(TypeError):
        MetricRecord({"num-examples": "ten"})  # type: ignore[dict-item]
    with pytest.raises(WireError, match="'ten'"):
        checks.check_scalars(ALGORITHMS["fedavg"], {"num-examples": "ten"})


def test_a_client_that_raises_and_one_that_never_answers() -> None:
    def work(client: str, order: wire.TrainOrder) -> wire.ClientUpdate:
        if client == "client-0":
            raise ValueError("disk on fire")
        return adds(AMOUNTS, COUNTS)(client, order)

    configs, hosted = spread(COUNTS, 6)
    grid = LocalGrid(named_app(hosted, work), configs, tamper=lambda n, r: None if n == 1 else r)
    keep = Keep()
    FedAvg().start(grid, model(), num_rounds=1, timeout=0.2, journal=keep)
    lines = {q["client"]: q for q in keep.rows[1]["quarantined"]}
    assert set(lines) == {"client-0", "client-1"}
    assert "disk on fire" in lines["client-0"]["got"]
    assert lines["client-1"]["expected"] == "a reply within 0.2 s"
    assert keep.rows[1]["answered"] == 4


def test_too_few_replies_skip_the_round_and_keep_the_model() -> None:
    keep = Keep()
    trained: list[int] = []

    def tamper(node: int, reply: Message) -> Message | None:
        trained.append(node)
        return None if node > 1 and len(trained) <= 6 else reply

    FedAvg(min_replies=3).start(
        named_grid(6, tamper=tamper), model(), num_rounds=2, timeout=0.3, journal=keep
    )
    assert [row["skipped"] for row in keep.rows] == [False, True, False]
    assert keep.rows[1]["model_sha256"] == keep.rows[0]["model_sha256"] != keep.rows[2]["model_sha256"]


def test_enough_replies_close_the_round() -> None:
    keep = Keep()
    FedAvg(enough_replies=2).start(named_grid(6), model(), num_rounds=1, journal=keep)
    assert keep.rows[1]["answered"] >= 2
    assert len(keep.rows[1]["quarantined"]) == 6 - keep.rows[1]["answered"]
    assert all("others were in" in q["expected"] for q in keep.rows[1]["quarantined"])


class StepByStep(FedAvg):
    """Is driven by a loop of its own, whose replies name the clients."""

    start = FlowerStrategy.start  # type: ignore[assignment]


def test_a_reply_is_not_counted_twice() -> None:
    strategy = StepByStep()
    grid = named_grid(2)
    strategy._sync(model())
    requests = list(strategy.configure_train(1, model(), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(requests))
    once, _ = strategy.aggregate_train(1, replies)
    again = StepByStep()
    again._sync(model())
    requests = list(again.configure_train(1, model(), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(requests))
    twice, _ = again.aggregate_train(1, replies + replies[:1])  # all of them twice have the same mean
    assert once is not None
    assert twice is not None
    assert np.array_equal(wire.read_arrays(once)["w"], wire.read_arrays(twice)["w"])


@pytest.mark.parametrize(
    ("rule", "config", "knobs", "key"),
    [
        (FedAvg, Config(fedprox=FedProxConfig(mu=0.5)), {}, "fedprox.mu"),
        (FedAvg, Config(algorithm="fedprox", fedprox=FedProxConfig(mu=0.5)), {}, "fedprox.mu"),
        (FedAvg, None, {"drop_stragglers": True}, "drop-stragglers"),
    ],
)
def test_a_rule_refuses_knobs_that_it_does_not_read(
    rule: type[Strategy], config: Config | None, knobs: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=f'"{key}": nothing in this run reads it'):
        rule(config, **knobs)
    FedProx(Config(fedprox=FedProxConfig(mu=0.5)))


def test_stops_at_the_target_accuracy() -> None:
    keep = Keep()
    seen: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"loss": 1.0, "accuracy": 0.3 * server_round})

    FedAvg(target_accuracy=0.8).start(
        named_grid(1), model(), num_rounds=9, evaluate_fn=evaluate, journal=keep
    )
    assert seen == [0, 1, 2, 3]


def test_evaluates_every_so_many_rounds_and_at_the_end() -> None:
    seen: list[int] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        return MetricRecord({"loss": 1.0, "accuracy": 0.1})

    FedAvg(evaluate_every=3).start(named_grid(1), model(), num_rounds=7, evaluate_fn=evaluate)
    assert seen == [0, 3, 6, 7]


def test_too_few_nodes_is_a_clear_error() -> None:
    with pytest.raises(WireError, match=r"at least 3 nodes within 0.1 s .*got 2.*Start more nodes"):
        FedAvg(min_nodes=3, roll_call_timeout=0.1).start(named_grid(2), model(), num_rounds=1)


# ------------------------------------------------------------- evaluation during the next round


def accuracy_of(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": float(wire.read_arrays(arrays)["w"].sum()), "loss": float(server_round)})


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_overlap_changes_no_row_and_no_snapshot() -> None:
    kept = []
    for overlap in (False, True):
        kept.append(Keep())
        FedAvg(fraction_train=0.5, seed=3).start(
            named_grid(2), model(), num_rounds=6, evaluate_fn=accuracy_of, journal=kept[-1], overlap=overlap
        )
    assert [row["round"] for row in kept[1].rows] == list(range(7))
    assert without_clock(kept[1].rows) == without_clock(kept[0].rows)
    for a, b in zip(kept[0].snapshots, kept[1].snapshots, strict=True):
        assert a.round == b.round
        assert np.array_equal(a.arrays["arrays/w"], b.arrays["arrays/w"])


def test_the_next_round_trains_while_the_last_one_is_evaluated() -> None:
    """The evaluation of round 1 waits for the messages of round 2, and would fail without them."""
    sent = threading.Event()

    class Grid(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            if any(m.content.get("config", {}).get("server-round") == 2 for m in messages):
                sent.set()
            return super().push_messages(messages)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        assert server_round != 1 or sent.wait(10)
        return accuracy_of(server_round, arrays)

    configs, hosted = spread(COUNTS, 1)
    grid = Grid(named_app(hosted, adds(AMOUNTS, COUNTS)), configs)
    keep = Keep()
    FedAvg(seed=3).start(grid, model(), num_rounds=3, evaluate_fn=evaluate, journal=keep, overlap=True)
    assert [row["accuracy"] is not None for row in keep.rows] == [True] * 4


def test_totals_add_up_to_the_time_of_the_run() -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        time.sleep(0.05)
        return accuracy_of(server_round, arrays)

    for overlap in (False, True):
        keep = Keep()
        began = time.perf_counter()
        FedAvg().start(named_grid(1), model(), 4, evaluate_fn=evaluate, journal=keep, overlap=overlap)
        took = time.perf_counter() - began
        totals = sum(row["seconds"]["total"] for row in keep.rows)
        assert 0.25 <= totals <= took


@pytest.mark.parametrize("bad", [1, 3])
def test_what_goes_wrong_beside_a_round_ends_the_run(bad: int) -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == bad:
            raise OSError("no space left on device")
        return accuracy_of(server_round, arrays)

    keep = Keep()
    with pytest.raises(OSError, match="no space left"):
        FedAvg().start(named_grid(1), model(), 3, evaluate_fn=evaluate, journal=keep, overlap=True)
    assert [row["round"] for row in keep.rows] == list(range(bad))


def test_a_target_is_looked_at_before_the_next_round_also_with_overlap() -> None:
    grid = named_grid(1, amounts=dict.fromkeys(COUNTS, 0.1))
    keep = Keep()
    FedAvg(target_accuracy=0.75).start(
        grid, model(0.0, 0.25), num_rounds=9, evaluate_fn=accuracy_of, journal=keep, overlap=True
    )
    reached = next(row["round"] for row in keep.rows if row["accuracy"] >= 0.75)
    assert keep.rows[-1]["round"] == reached < 9
    assert {
        m.content["config"]["server-round"] for m in grid.sent if m.metadata.message_type == "train"
    } == set(range(1, reached + 1))
