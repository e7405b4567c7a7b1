"""A knob of an algorithm or a policy outside its range is refused, with its key and the range."""

from __future__ import annotations

import pytest

from task.errors import ConfigError
from task.resolve.read import read_config

OUTSIDE: dict[str, list[tuple[str, float | str, str]]] = {
    "adaptive-tau": [
        ("adaptive-tau.budget", 0.0, "float > 0"),
        ("adaptive-tau.phi", 0.0, "float > 0"),
        ("adaptive-tau.tau-max", 0, "int >= 1"),
        ("adaptive-tau.round-cost", 0.0, "float > 0"),
        ("adaptive-tau.step-cost", -1.0, "float >= 0"),
        ("adaptive-tau.resource", "joules", "one of bytes, model, seconds"),
    ],
    "apple": [
        ("apple.dr-lr", -0.1, "float >= 0"), ("apple.mu", -1.0, "float >= 0"),
        ("apple.decay-rounds", -1, "int >= 0"),
    ],
    "fedamp": [
        ("fedamp.alpha", 0.0, "float > 0"), ("fedamp.sigma", 0.0, "float > 0"),
        ("fedamp.lambda", -1.0, "float >= 0"),
    ],
    "feddyn": [("feddyn.alpha", -1.0, "float >= 0")],
    "fedfomo": [
        ("fedfomo.download", -1, "int >= 0"), ("fedfomo.epsilon", 1.1, "float >= 0 and <= 1"),
        ("fedfomo.validation", 0.0, "float > 0"),
    ],
    "fednova": [("fednova.mu", -1.0, "float >= 0")],
    "nbafl": [
        ("nbafl.epsilon", 0.0, "float > 0"), ("nbafl.clip", 0.0, "float > 0"),
        ("nbafl.delta", 0.0, "float > 0"),
    ],
    "qfedavg": [("qffl.q", q, "float >= 0 and <= 100") for q in (-0.1, float("nan"), 101.0)],
    "scaffold": [
        ("scaffold.option", "III", "one of I, II"), ("scaffold.server-lr", 0.0, "float > 0"),
    ],
    "trimmed-mean": [
        ("robust.byzantine", -0.1, "float >= 0"),
        ("robust.trim", 0.5, "float >= 0 and < 0.5"),  # trimming everything
        ("robust.trim", -0.1, "float >= 0 and < 0.5"),
        ("robust.m", -1, "int >= 0"), ("robust.nu", 0.0, "float > 0"), ("robust.iterations", 0, "int >= 1"),
    ],
    "fedavg": [
        ("attack.fraction", 1.1, "float >= 0 and <= 1"), ("attack.scale", -1.0, "float >= 0"),
        ("select.candidates", -1, "int >= 0"), ("select.losses", "ask", "one of last, query"),
        ("select.deadline", 0.0, "float > 0"), ("select.penalty", -0.1, "float >= 0"),
        ("select.exploration", 1.1, "float >= 0 and <= 1"),
        ("select.exploration-decay", 0.0, "float > 0 and <= 1"),
        ("select.exploration-min", -0.1, "float >= 0 and <= 1"),
        ("select.cut-off", 1.5, "float >= 0 and <= 1"), ("select.clip", 0.0, "float > 0 and <= 1"),
        ("select.pace", 2.0, "float >= 0 and <= 1"), ("select.pacer-step", 2.0, "float >= 0 and <= 1"),
        ("select.pacer-window", 0, "int >= 1"),
        ("devices.speed", 0.0, "float > 0"), ("devices.bandwidth", 0.0, "float > 0"),
        ("devices.spread", 6.0, "float >= 0 and <= 5"), ("devices.uplink", "mine", "one of own, shared"),
        ("selection", "best", "one of cycle, fedcs, oort, power-of-choice, proportional, uniform"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "key", "value", "range_"), [(name, *row) for name, rows in OUTSIDE.items() for row in rows]
)
def test_a_knob_out_of_range_is_refused_with_key_and_range(
    algorithm: str, key: str, value: float | str, range_: str
) -> None:
    with pytest.raises(ConfigError, match=f'"{key}": .*[Ee]xpected {range_}'):
        read_config({"algorithm": algorithm, key: value})
