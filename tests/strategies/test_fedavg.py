"""FedAvg: the rule by hand, and the whole pipeline against the paper's pseudo-code in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from strategies import FedAvg
from strategies.engine.state import ServerState
from strategies.rules.fedavg import server_update
from task.config.knobs import Config
from task.wire import messages as wire
from tests.support.apps import adds, named_app
from tests.support.federation import owners_config, play, write_owners
from tests.support.grid import LocalGrid
from tests.support.rules import reduced, w


def test_the_new_model_is_the_mean_weighted_by_examples() -> None:
    # (1*2 + 3*6) / 4 = 5;  (1*(-4) + 3*0) / 4 = -1; the old model plays no part
    state = ServerState(w(100, 100))
    new, metrics = server_update(state, reduced("fedavg", {"a": (w(2, -4), 1), "b": (w(6, 0), 3)}), Config())
    assert new.arrays["w"].tolist() == [5.0, -1.0]
    assert new.arrays["w"].dtype == np.float32
    assert metrics == {}
    assert state.arrays["w"].tolist() == [100.0, 100.0]  # pure


def test_clients_that_are_not_there_have_no_weight() -> None:
    # the paper's erratum: n_S is that of the cohort. One client of many: its model, not a share of it.
    new, _ = server_update(ServerState(w(7)), reduced("fedavg", {"a": (w(2), 5)}), Config())
    assert new.arrays["w"].tolist() == [2.0]


def test_integer_buffers_are_averaged_as_integers_and_stay_so() -> None:
    # (1*10 + 3*21) / 4 = 18.25 -> 18
    def model(count: int) -> dict[str, np.ndarray]:
        return w(0) | {"seen": np.array(count, np.int64)}

    new, _ = server_update(
        ServerState(model(0)), reduced("fedavg", {"a": (model(10), 1), "b": (model(21), 3)}), Config()
    )
    assert (new.arrays["seen"].dtype, new.arrays["seen"].shape) == (np.int64, ())
    assert int(new.arrays["seen"]) == 18


def test_dropped_stragglers_are_not_in_the_mean(tmp_path: Path) -> None:
    """In it are the others: `tests.reference.fedavg`."""
    write_owners(tmp_path / "owners.npz")
    played = play(owners_config(tmp_path / "owners.npz", stragglers=0.5, drop_stragglers=True))
    # round(0.5 * 5) = 2 of five are left out
    assert [(len(r["selected"]), r["asked"], r["answered"]) for r in played.rows[1:]] == [(5, 3, 3)] * 4


def test_the_learning_rate_of_each_round_reaches_the_clients(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    played = play(owners_config(tmp_path / "owners.npz", learning_rate=0.4, lr_decay=0.5))
    # eta_t = 0.4 * 0.5^(t-1)
    sent = {m.content["config"]["server-round"]: m.content["config"]["lr"] for m in played.messages()}
    assert sent == {1: 0.4, 2: 0.2, 3: 0.1, 4: 0.05}
    assert [row["lr"] for row in played.rows] == [None, 0.4, 0.2, 0.1, 0.05]


def one_node(**knobs: Any) -> tuple[FedAvg, LocalGrid]:
    app = named_app(lambda context: {"a": 1}, adds({"a": 1.0}, {"a": 1}))
    return FedAvg(**knobs), LocalGrid(app, [{}])


def test_a_learning_rate_in_train_config_is_what_the_row_tells() -> None:
    from tests.support.federation import Keep

    strategy, grid = one_node()
    keep = Keep()
    lr = ConfigRecord({"lr": 0.025})
    strategy.start(grid, wire.pack_arrays(w(0)), num_rounds=1, train_config=lr, journal=keep)
    assert keep.rows[1]["lr"] == 0.025


def test_knobs_given_to_the_strategy_hold() -> None:
    # Flower's arguments have defaults of their own, which must not silently win over a knob.
    strategy, grid = one_node(round_timeout=7.5)
    strategy.start(grid, wire.pack_arrays(w(0)), num_rounds=1)
    (message,) = (m for m in grid.sent if m.metadata.message_type == "train")
    assert message.metadata.ttl == 7.5
