"""``fedala.write-weights = true``: how much of the global model each client takes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.results.plots import ala_weights
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.support.federation import Played, owners_config, play, write_owners


def played(folder: Path, **keys: Any) -> Played:
    write_owners(folder / "owners.npz")
    config = owners_config(folder / "owners.npz", algorithm="fedala", fraction_train=1.0, **keys)
    return play(config)


def weights(of: Played) -> list[float]:
    lines = (line for line in of.keep.clients if line["phase"] == "train")
    return [line["metrics"]["ala-weight"] for line in lines]


def test_weights_that_do_not_move_are_one_and_others_lie_below(tmp_path: Path) -> None:
    """By eq. 6 W begins at one, and moves by eta; in the first round there is nothing to mix."""
    still = weights(played(tmp_path, fedala__write_weights=True, fedala__eta=0.0))
    assert set(still) == {1.0}
    run = played(tmp_path, fedala__write_weights=True)
    clients = len({line["name"] for line in run.keep.clients if line["phase"] == "train"})
    assert set(weights(run)[:clients]) == {1.0}
    assert min(weights(run)[clients:]) < 1.0
    (plot,) = ala_weights(run.keep.clients)
    heights = [point.y for point in plot.series[0].points]
    assert heights == sorted(weights(run)[-clients:])
    without = played(tmp_path).arrays(-1)
    assert all(np.array_equal(a, without[n]) for n, a in run.arrays(-1).items())  # it changes no model


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"secagg": True}, "no client's own numbers"),
        ({"algorithm": "fedavg"}, "nothing in this run reads it"),
    ],
    ids=str,
)
def test_it_is_refused_where_it_tells_nothing_or_must_not_be_seen(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_config({"algorithm": "fedala", "fedala.write-weights": True, **keys})
