"""Messages: orders, replies and registrations are read as they were written, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from task.catalogue.algorithms import ALGORITHMS
from task.errors import FieldError, WireError
from task.numerics.arrays import sha256
from task.population import ClientNames
from task.wire import checks, registration
from task.wire import messages as wire
from task.wire.layouts import Forms
from task.wire.messages import ClientUpdate, NodeReply, RejectedReply, TrainOrder
from task.wire.registration import LEFT_OUT, Registration, notice_content, read_notice
from tests.support.records import MODEL, through

AVG, PROX = ALGORITHMS["fedavg"], ALGORITHMS["fedprox"]


# ------------------------------------------------------------------------------------------ down


def sent(order: TrainOrder, **extra: wire.ConfigValue) -> RecordDict:
    return through(wire.train_content(order, {"arrays": wire.pack_arrays(MODEL)}, extra))


ORDER = TrainOrder(5, {}, {"lr": 0.1, "proximal-mu": 0.3}, ("a", "b/ü"), (0, 2))


def test_an_order_is_read_as_it_was_written() -> None:
    got = wire.read_order(PROX, sent(ORDER, note="x"), Forms(MODEL, ()))
    assert (got.round, got.clients, got.epochs) == (5, ("a", "b/ü"), (0, 2))
    assert got.scalars == {"lr": 0.1, "proximal-mu": 0.3}
    assert sha256(got.arrays["arrays"]) == sha256(MODEL)


def test_an_order_of_somebody_elses_strategy_names_no_clients() -> None:
    got = wire.read_order(AVG, RecordDict({"arrays": wire.pack_arrays(MODEL)}), Forms(MODEL, ()))
    assert (got.round, got.clients, got.epochs, got.scalars) == (0, (), (), {})


def test_extra_entries_cannot_overwrite_what_the_strategy_says() -> None:
    got = wire.read_order(PROX, sent(ORDER, **{"server-round": 99, "lr": 9.0}), Forms(MODEL, ()))
    assert (got.round, got.scalars["lr"]) == (5, 0.1)


def test_a_missing_record_or_scalar_of_an_order_is_named_with_its_meaning() -> None:
    content = sent(ORDER)
    del content["arrays"]
    with pytest.raises(WireError, match=r"'arrays'.*global model") as error:
        wire.read_order(PROX, content, Forms(MODEL, ()))
    assert error.value.field == "arrays"
    content = sent(replace(ORDER, scalars={"lr": 0.1}))
    with pytest.raises(WireError, match=r"'proximal-mu'.*mu of the proximal term") as error:
        wire.read_order(PROX, content, Forms(MODEL, ()))
    assert error.value.field == "proximal-mu"
    assert wire.read_order(AVG, content, Forms(MODEL, ())).clients == ("a", "b/ü")  # FedAvg needs no mu


def test_a_model_of_another_shape_is_refused_on_the_node() -> None:
    like = MODEL | {"1.bias": np.zeros(2, np.float32)}
    with pytest.raises(FieldError) as error:
        wire.read_order(PROX, sent(ORDER), Forms(like, ()))
    assert error.value.field == "arrays/1.bias"


# -------------------------------------------------------------------------------------------- up


def test_a_plain_reply_is_read_as_it_was_written() -> None:
    upload = ClientUpdate({"arrays": MODEL}, {"num-examples": np.int64(7), "train-loss": np.float32(0.5)})
    content = through(wire.reply_content(NodeReply(["a"], {}, upload=upload)))
    assert content.metric_records["metrics"] == MetricRecord({"num-examples": 7, "train-loss": 0.5})
    got = wire.read_reply(content, ["a"], 3)
    assert got.upload is not None
    assert (got.clients, got.partials, got.failed) == (["a"], {}, [])
    assert sha256(got.upload.arrays["arrays"]) == sha256(MODEL)
    assert (got.upload.num_examples, got.scalars["train-loss"]) == (7, [0.5])


def test_a_merged_reply_is_read_as_it_was_written() -> None:
    partials = {"arrays": {"high": MODEL, "low": {"1.bias": np.ones(1)}}, "control": {"high": MODEL}}
    failed = [RejectedReply("c", 3, "arrays/w", "finite numbers", "NaN"), RejectedReply("d", 3, "", "e", "g")]
    reply = NodeReply(["a", "b"], {"num-examples": [1, 2], "gamma": [0.5, 1.0]}, partials, None, failed)
    got = wire.read_reply(through(wire.reply_content(reply)), ["a", "b", "c", "d"], 3)
    assert (got.clients, got.scalars, got.failed) == (reply.clients, reply.scalars, failed)
    assert got.upload is None
    assert {f: {p: sha256(a) for p, a in r.items()} for f, r in got.partials.items()} == {
        f: {p: sha256(a) for p, a in r.items()} for f, r in partials.items()
    }


def test_a_reply_in_which_everybody_failed() -> None:
    failed = [RejectedReply("a", 3, "", "a trained client", "no")]
    got = wire.read_reply(through(wire.reply_content(NodeReply([], {}, {}, None, failed))), ["a"], 3)
    assert (got.clients, got.failed) == ([], failed)


@pytest.mark.parametrize("values", [[1], [1, 2, 3], 1])
def test_lists_that_are_not_one_value_a_client_are_refused(values: Any) -> None:
    content = wire.reply_content(NodeReply(["a", "b"], {"num-examples": [1, 2]}))
    content["metrics"] = MetricRecord({"num-examples": values})
    with pytest.raises(FieldError, match="2 values") as error:
        wire.read_reply(content, ["a", "b"], 1)
    assert error.value.field == "num-examples"


@pytest.mark.parametrize("records", [0, 2])
def test_a_plain_reply_has_one_record_of_metrics_whatever_its_name(records: int) -> None:
    metrics = {f"m{i}": MetricRecord({"num-examples": 1}) for i in range(records)}
    with pytest.raises(FieldError, match="one MetricRecord"):
        wire.read_reply(RecordDict(dict(metrics)), ["a"], 1)
    one = RecordDict({"whatever": MetricRecord({"num-examples": 1})})
    assert wire.read_reply(one, ["a"], 1).scalars == {"num-examples": [1]}


def test_a_quarantine_line_says_who_when_what_and_why() -> None:
    line = RejectedReply("ward-3", 7, "arrays/w", "finite numbers", "NaN")
    assert str(line) == "round 7: client ward-3: field 'arrays/w': expected finite numbers; got NaN"
    assert str(replace(line, field="")) == "round 7: client ward-3: expected finite numbers; got NaN"
    assert line.as_dict() == {
        "client": "ward-3", "round": 7, "field": "arrays/w", "expected": "finite numbers", "got": "NaN",
        "reason": str(line),
    }  # fmt: skip


# --------------------------------------------------------------------------- registration, messages


def test_a_registration_is_read_as_it_was_written() -> None:
    answer = Registration(("b", "a/ü"), np.array([3, 2**40]), "disk", (1, 3), "0.1", (1, 28, 28), 10)
    got = registration.read_registration(through(registration.registration_content(answer)))
    assert (got.clients, got.num_examples.tolist()) == (("b", "a/ü"), [3, 2**40])
    assert (got.pool, got.share, got.version, got.shape, got.classes) == (
        "disk",
        (1, 3),
        "0.1",
        (1, 28, 28),
        10,
    )


def test_a_node_whose_version_is_not_known_says_none() -> None:
    told = registration.Registration(("a",), np.array([3]), pool="")
    got = registration.read_registration(through(registration.registration_content(told)))
    assert (got.pool, got.version) == ("", "")


def test_a_notice_is_one_printable_line_that_is_not_too_long() -> None:
    hostile = RecordDict({LEFT_OUT: ConfigRecord({"reason": "differs\n\x1b[2Jin its columns" + "!" * 9999})})
    why = read_notice(hostile)
    assert why.startswith("differs ?[2Jin its columns!!!")
    assert len(why) == wire.LONGEST_LINE
    assert read_notice(notice_content("differs")) == "differs"
    for content in (RecordDict(), RecordDict({LEFT_OUT: ConfigRecord({"reason": 3})})):
        with pytest.raises(WireError, match="notice: expected a reason as a text"):
            read_notice(content)


def test_a_registration_of_a_million_equal_clients_is_small() -> None:
    counts = np.broadcast_to(np.int64(600), 10**6)
    content = registration.registration_content(Registration(ClientNames(10**6), counts, "disk"))
    assert wire.payload_bytes(content) < 1000
    got = registration.read_registration(through(content))
    assert (len(got.clients), got.clients[-1]) == (10**6, "client-999999")
    assert got.num_examples.shape == (10**6,)
    assert got.num_examples[[0, -1]].tolist() == [600, 600]


def test_a_registration_without_its_parts_or_with_too_few_counts_is_refused() -> None:
    whole = registration.registration_content(Registration(("a", "b", "c"), np.array([1, 2, 3]), "disk"))
    for part in ("roll_call", "metrics"):
        content = RecordDict({k: v for k, v in whole.items() if k != part})
        with pytest.raises(WireError, match="'roll_call' and 'metrics'"):
            registration.read_registration(content)
    whole["metrics"] = MetricRecord({"num-examples": [1, 2]})
    with pytest.raises(WireError, match="expected 3 example counts, or one; got 2"):
        registration.read_registration(whole)


def test_a_message_expires_with_its_round() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    message = wire.message(RecordDict(), 12, "train", 7, 30.0)
    meta = message.metadata
    assert (meta.dst_node_id, meta.message_type, meta.group_id, meta.ttl) == (12, "train", "7", 30.0)


def test_payload_bytes_by_hand() -> None:
    # numbers 8 bytes, truth 1, text its letters, lists their parts, and the names of the entries
    config = ConfigRecord({"lr": 0.1, "on": True, "who": ["ab", ""], "none": [], "s": "xyz", "b": b"12"})
    metrics = MetricRecord({"n": [1, 2], "loss": 0.5})
    scalars = (2 + 8) + (2 + 1) + (3 + 2) + 4 + (1 + 3) + (1 + 2) + (1 + 16) + (4 + 8)
    assert wire.payload_bytes(RecordDict({"config": config, "metrics": metrics})) == scalars
    record = wire.pack_arrays({"w": np.zeros(1000, np.float32)})
    whole = wire.payload_bytes(RecordDict({"arrays": record, "config": config, "metrics": metrics}))
    # 4000 bytes of numbers and a header of NumPy's
    assert 4000 < whole - scalars < 4000 + 300


def test_a_model_that_goes_down_gets_the_dtypes_of_the_node() -> None:
    like = {"w": np.zeros(2, np.float32), "n": np.array(0, np.int64)}
    sent = {"w": np.array([1.5, -2.0]), "n": np.array(30.4)}  # of an optimiser in float64, counters averaged
    got = wire.as_ours(sent, like)
    assert {k: (a.dtype, a.shape) for k, a in got.items()} == {k: (a.dtype, a.shape) for k, a in like.items()}
    assert got["w"].tolist() == [1.5, -2.0]
    assert got["n"] == 30
    assert sent["w"].dtype == np.float64


@pytest.mark.parametrize(
    "bad",
    [
        {"w": np.array([1e300, 0.0]), "n": np.array(0)},
        {"w": np.array([np.nan, 0.0]), "n": np.array(0)},
        {"w": np.zeros(2, np.float32), "n": np.array(np.inf)},
        {"w": np.zeros(2, np.float32), "n": np.array(1e300)},
        {"w": np.zeros(2, np.int64), "n": np.array(0)},
        {"w": np.zeros(3), "n": np.array(0)},
    ],
)
def test_a_model_that_does_not_fit_the_node_is_still_refused(bad: dict[str, np.ndarray]) -> None:
    like = {"w": np.zeros(2, np.float32), "n": np.array(0, np.int64)}
    with pytest.raises(WireError):
        checks.check_arrays("arrays", wire.as_ours(bad, like), like)
