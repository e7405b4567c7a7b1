"""Agreement on the meaning of a run's data (`task.datasets.description`): nodes that differ are excluded.

For each part of the description, the value of more than half of the nodes is used for the run, unless it is
known before: from the server's own data, the model that the run begins with, or the run that is resumed. If
the names are the same, the order may differ. The order of most nodes is used, and sent with every message as
long as a node has another one, so that such a node reads its data by name. Parties of a vertical algorithm
have columns of their own: each agrees with what it registered first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from task.datasets.description import PARTS, Meaning
from task.population import some

OTHERS = "those of the others"
ITS_OWN = "those that it registered first"
COUNTED = ("columns", "categories")  # parts that say how many numbers a model reads of an example
COMMON = ""  # whose meaning is that of all clients' data


@dataclass(frozen=True)
class Agreement:
    """What the data must mean, by client, for all as `COMMON`; `whose` says where that is from, in words."""

    by_client: Mapping[str, Meaning] = field(default_factory=dict)
    whose: str = OTHERS
    apart: bool = False  # whether each client's data have a meaning of their own

    def of(self, client: str) -> Meaning:
        """Return what a client's data must mean, as far as it is known."""
        return self.by_client.get(client if self.apart else COMMON, Meaning())

    def refuses(self, client: str, theirs: Meaning) -> str:
        """Return how a client's data differ from the agreed meaning, as far as known; "" if they don't."""
        known, whose = self.of(client), ITS_OWN if self.apart else self.whose
        unlike = (p for p in PARTS if known.parts.get(p, found := theirs.parts.get(p, "")) != found)
        return next((_differs(theirs, part, whose, known.inputs) for part in unlike), "")


@dataclass(frozen=True)
class Voter:
    """A node whose data must agree."""

    node: str  # in words
    client: str  # whose data it brings; `COMMON` = it hosts clients of a partition
    meaning: Meaning


def agree(voters: Mapping[int, Voter], known: Agreement) -> tuple[Agreement, dict[int, str], str]:
    """Decide what the data mean, given what is `known`.

    Returns:
        Their meaning; by excluded node, the reason; and why no decision is possible, "" if it is.
    """
    agreed, refused, unclear = dict(known.by_client), dict[int, str](), ""
    for client in {v.client for v in voters.values()} if known.apart else {COMMON}:
        mine = {n: v for n, v in voters.items() if not known.apart or v.client == client}
        meaning, out, why = _agree(mine, known.of(client), ITS_OWN if known.apart else known.whose)
        refused |= out
        unclear = unclear or why
        if meaning is not None:
            agreed[client] = meaning
    return replace(known, by_client=agreed), refused, unclear


def _agree(
    voters: Mapping[int, Voter], known: Meaning, whose: str
) -> tuple[Meaning | None, dict[int, str], str]:
    left, parts, refused = dict(voters), dict(known.parts), dict[int, str]()
    for part in PARTS:
        sides: dict[str, list[Voter]] = {}
        for voter in left.values():
            sides.setdefault(voter.meaning.parts.get(part, ""), []).append(voter)
        if left and part not in parts:
            parts[part] = max(sides, key=lambda digest: len(sides[digest]))
            if 2 * len(sides[parts[part]]) <= len(left):
                return None, refused, _unclear(part, sides.values())
        expected = known.inputs or next((v.meaning.inputs for v in sides.get(parts.get(part, ""), ())), ())
        for node, voter in list(left.items()):
            if voter.meaning.parts.get(part, "") != parts[part]:
                refused[node] = _differs(voter.meaning, part, whose, expected)
                del left[node]
    if not left:
        return None, refused, ""
    order = [v.meaning for _, v in sorted(left.items(), key=lambda item: item[1].client)]
    inputs = known.inputs or Counter(m.inputs for m in order).most_common(1)[0][0]
    outputs = known.outputs or Counter(m.outputs for m in order).most_common(1)[0][0]
    return Meaning(parts, inputs, outputs), refused, ""


def _differs(theirs: Meaning, part: str, whose: str, inputs: Sequence[int]) -> str:
    """Return how data differ, for the run's user and for the owner, in whose log their names follow."""
    none = "" if theirs.parts.get(part) else ", which it does not name"
    counts = columns = ""
    if part in COUNTED and inputs and theirs.inputs:
        counts = f": expected {len(inputs)} inputs (numbers, values of categories), got {len(theirs.inputs)}"
    if part == "columns":
        columns = (
            " (--column-types 'NAME:ignore' on the node leaves one out), or declare the columns in the run, "
            "so that an error names the missing ones"
        )
    return (
        f"has data that differ from {whose} in {PARTS[part]}{none}{counts}. Its names follow in its own log. "
        f"Correct its file or its column types{columns}"
    )


def _unclear(part: str, sides: Iterable[Sequence[Voter]]) -> str:
    got = "; ".join(some([v.node for v in side]) + _inputs(part, side[0].meaning) for side in sides)
    return (
        f"the nodes' own data: expected most nodes to agree on {PARTS[part]}; they differ: {got}. Each "
        "node's log lists its names. Correct the files or column types (a node's --column-types "
        "'NAME:ignore' leaves one out), or choose nodes with \"node-names\""
    )


def _inputs(part: str, meaning: Meaning) -> str:
    return f" ({len(meaning.inputs)} inputs)" if part in COUNTED and meaning.inputs else ""
