"""Client-level privacy under secure aggregation: noise is added to the very integers that masks hid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies.stages.privacy import Privacy
from task.errors import ConfigError
from task.privacy.accounting import epsilon, joined
from task.privacy.bounded_integers import CLIP, GRID, exponent
from task.privacy.noise import Stream
from task.privacy.shares import share
from task.secagg.server import Aggregation
from task.secagg.vector import Vector, as_limbs
from tests.privacy.test_central import RUNS, Ledger, keys_of, run
from tests.strategies.test_secure import Losing, losing
from tests.support.federation import write_owners

TEN = {f"owner-{i}": 5 + 3 * i for i in range(10)}


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz", TEN)
    return tmp_path / "owners.npz"


@pytest.mark.parametrize("name", [*RUNS, "adaptive"])
def test_the_models_are_those_of_the_private_run_without_masks(name: str, owners: Path) -> None:
    more = {"dp__clip_quantile": 0.5, "dp__noise": 0.4} if name == "adaptive" else RUNS[name]
    keys = keys_of(owners, num_server_rounds=3, **more)
    plain, masked = run(keys, nodes=3), run(keys | {"secagg": True}, nodes=3)
    for row, want in zip(masked.rows, plain.rows, strict=True):
        for key in ("model_sha256", "epsilon", "dp_clip", "quarantined"):
            assert row.get(key) == want.get(key), key
    assert len({row["model_sha256"] for row in plain.rows}) == 4


@pytest.mark.parametrize(
    ("bits", "more"), [(32, {}), (64, {"dp__clip_quantile": 0.5, "dp__noise": 0.4})], ids=str
)
def test_the_models_are_the_same_with_fewer_bits(bits: int, more: dict[str, Any], owners: Path) -> None:
    """The updates are integers anyway, and need no grid of their own."""
    keys = keys_of(owners, num_server_rounds=2, **more)
    plain, masked = run(keys, nodes=3), run(keys | {"secagg": True, "secagg-bits": bits}, nodes=10)
    assert [r["model_sha256"] for r in masked.rows] == [r["model_sha256"] for r in plain.rows]


def test_more_clients_than_the_bits_have_room_for_are_refused(owners: Path) -> None:
    """2^21 / 2^-9 = 2^30: of two of them a sum of 32 bits is full."""
    keys = keys_of(owners, dp__noise=2.0**-9, secagg=True, secagg_bits=32)
    with pytest.raises(ConfigError, match=r"room for updates of 1 clients .* got 10. Set secagg-bits to 64"):
        run(keys, nodes=3)


NODES = {"secagg": True, "dp__noise_by": "nodes", "fraction_train": 1.0}


def by_nodes(owners: Path, **more: Any) -> dict[str, Any]:
    return keys_of(owners, **{"num_server_rounds": 1, **NODES, **more})


class Opening(Losing):
    """Keeps what the server asks for, so that it can be seen which sums were opened."""

    def _deliver(self, message: Message) -> Message | None:
        self.asked = getattr(self, "asked", [])
        self.asked.append(message.metadata.message_type)
        return super()._deliver(message)


@pytest.mark.parametrize(("nodes", "colluding", "lost"), [(4, 1, 0), (4, 2, 1), (10, 1, 3)])
def test_the_noise_of_the_nodes_that_are_left_is_enough(
    nodes: int, colluding: int, lost: int, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server opens is the plain sum, and noise of (n - lost) / (t - c) times the variance stated."""
    keys = by_nodes(owners, model="mlp", dp__colluding=colluding, round_timeout=2.0)
    grid = losing(lambda node, kind, t: node < lost and kind == "train")
    opened: list[np.ndarray] = []
    take = Aggregation.take_unmask

    def spy(self: Aggregation, shares: Any) -> Vector:
        made = take(self, shares)
        high, low = as_limbs(made.low, made.high)
        opened.append((high << 31) + low)
        return made

    monkeypatch.setattr(Aggregation, "take_unmask", spy)
    noised = run(keys, nodes=nodes, grid_type=grid)
    monkeypatch.setattr(Stream, "integers", lambda self, size, std: np.zeros(size, np.int64))
    plain = run(keys, nodes=nodes, grid_type=grid)
    off = (opened[0] - opened[1]).astype(float)
    std = 0.3 * 2.0 ** exponent(0.3)  # z = 1, C = 0.3
    least = 2 * nodes // 3 + 1
    want = std * ((nodes - lost) / (least - colluding)) ** 0.5
    assert off.size > 500
    assert off.std() == pytest.approx(want, rel=4 / (2 * off.size) ** 0.5)
    assert abs(off.mean()) < 4 * want / off.size**0.5
    left = (least - colluding) * share(std, least, colluding) ** 2
    assert left == pytest.approx(std**2)
    # The model is what was opened, by the clients to be expected; nothing is added on the server.
    moved = np.concatenate([a.reshape(-1) for _, a in sorted(noised.arrays(1).items())])
    still = np.concatenate([a.reshape(-1) for _, a in sorted(plain.arrays(1).items())])
    assert moved - still == pytest.approx(off * 2.0 ** -exponent(0.3) / len(TEN), abs=1e-5)


