"""What must not change a byte of a run: the nodes that train its clients, whose reply is first, a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from task.numerics.arrays import sha256
from tests.support.federation import OneRun, Played, play

CLOCK = {"seconds", "bytes_up", "bytes_down"}  # what a node answers for several clients is merged


def told(played: Played, after: int = -1) -> list[dict[str, Any]]:
    """Return the rows of later rounds than `after`, without what the spread may change."""
    return [{k: v for k, v in r.items() if k not in CLOCK} for r in played.rows if r["round"] > after]


def ends(played: Played) -> tuple[str, dict[str, Any]]:
    """Return what the run's last checkpoint holds."""
    last = played.keep.snapshots[-1]
    return sha256(last.arrays), dict(last.numbers)


def the_same_on_any_nodes_and_resumed(
    keys: Mapping[str, Any], nodes: Sequence[int] = (1, 3), at: int = 0, **more: Any
) -> Played:
    """Play a run on so many nodes each, and once more from the end of a round; return the first.

    The clients are rounds ahead of the snapshot at round `at` (0 = half way): what they did does not count.
    """
    whole = play(keys, nodes=nodes[0], journal=OneRun(), **more)
    assert not any(row["quarantined"] for row in whole.rows)
    for n in nodes[1:]:
        other = play(keys, nodes=n, seed=n, **more)
        assert told(other) == told(whole)  # says from which round on they differ
        assert ends(other) == ends(whole)
    at = at or len(whole.rows) // 2
    resumed = play(keys, nodes=nodes[-1], seed=1, journal=OneRun(whole.keep.snapshots[at]), **more)
    assert told(resumed) == told(whole, at)
    assert ends(resumed) == ends(whole)
    return whole
