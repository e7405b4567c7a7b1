"""``norms = true``: the norm of each client's update."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from task.errors import ConfigError
from task.resolve.read import read_config
from tests.support.federation import owners_config, play, write_owners


def test_it_is_how_far_the_only_client_moved_the_model(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    played = play(owners_config(tmp_path / "owners.npz", norms=True, fraction_train=0.2))
    line = next(line for line in played.keep.clients if line["phase"] == "train")
    moved = [(a.astype(float) - played.arrays(0)[n]).ravel() for n, a in played.arrays(1).items()]
    assert line["metrics"]["update-norm"] == pytest.approx(np.linalg.norm(np.concatenate(moved)), rel=1e-5)


@pytest.mark.parametrize("keys", [{"secagg": True}, {"dp.noise": 1.0}, {"algorithm": "fedproto"}])
def test_it_is_refused_where_a_clients_number_must_not_be_seen(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r'"norms": (under .* no client|the clients of "fedproto" send)'):
        read_config({"norms": True, **keys})
