"""Reasons for too few usable replies: the text for the user, and whether a retry can help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from task.errors import LASTING, BouquetError, ConfigError, NodesError, kind_of_reply, of_memory
from task.population import some

if TYPE_CHECKING:  # it imports Flower, which a rule does not know
    from task.wire.messages import RejectedReply

SHOWN = 3  # reasons
_NUMBERED = re.compile(r"^node \d+: ")  # of a node without a name: its clients say more
# Kinds that one round does not prove: numbers too large, or a message that a node could not read for once.
SECOND_TIME = ("reply", "order")
ADVICE = {
    "config": "Correct that, and start the run again.",
    "data": "Correct these data, and resume the run.",
    "policy": (
        "That is a rule of the nodes' owners, in [policy] of their kit.toml: change the run, or ask "
        "the owners."
    ),
    "state": "Correct that, and resume the run.",
    "code": "That is a bug: correct the code, and start the run again.",
    "reply": (
        "The same training gives the same replies: change what the run does (if numbers are too large, a "
        "smaller learning-rate), and start it again."
    ),
    "order": (
        "The same messages fail again: change what the run asks for, and start it again; if its keys are "
        "right, that is a bug."
    ),
    "memory": (
        "A second try failed, too: give these nodes more memory, or make the run need less (a "
        "smaller model or batch-size, stack = 1), and start it again."
    ),
}
REPAIR = "Repair the nodes and resume the run."


def reasons(lines: Iterable[RejectedReply]) -> str:
    """Return the distinct reasons of unused replies, with the clients; of figures the first is shown."""
    found: dict[tuple[str, str], list[RejectedReply]] = {}
    for line in lines:
        key = (line.field, line.expected) if line.field else ("", line.got)
        found.setdefault(key, []).append(line)
    said = []
    for alike in list(found.values())[:SHOWN]:
        first = alike[0]
        where = f"field {first.field!r}: expected {first.expected}; got " if first.field else ""
        got = _NUMBERED.sub("", first.got).removesuffix(".")
        said.append(f"client {some([line.client for line in alike])}: {where}{got}")
    if len(found) > SHOWN:
        said.append(f"and {sum(map(len, list(found.values())[SHOWN:]))} more clients")
    return "; ".join(said)


def _kind(line: RejectedReply) -> str:
    return kind_of_reply(line.field, line.got)


def _doubtful(line: RejectedReply) -> str:
    """Return the kind of a reason that lasts if the next reply has it, too; "" of any other."""
    kind = "memory" if of_memory(line.got) else _kind(line)
    return kind if kind in ("memory", *SECOND_TIME) else ""


def refused_for_good(
    lines: Mapping[str, RejectedReply],
    names: Collection[str],
    least: int,
    *,
    before_end: bool = False,
    again: Collection[str] = (),
) -> list[RejectedReply]:
    """Return the replies, by client, for whose reasons a run can never have enough; [] if it may yet.

    `names` are the clients that are online. A reply of the kinds `SECOND_TIME` may be better `before_end`, in
    the next round, though not if the last round is done again. `again` are clients that have failed twice.
    """
    lasting = {
        c: line
        for c, line in lines.items()
        if (c in again and _doubtful(line))
        or (_kind(line) and not (before_end and _kind(line) in SECOND_TIME))
    }
    left = len(names) - sum(name in lasting for name in names)
    return list(lasting.values()) if lasting and left < least else []


def failed_again(before: Mapping[str, RejectedReply], lines: Iterable[RejectedReply]) -> set[str]:
    """Return the clients that failed `before` as they do in `lines`, which they will do a third time."""
    return {
        line.client
        for line in lines
        if (kind := _doubtful(line)) and line.client in before and _doubtful(before[line.client]) == kind
    }


def too_few_replies(
    head: str, lines: Collection[RejectedReply], lasting: Collection[RejectedReply], remedy: str = ""
) -> BouquetError:
    """Return the error of a run that has too few usable replies: the reasons, and what to do about them.

    `lasting` are those of `lines` that a retry would not change, if these alone are too many. `remedy` is
    what this run could do about numbers that are too large.
    """
    if lasting:
        kind, _ = Counter(_kind(line) or "memory" for line in lasting).most_common(1)[0]
        more = f" {remedy}" if remedy and any(line.diverged for line in lasting) else ""
        return LASTING[kind](f"{head}: {reasons(lasting)}. {ADVICE[kind]}{more}")
    return NodesError(f"{head}{': ' + reasons(lines) if lines else ''}. {REPAIR}")


def not_by_all(
    who: str, phase: str, lines: Collection[RejectedReply], forbidden: str, allow: str
) -> BouquetError:
    """Return the error of a phase that not all have answered who must: every party, or every site.

    `who` are these, with the round; `forbidden` is what the owner of one may not allow, `allow` what to do
    then.
    """
    lasting = [line for line in lines if _kind(line)]
    if any(_kind(line) == "policy" for line in lasting):
        why = reasons(lasting)
        return ConfigError(f"{who} is needed, but a site's owner does not allow {forbidden}: {why}. {allow}")
    return too_few_replies(f"{who} is needed, and the phase {phase!r} lacks a usable reply", lines, lasting)
