"""Numbers that go up beside arrays: which of them describe what a later stage may change.

A codec, an attack or rounding changes the arrays after the solver is done. A scalar that is a norm of them
must be that of what is sent; any other must be a property of the loss, the data or the steps, which no stage
moves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strategies.engine.state import AggregatedReplies, ServerState
from strategies.rules.fedexp import FedExP, server_update
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.numerics.arrays import squared_norm
from tests.support.federation import owners_config, play, write_owners

OF_LOSS_DATA_OR_STEPS = {
    "beta": "compares gradients at the client's own last model and at the received one",
    "cluster": "the number of the received model that was trained",
    "gamma": "inexactness of the local steps",
    "lipschitz": "a bound on the curvature of F_k^(q+1), from gradient and loss at the received model",
    "loss-before": "the loss of the received model",
    "rho": "compares losses of the client's own last model and of the received one",
    "step-seconds": "a time",
    "step-weight": "how many local steps, and their weights",
}


def contracts(entry: Algorithm) -> list[Algorithm]:
    return [entry, *(p for phase in entry.phases.values() for p in contracts(phase))]


@pytest.mark.parametrize("name", [n for n, entry in ALGORITHMS.items() if not entry.vertical])
def test_every_scalar_is_of_a_record_that_is_sent_or_of_nothing_that_a_stage_changes(name: str) -> None:
    for contract in contracts(ALGORITHMS[name]):
        for scalar in contract.up_scalars:
            if scalar.square_of:
                assert scalar.square_of in {r.name for r in contract.up}
            else:
                assert scalar.name in OF_LOSS_DATA_OR_STEPS, f"{name}: say what {scalar.name!r} is of"


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"codec__up": "rand-k", "codec__keep": 0.2},
        {"codec__up": "top-k", "codec__keep": 0.2},
        {"attack__kind": "scale", "attack__fraction": 1.0, "attack__scale": 3.0},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())) or "plain",
)
def test_the_norm_of_one_client_is_that_of_the_update_that_the_server_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """Of one client the mean is its update: |Delta|^2 and the mean of |Delta_k|^2 are one number."""
    seen: list[tuple[float, float]] = []

    def update(state: ServerState, reduced: AggregatedReplies, config: Any) -> Any:
        sent = reduced.arrays["arrays"]
        moved = {n: sent[n].astype(float) - state.arrays[n].astype(float) for n in reduced.trainable}
        seen.append((reduced.needed("square-norm"), squared_norm(moved)))
        return server_update(state, reduced, config)

    monkeypatch.setattr(FedExP, "update", staticmethod(update))
    file = tmp_path / "owners.npz"
    write_owners(file)
    state = str(tmp_path / "state")
    play(owners_config(file, algorithm="fedexp", fraction_train=0.2, state_dir=state, **keys))
    assert len(seen) == 4
    for said, sent in seen:
        assert said == pytest.approx(sent, rel=1e-4)
        assert sent > 0
