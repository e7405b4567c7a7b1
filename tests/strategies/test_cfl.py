"""CFL's cut by hand, its cap, and who is where; `tests.reference.cfl` has whole runs."""

from __future__ import annotations

import numpy as np

from strategies.engine.state import AggregatedReplies
from strategies.rules.cfl import CFLState, home, server_update, sizes
from task.config.knobs import Config
from task.config.personal_sections import CFLConfig

START = CFLState({"w": np.zeros(2)}, {"model-0/w": np.zeros(2)})
TWO_WAYS = np.array([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])


def after(
    stack: np.ndarray = TWO_WAYS, state: CFLState = START, names: str = "abcd", t: int = 21, **cfl: float
) -> CFLState:
    came = AggregatedReplies(
        {"arrays": {"w": stack}}, tuple(names), np.ones(len(names), np.int64), round=t, trainable=("w",)
    )
    config = Config(cfl=CFLConfig(**{"epsilon2": 0.5, **cfl}))  # type: ignore[arg-type]
    return server_update(state, came, config)[0]


def members(state: CFLState) -> dict[str, int]:
    return {client: int(c[0]) for client, c in state.members.items()}


def test_a_cut_by_hand() -> None:
    cut = after()
    assert members(cut) == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert cut.models["model-0/w"].tolist() == [1, 0]
    assert cut.models["model-1/w"].tolist() == [-1, 0]
    assert sizes(cut) == [2, 2]
    assert cut.arrays["w"].tolist() == [1, 0]  # the first of the largest


def test_what_keeps_a_cluster_whole() -> None:
    for more in (
        {"t": 20}, {"epsilon1": 0.0}, {"epsilon2": 1.0}, {"clusters": 1},
        {"stack": TWO_WAYS[1:3], "names": "bc"},  # two clients are not cut
        {"stack": TWO_WAYS + np.array([3.0, 0])},  # they agree
        {"state": CFLState(START.arrays, START.models, {"z": np.array([0])})},  # z did not answer
    ):  # fmt: skip
        assert sizes(after(**more))[1:] == []  # type: ignore[arg-type]


def test_a_new_client_goes_to_the_largest_cluster_and_stays() -> None:
    cut = after(np.array([[1.0, 0], [-1, 0], [-1, 0.1]]), names="abc")
    assert (members(cut), home(cut, "new")) == ({"a": 0, "b": 1, "c": 1}, 1)
    later = after(np.array([[5.0, 0]]), cut, names="x")
    assert members(later) == {"a": 0, "b": 1, "c": 1, "x": 1}
    assert later.models["model-1/w"].tolist() == [5, 0]
    assert later.models["model-0/w"].tolist() == [1, 0]  # nobody trained it