def test_each_attempt_has_noise_of_its_own_and_one_line(owners: Path) -> None:
    """What was released is released again and nothing is opened; if it is lost, another sum is paid for."""
    keys, first = by_nodes(owners, num_server_rounds=2), Ledger()
    run(keys, first, nodes=3)
    again = Ledger(before=first, restore=first.snapshots[1])
    grid: Any = run(keys, again, nodes=3, grid_type=Opening).grid
    for key in ("model_sha256", "epsilon", "quarantined"):
        assert again.rows[-1][key] == first.rows[2][key], key
    assert "train" in grid.asked
    assert "query.secagg_unmask" not in grid.asked
    lost = Ledger(before=first, restore=first.snapshots[1], forgets=True)
    run(keys, lost, nodes=3)
    assert lost.rows[-1]["model_sha256"] != first.rows[2]["model_sha256"]
    assert [line["round"] for line in lost.released()] == [0, 1, 2, 2]
    assert lost.rows[-1]["epsilon"] == epsilon([(1.0, 1.0), (1.0, joined([1.0, 1.0]))], 0.01)


def test_epsilon_counts_no_cohort_as_secret(owners: Path) -> None:
    """The server draws the cohorts, so that it knows whom a sum is of."""
    rows = run(by_nodes(owners, fraction_train=0.9), nodes=3).rows
    assert rows[1]["epsilon"] == pytest.approx(epsilon([(1.0, 1.0)], 0.01))


def test_a_sum_that_would_cost_too_much_is_not_opened(owners: Path) -> None:
    limit = epsilon([(1.0, 1.0)] * 2, 0.01) + 1e-6
    keys, first = by_nodes(owners, num_server_rounds=2, dp__max_epsilon=limit), Ledger()
    run(keys, first, nodes=3)
    again = Ledger(before=first, restore=first.snapshots[1], forgets=True)
    grid: Any = run(keys, again, nodes=3, grid_type=Opening).grid
    assert not first.rows[2]["skipped"]
    assert again.rows[-1]["skipped"]
    assert "query.secagg_unmask" not in grid.asked
    assert again.released()[:3] == first.released()


def test_a_round_that_cannot_be_opened_keeps_the_model_and_costs_nothing(owners: Path) -> None:
    keys = by_nodes(owners, num_server_rounds=2, round_timeout=1.0)
    rows = run(keys, nodes=4, grid_type=losing(lambda node, kind, t: node < 2 and t == 1)).rows
    assert rows[1]["model_sha256"] == rows[0]["model_sha256"] != rows[2]["model_sha256"]
    assert rows[1]["epsilon"] == 0
    assert rows[2]["epsilon"] == pytest.approx(epsilon([(1.0, 1.0)], 0.01))


def test_a_server_that_asks_for_more_than_the_noise_is_for_gets_nothing(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = {CLIP: 0.6, GRID: exponent(0.3)}, {CLIP: 0.3, GRID: exponent(0.3) + 8}
    for scalars in wider:
        monkeypatch.setattr(Privacy, "scalars", lambda self, scalars=scalars: scalars)
        bad = run(by_nodes(owners), nodes=3).rows[1]["quarantined"]
        assert len(bad) == len(TEN)
