"""FedCM, FedACG, Mime and MimeLite on two parabolas by hand: three rounds, and where they rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from strategies.engine.state import AggregatedReplies
from strategies.rules import fedacg, fedcm, mime
from task.config.algorithm_sections import FedACGConfig, FedCMConfig, MimeConfig
from task.config.knobs import Config
from tests.support.rules import w

SLOPES = (lambda x: x, lambda x: 3 * (x - 4))  # of F_1 = x^2/2 and F_2 = 3(x - 4)^2/2
ETA, TAU = 0.1, 2


def number(x: float) -> dict[str, np.ndarray]:
    return w(x, dtype=np.float64)


def rounds(
    state: Any,
    config: Config,
    update: Callable[..., Any],
    play: Callable[[Any], dict[str, float]],
    count: int,
) -> list[float]:
    """Return w^1, w^2, ...; `play` returns the means of what clients send, by record."""
    path = []
    for _ in range(count):
        means = {name: number(x) for name, x in play(state).items()}
        replies = AggregatedReplies(
            means, ("a", "b"), np.array([1, 1]), {"step-weight": [TAU, TAU]}, 1, ETA, ("w",)
        )
        state, _ = update(state, replies, config)
        path.append(float(state.arrays["w"][0]))
    return path


def local(start: float, direction: Callable[[Callable[[float], float], float], float]) -> float:
    """Return the mean of the two clients' models after their steps."""
    ends = []
    for slope in SLOPES:
        x = start
        for _ in range(TAU):
            x -= ETA * direction(slope, x)
        ends.append(x)
    return sum(ends) / 2


@pytest.mark.parametrize(
    ("beta", "first", "rest"),
    [
        (0.0, [1.02, 2.246550, 3.157926], 2.9142857),
        (0.002, [1.01988, 2.246361, 3.157777], 2.9142759),
    ],
)
def test_fedacg(beta: float, first: list[float], rest: float) -> None:
    config = Config(fedacg=FedACGConfig(beta=beta))

    def play(state: Any) -> dict[str, float]:
        y = float(fedacg.ahead(state, config.fedacg.lambda_)["w"][0])
        return {"arrays": local(y, lambda slope, x: slope(x) + beta * (x - y))}

    state = fedcm.MomentumState(number(0), number(0))
    path = rounds(state, config, fedacg.server_update, play, 300)
    assert path[:3] == pytest.approx(first, abs=1e-6)
    assert path[-1] == pytest.approx(rest, abs=1e-7)


def test_fedcm() -> None:
    config = Config(fedcm=FedCMConfig(alpha=0.1))

    def play(state: Any) -> dict[str, float]:
        m = float(state.momentum["w"][0])
        return {"arrays": local(float(state.arrays["w"][0]), lambda slope, x: 0.1 * slope(x) + 0.9 * m)}

    path = rounds(fedcm.MomentumState(number(0), number(0)), config, fedcm.server_update, play, 2000)
    assert path[:3] == pytest.approx([0.1182, 0.337047, 0.636927], abs=1e-6)
    assert path[-1] == pytest.approx(2.9924051, abs=1e-7)


@pytest.mark.parametrize(
    ("lite", "beta", "first", "rest"),
    [
        (True, 0.9, [0.1182, 0.338651, 0.642410], 2.9992422),
        (False, 0.9, [0.1188, 0.339816, 0.644073], 3.0),
        (False, 0.0, [1.08, 1.7712, 2.213568], 3.0),
    ],
)
def test_mime(lite: bool, beta: float, first: list[float], rest: float) -> None:
    config = Config(mime=MimeConfig(beta=beta))

    def update(state: Any, replies: AggregatedReplies, config: Config) -> Any:
        if lite:
            return mime.lite_update(state, replies, config)
        c = replies.arrays.pop("gradient")  # of the phase before
        return mime.server_update(mime.MimeState(state.arrays, state.momentum, c), replies, config)

    def play(state: Any) -> dict[str, float]:
        start, m = float(state.arrays["w"][0]), float(state.momentum["w"][0])
        c = sum(slope(start) for slope in SLOPES) / 2

        def direction(slope: Callable[[float], float], x: float) -> float:
            g = slope(x) if lite else slope(x) - slope(start) + c
            return (1 - beta) * g + beta * m

        return {"arrays": local(start, direction), "gradient": c}

    path = rounds(mime.MimeState(number(0), number(0)), config, update, play, 2000)
    assert path[:3] == pytest.approx(first, abs=1e-6)
    assert path[-1] == pytest.approx(rest, abs=1e-6)
