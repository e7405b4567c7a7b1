"""D-PSGD: a quadratic with a known end, push-sum by hand, and what becomes of clients that come and go."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from strategies.engine.loop import measuring
from strategies.engine.state import AggregatedReplies
from strategies.rules import d_psgd
from strategies.rules.client_models import table
from strategies.rules.d_psgd import PeersState, server_update
from task.config.algorithm_sections import DecentralizedPSGDConfig
from task.config.knobs import Config
from task.config.sections import ServerConfig
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.numerics.graphs import links, matrix, mixing
from task.resolve.read import read_config
from task.resolve.validate import check_names
from tests.support.federation import play
from tests.support.personal import keys_of

NAMES = tuple("abcdefgh")


def config(route: str, order: str = "adapt-then-combine") -> Config:
    return Config(algorithm="d-psgd", d_psgd=DecentralizedPSGDConfig(route=route, order=order))


def replies(models: dict[str, Arrays], t: int = 1, names: tuple[str, ...] = NAMES) -> AggregatedReplies:
    clients = tuple(sorted(models))
    stack = {n: np.stack([models[c][n] for c in clients]) for n in models[clients[0]]}
    ones = np.ones(len(clients), np.int64)
    return AggregatedReplies({"arrays": stack}, clients, ones, round=t, names=names, trainable=("w",))


def values(state: PeersState, name: str = "w") -> np.ndarray:
    return np.array([state.models[f"{c}/{name}"] for c in state.weights])


def gossip(
    state: PeersState, rounds: int, of: Config, local: Callable[[np.ndarray], np.ndarray]
) -> tuple[PeersState, float]:
    """Go through rounds in which each node's number x becomes local(x)."""
    distance = 0.0
    for t in range(1, rounds + 1):
        y = local(values(state))
        models = {c: {"w": np.array(v)} for c, v in zip(state.weights, y, strict=True)}
        state, metrics = server_update(state, replies(models, t, tuple(state.weights)), of)
        distance = float(metrics["consensus-distance"])
    return state, distance


def start(numbers: np.ndarray) -> PeersState:
    """Return nodes that begin with different numbers."""
    names = NAMES[: len(numbers)]
    like = {"w": np.array(float(numbers.mean()))}
    models = table(((c, {"w": np.array(float(v))}) for c, v in zip(names, numbers, strict=True)), like)
    return PeersState(like, models, {c: np.ones(()) for c in names})


# ------------------------------------------------------------------------------- closed forms

B = np.arange(8) - 3.5  # f_i(x) = (x - b_i)^2 / 2; the optimum of the sum is 0
ATC, CTA = "adapt-then-combine", "combine-then-adapt"


@pytest.mark.parametrize(
    ("route", "order", "eta", "steps", "want"),
    [
        ("complete", ATC, 0.1, 1, 0.0), ("complete", CTA, 0.1, 1, 0.043388),
        ("hypercube", ATC, 0.1, 1, 0.043388), ("hypercube", ATC, 0.1, 5, 0.443151),
        ("hypercube", ATC, 0.5, 1, 0.583333), ("hypercube", CTA, 0.1, 1, 0.145833),
        ("ring", ATC, 0.1, 1, 0.293333), ("ring", ATC, 0.1, 5, 1.379982), ("ring", ATC, 0.5, 1, 1.595197),
        ("ring", CTA, 0.1, 1, 0.413681), ("ring", CTA, 0.5, 1, 2.022614),
        ("star", ATC, 0.1, 1, 0.593426), ("star", ATC, 0.1, 5, 1.923718), ("star", ATC, 0.5, 1, 2.117284),
        ("star", CTA, 0.1, 1, 0.705821),
    ],
)  # fmt: skip
def test_a_quadratic_ends_at_the_fixed_point(
    route: str, order: str, eta: float, steps: int, want: float
) -> None:
    """Mode j of W ends at lambda eta_e beta_j / (1 - lambda (1 - eta_e)), eta_e = 1 - (1 - eta)^tau, or,
    where the gradient is that of before the mixing, at eta beta_j / (1 - lambda + eta).
    """
    keep = (1 - eta) ** steps
    state, distance = gossip(
        start(np.zeros(8)), 90, config(route, order), lambda x: keep * x + (1 - keep) * B
    )
    assert distance == pytest.approx(want, abs=1e-6)
    lam, u = np.linalg.eigh(matrix(*mixing(links(route, 8), range(8), directed=False)))
    beta = u.T @ B
    modes = lam * (1 - keep) * beta / (1 - lam * keep) if order == ATC else eta * beta / (1 - lam + eta)
    assert values(state) == pytest.approx(u @ modes, abs=1e-6)
    assert float(state.arrays["w"]) == pytest.approx(0, abs=1e-9)  # the mean is that of one machine


def test_mixing_alone_agrees_on_the_mean_at_the_rate_of_the_second_eigenvalue() -> None:
    want = {1: 2.361111, 5: 0.388919, 10: 0.0442975, 20: 0.000574735, 30: 7.4569e-6}
    for rounds, distance in want.items():
        assert gossip(start(B), rounds, config("ring"), lambda x: x)[1] == pytest.approx(distance, rel=1e-5)


