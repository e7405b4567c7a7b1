"""What mutations draw from: odd numbers, odd texts, and the few tools that all of them use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import RecordDict
from numpy.random import Generator

Mutation = Callable[[Generator, RecordDict], str]
"""Returns what it did, or "" where there is nothing that it could change."""

NAN, INF = float("nan"), float("inf")
NUMBERS: list[int | float] = [
    NAN, INF, -INF, 0, -0.0, -1, -40, 1, 2, 0.5, 1.5, 1e30, -1e30, 1e37, 3e38, -3e38, 1e300, -1e300, 1e-300,
    5e-324, 2**29, 2**31, 2**62, -(2**62), 2**63 - 1,
]  # fmt: skip
FACTORS = [-1.0, 0.0, 1e-6, 2.0, 1e3, 1e6, 1e30]
ELEMENTS = [NAN, INF, -INF, 0.0, -0.0, 1e-45, 1e9, 2.0**31, 1e30, 3.4e38, -3.4e38]
TEXTS = [
    "", " ", "\t", "\x00", "a\nb", "x" * 199, "x" * 10_000, "\x1b[2J\x1b[31mred", "\u202eevil", "ﷺ" * 50,
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</td></table>", "[bold red]x[/]", "[/]",
    r"$\frac{1}{0}$", "=cmd()", "../../x", "a.b", "{0}", "%s%n", "num-examples", "accuracy", "test-accuracy",
    "test-examples", "loss", "train-loss", "__class__",
]  # fmt: skip


def pick(rng: Generator, choices: Any) -> Any:
    """Return one of a sequence."""
    return choices[int(rng.integers(len(choices)))]


def names(content: RecordDict, kind: type) -> list[str]:
    """Return the names of the records of a kind."""
    return [name for name, record in content.items() if isinstance(record, kind)]


def flip(rng: Generator, data: bytearray, bits: int) -> None:
    """Turn so many bits of the data over."""
    for _ in range(bits if data else 0):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
