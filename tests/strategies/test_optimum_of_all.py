"""Two of five clients join in round 10: a run still ends at the optimum of all five.

What the server holds as a mean over the clients is made smaller when some join. Were it not, the run would
end elsewhere for good: with SCAFFOLD, FedDyn and FedDC the mean gradient is 3.0e-2, 1.4e-2 and 2.5e-2 then,
with it 8.6e-4, 2.4e-6 and 2.4e-6, and undisturbed 8.7e-4, 1.9e-6 and 1.5e-6.
"""

from pathlib import Path

import numpy as np
import pytest

from task import timing
from tests.support.federation import (
    Played,
    linear,
    loss_and_gradient,
    owners_config,
    play,
    read_by,
    write_owners,
)
from tests.support.joining import joining

CLIENTS, LATE, JOINED, ROUNDS = "abcde", "be", 10, 160


def mean_gradient(folder: Path, algorithm: str, late: str) -> tuple[float, Played]:
    """Return the norm of the mean of the clients' gradients at the last model."""
    data = write_owners(folder / "owners.npz", dict.fromkeys(CLIENTS, 20))
    keys = {
        "num_classes": 3, "fraction_train": 1.0, "local_epochs": 5, "batch_size": 0, "learning_rate": 0.2,
        "state_dir": str(folder / "state"), "run_name": "optimum", "num_server_rounds": ROUNDS,
        "feddyn__alpha": 0.1, "feddc__alpha": 0.1,
    }  # fmt: skip
    there = joining(folder, data, lambda client, t: client not in late or t >= JOINED)
    given = read_by(owners_config(folder / "owners.npz", algorithm=algorithm, **keys))
    played = play(given, grid_type=there)
    at = linear(played.arrays(ROUNDS))
    gradients = [loss_and_gradient(at, *rows)[1] for rows in data.values()]
    means = [np.mean(parts, axis=0) for parts in zip(*gradients, strict=True)]
    return float(np.sqrt(sum((m**2).sum() for m in means))), played


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "feddc"])
def test_who_joins_late_does_not_move_the_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)
    (tmp_path / "all").mkdir()
    (tmp_path / "late").mkdir()
    undisturbed, _ = mean_gradient(tmp_path / "all", algorithm, "")
    joined, played = mean_gradient(tmp_path / "late", algorithm, LATE)
    assert [len(played.rows[t]["selected"]) for t in (JOINED - 1, JOINED + 1)] == [3, 5]
    assert undisturbed < 2e-3
    assert joined < 2 * undisturbed