def test_push_sum_finds_the_mean_on_a_graph_that_averaging_gets_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 sends to 1 and 2, 1 to 2, 2 to 3, 3 to 0; numbers 1, 2, 3, 10 with mean 4."""
    monkeypatch.setattr(d_psgd, "links", lambda *a: ((1, 2), (2,), (3,), (0,)))
    want = {
        1: [6.4, 1.6, 2.125, 6.5], 5: [3.64041, 4.274315, 4.254729, 3.89365],
        10: [4.012812, 4.016254, 3.995641, 3.986654], 40: [4, 4, 4, 4],
    }  # fmt: skip
    numbers = np.array([1.0, 2.0, 3.0, 10.0])
    for rounds, ratios in want.items():
        state, _ = gossip(start(numbers), rounds, config("directed-ring"), lambda x: x)
        assert values(state) == pytest.approx(ratios, abs=1e-5)
        assert sum(float(w) for w in state.weights.values()) == pytest.approx(4)
        assert float(state.arrays["w"]) == pytest.approx(4)
    shares = [float(w) for w in state.weights.values()]
    assert np.array([3.692308, 2.461538, 4.923077, 4.923077]) / 4 == pytest.approx(shares, abs=1e-5)


# ------------------------------------------------------------------------------- absent clients


def test_who_is_away_keeps_its_model_and_the_others_mix_on_what_is_left() -> None:
    """A ring of four without d is a path a - b - c with weights of 1 / 3."""
    state = start(np.array([1.0, 2.0, 3.0, 10.0]))
    sent = {c: {"w": np.array(v)} for c, v in {"a": 3.0, "b": 6.0, "c": 9.0}.items()}
    after, metrics = server_update(state, replies(sent, names=NAMES[:4]), config("ring"))
    assert values(after).tolist() == pytest.approx([(2 * 3 + 6) / 3, 6, (6 + 2 * 9) / 3, 10])
    assert float(after.arrays["w"]) == pytest.approx((3 + 6 + 9 + 10) / 4)
    mean = 7.0
    assert metrics["consensus-distance"] == pytest.approx(np.mean((np.array([4, 6, 8, 10]) - mean) ** 2))
    assert state.models["a/w"] == 1.0  # states are never written to


def test_a_newcomer_begins_with_the_mean_and_does_not_move_it() -> None:
    state = start(np.array([1.0, 3.0]))
    sent = {c: {"w": np.array(v)} for c, v in {"a": 1.0, "b": 3.0, "c": 2.0}.items()}
    after, _ = server_update(state, replies(sent, names=("a", "b", "c")), config("ring"))
    assert float(after.arrays["w"]) == 2.0
    assert values(after).tolist() == [2.0] * 3


def test_a_newcomer_that_the_route_has_no_place_for_waits_outside(caplog: pytest.LogCaptureFixture) -> None:
    state = start(np.arange(4.0))
    sent = {c: {"w": np.array(5.0)} for c in "abcde"}
    after, _ = server_update(state, replies(sent, names=tuple("abcde")), config("hypercube"))
    assert list(after.weights) == list("abcd")
    assert "new clients e are not part of the graph: a hypercube needs a power of two" in caplog.text
    eight, _ = server_update(after, replies(sent, names=NAMES), config("hypercube"))
    assert list(eight.weights) == list(NAMES)


def test_integers_are_mixed_and_halves_go_up() -> None:
    state = PeersState({"w": np.zeros(2, np.float32), "n": np.array(0)})
    sent = {c: {"w": np.full(2, i, np.float32), "n": np.array(i)} for i, c in enumerate("abc")}
    made, _ = server_update(state, replies(sent, names=("a", "b", "c", "d")), config("directed-ring"))
    assert made.models["b/n"].dtype == np.int64
    assert made.models["b/n"] == 1  # (0 + 1) / 2 = 0.5, halves up


def test_memory_does_not_grow_with_the_clients() -> None:
    """16 and 32 clients of 8 MB each: beyond 64 MB the models lie in a file."""
    like = {"w": np.zeros(1 << 21, np.float32)}

    def peak(clients: int) -> int:
        tracemalloc.start()
        held = table(((f"{i}", {"w": np.full(1 << 21, i, np.float32)}) for i in range(clients)), like)
        assert float(held[f"{clients - 1}/w"][0]) == clients - 1
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(32) < peak(16) + (8 << 20)


# ----------------------------------------------------------------------------------- in runs


def test_a_number_of_clients_that_the_route_has_no_graph_for_is_refused_before_round_1(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r'"num-clients": a torus .* nearest to 7: 6 or 8.*got 7'):
        check_names(read_config({"algorithm": "d-psgd", "d-psgd.route": "torus", "num-clients": 7}))
    keys = keys_of(tmp_path, "d-psgd", d_psgd__route="hypercube")
    with pytest.raises(ConfigError, match=r'"d-psgd.route": 5 clients are online .* 4 or 8'):
        play(keys)  # natural owners: nobody knows their number before they are there
    with pytest.raises(ConfigError, match=r"nothing in this run reads it"):
        read_config({"algorithm": "d-psgd", "d-psgd.degree": 4})


def test_what_is_measured_of_a_rounds_models() -> None:
    server = ServerConfig(evaluate_every=2, num_server_rounds=5)
    seen: list[int] = []

    def evaluate(t: int, record: object) -> dict[str, float]:
        seen.append(t)
        return {"loss": 0.5, "accuracy": 0.25, "other": 1.0}

    made = [measuring(evaluate, server, t)({"w": np.zeros(1)}) for t in range(1, 6)]  # type: ignore[arg-type]
    assert seen == [2, 4, 5]
    assert made[1] == {"loss": 0.5, "accuracy": 0.25}
    assert made[0] == measuring(None, server, 2)({}) == {}
