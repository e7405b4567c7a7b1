"""A deployed run's grid: packed on the way, the same for everybody else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from client_app.app import make_app
from strategies import FedAvg
from strategies.transport.packed import PackingGrid
from task.config.read import as_run_config
from task.resolve.read import read_config
from task.wire import messages as wire
from task.wire import registration
from task.wire.packing import FORM, is_packed
from tests.strategies.test_base import model, named_grid
from tests.support.apps import stock_app
from tests.support.federation import Keep
from tests.support.grid import LocalGrid


class Wiretap(LocalGrid):
    """Keeps what it carries."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        given = list(messages)
        self.down = [*getattr(self, "down", []), *(m.content for m in given)]
        return super().push_messages(given)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.up = [*getattr(self, "up", []), *(r.content for r in replies if r.has_content())]
        return replies


def digits_grid(**more: Any) -> Wiretap:
    keys = as_run_config(read_config({"dataset": "digits", "num-clients": 4, "model": "logistic"}))
    shares = [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    return Wiretap(make_app(simulation=True), shares, keys, **more)


def start() -> ArrayRecord:
    return wire.pack_arrays({"1.weight": np.zeros((10, 64), np.float32), "1.bias": np.zeros(10, np.float32)})


def test_a_run_is_the_same_and_every_record_of_it_is_one_array() -> None:
    plain, tapped = digits_grid(), digits_grid()
    config = read_config({"dataset": "digits", "num-clients": 4, "model": "logistic"})
    one = FedAvg(config).start(plain, start(), num_rounds=2)
    two = FedAvg(config).start(cast(Grid, PackingGrid(tapped)), start(), num_rounds=2)
    assert (
        wire.read_arrays(one.arrays)["1.weight"].tobytes()
        == wire.read_arrays(two.arrays)["1.weight"].tobytes()
    )
    assert one.train_metrics_clientapp == two.train_metrics_clientapp
    down = [c for c in tapped.down if c.array_records]
    up = [c for c in tapped.up if c.array_records]
    assert len(down) == len(up) == 4
    assert {len(r) for c in [*down, *up] for r in c.array_records.values()} == {1}
    assert all(is_packed(c) for c in [*down, *up])
    assert not any(is_packed(c) for c in [*plain.down, *plain.up])


def test_a_model_that_goes_to_many_is_one_record_and_the_messages_are_left_as_they_were() -> None:
    grid = digits_grid()
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, ("client-0",), (1,))
    content = wire.train_content(order, {"arrays": start()}, {})
    messages = [wire.message(content, node, "train", 1, 60.0) for node in grid.contexts]
    before = [m.content for m in messages]
    ids = list(PackingGrid(grid).push_messages(messages))
    assert ids == [m.metadata.message_id for m in messages]
    assert all(m.content is b for m, b in zip(messages, before, strict=True))
    assert len({id(c["arrays"]) for c in grid.down}) == 1


def test_somebody_elses_nodes_get_plain_records() -> None:
    app = stock_app(lambda c: (1.0, 1))
    grid = Wiretap(app, [{}, {}])
    FedAvg().start(cast(Grid, PackingGrid(grid)), model(), num_rounds=1)
    assert not any(is_packed(c) for c in grid.down)


def test_a_reply_that_cannot_be_unpacked_is_that_nodes_own() -> None:
    def run(form: str) -> tuple[list[float], list[str]]:
        def tamper(node: int, reply: Message) -> Message:
            if node == 0:
                reply.content["arrays"] = ArrayRecord({"": Array("uint8", (1,), form, b"\xff" * 9)})
            return reply

        grid, keep = named_grid(3, tamper=tamper), Keep()
        strategy = FedAvg()
        result = strategy.start(
            cast(Grid, PackingGrid(grid)), model(), num_rounds=1, timeout=20.0, journal=keep
        )
        return wire.read_arrays(result.arrays)["w"].tolist(), [str(line) for line in keep.lines]

    (broken, lines), (other, _) = run(FORM), run("pickle")
    assert broken == other != [0.0, 1.0]
    assert lines
    assert all("packed record" in line for line in lines)


def test_other_messages_pass() -> None:
    grid = digits_grid()
    query = Message(
        RecordDict({"config": ConfigRecord({})}), next(iter(grid.contexts)), "query.roll_call", ttl=60.0
    )
    with pytest.raises(AttributeError):
        PackingGrid(grid).nonsense  # noqa: B018
    (sent,) = PackingGrid(grid).push_messages([query])
    (reply,) = PackingGrid(grid).pull_messages([sent])
    assert registration.read_registration(reply.content).clients
