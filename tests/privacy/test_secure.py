"""Client-level privacy under secure aggregation: noise is added to the very integers that masks hid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.config.read import read_config
from task.errors import ConfigError
from task.resolve.validate import check_names
from tests.privacy.test_central import RUNS, keys_of, run
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


def test_the_steps_of_each_client_cannot_be_masked(owners: Path) -> None:
    keys = keys_of(owners, dp__unit="example", secagg=True)
    with pytest.raises(ConfigError, match="the private steps of each client, which masks would hide"):
        check_names(read_config(keys))
