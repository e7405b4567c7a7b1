"""What must hold of a run, whatever its nodes answer; each function returns what does not, in a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import numpy as np

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import TESTS
from task.catalogue.selections import with_selection
from tests.fuzz.aliases import PLAIN
from tests.fuzz.runs import QUERY, ROUNDS, SIZES, VARIANTS, Played, Player

SHARES = {"accuracy", "test-accuracy"}  # in 0..1
NOT_NEGATIVE = {
    "loss", "train-loss", "test-loss", "loss-before", "loss-rms", "test-examples", "rho", "beta",
    "step-seconds", "step-weight", "lipschitz", "gamma",
}  # fmt: skip
ELEMENTS = [
    *("html", "head", "meta", "meta", "meta", "title", "style"),
    *("body", "main", "noscript", "script", "script"),
]


def violations(played: Played, player: Player) -> list[str]:
    """Return every rule that the run breaks, in a line each; none = it bore what came."""
    if played.error:
        if played.no_nodes and not played.honest:
            return []
        return [f"the run ended: {played.error.strip().splitlines()[-1]}"]
    found = [*_whole(played), *_finite(played), *_refused(played), *_honest(played), *_legal(played)]
    return [*found, *_files(played), *_shown(played), *_same_model(played, player)]


def _whole(played: Played) -> Iterator[str]:
    """The run did all of its rounds, or as many as took it to its target, and wrote its result."""
    target = float(VARIANTS[played.case.variant].keys.get("target-accuracy", 0.0))
    rounds = len(played.rows) - 1 if 0.0 < target <= played.rows[-1]["accuracy"] else ROUNDS
    if [row["round"] for row in played.rows] != list(range(rounds + 1)):
        yield f"rounds {[row['round'] for row in played.rows]} instead of 0 to {ROUNDS}"
    if played.result is None:
        yield "no result.json"


def _finite(played: Played) -> Iterator[str]:
    """Model and server state are finite after every round."""
    for snapshot in played.snapshots:
        bad = [n for n, a in snapshot.arrays.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
        if bad:
            yield f"round {snapshot.round}: not finite: {sorted(bad)[:3]}"


def _refused(played: Played) -> Iterator[str]:
    """Each client of a mutated training reply was used or quarantined, and each line of that can be read."""
    for row in played.rows:
        for line in row["quarantined"]:
            for part in ("client", "expected", "got", "reason"):
                if not line[part].strip() or not line[part].isprintable():
                    yield f"a quarantine line has {part} = {line[part]!r:.60}"
            if len(line["reason"]) > 2000:
                yield f"a quarantine line of {len(line['reason'])} letters"
    if played.kind == "train":
        used = {c["name"] for c in played.clients if c["round"] == 1 and c["phase"] == "train"}
        lost = {line["client"] for line in played.lines(1)}
        repeats = ALGORITHMS[VARIANTS[played.case.variant].keys["algorithm"]].repeats
        for client in sorted(played.said):
            if client in used and client in lost and repeats:
                continue  # used in one training of the round, refused in another
            if (client in used) == (client in lost):
                yield "a client of a mutated reply was " + (
                    "both used and refused" if client in used else "neither"
                )


def _honest(played: Played) -> Iterator[str]:
    """Nobody else pays: not in this round, and not in the next ones for a value that was accepted.

    A run may take the model back once, in a round in which most clients diverge from it; they also do in the
    evaluation of the previous round. After it nobody is refused.
    """
    back = _back(played)
    trained = {(c["round"], c["name"]) for c in played.clients if c["phase"] == "train"}
    for row in played.rows[1:]:
        number = row["round"]
        if number == back:
            continue
        for line in row["quarantined"]:
            client = line["client"]
            theirs = client in played.said and number == 1
            of_the_model = number + 1 == back and (number, client) in trained
            if not theirs and not of_the_model and not _of_a_strange_node(played, line):
                yield f"round {number}: an honest client is refused: {line['reason']}"
        if number > 1 and row["skipped"]:
            yield f"round {number} is skipped"


def _back(played: Played) -> int:
    """Return the first round that took the model back; 0 = none."""
    return next((row["round"] for row in played.rows if row.get("rolled_back") is not None), 0)


def _of_a_strange_node(played: Played, line: Mapping[str, Any]) -> bool:
    """Return whether a line is on a client that a node with a mutated registration spoke for."""
    return played.kind == QUERY and (line["client"] not in PLAIN or line["client"] in played.strange)


def _legal(played: Played) -> Iterator[str]:
    """What was accepted is what such a number can be, and the clients' mean is there."""
    keys = VARIANTS[played.case.variant].keys
    entry = with_selection(ALGORITHMS[keys["algorithm"]], keys.get("selection", "uniform"))
    # Any other name is a metric of the client's own, which nothing reads.
    known = {
        "train": {"train-loss", *(s.name for s in (*TESTS, *entry.up_scalars))},
        "evaluate": {"loss", "accuracy"},
    }
    for row in played.clients:
        who = f"{row['phase']} of round {row['round']}"
        most = sum(SIZES.values()) if entry.pooled else played.registered.get(row["name"], 0)
        evaluated = row["phase"] == "evaluate"  # on examples that no node registers
        if not 0 < row["examples"] <= (2**29 if evaluated or played.kind == QUERY else most):
            yield f"{who}: examples = {row['examples']}"
        for name, value in row["metrics"].items():
            held = name in known[row["phase"]]
            low = 0.0 if held and name in NOT_NEGATIVE | SHARES else -math.inf
            high = 1.0 if held and name in SHARES else math.inf
            if value is None or not math.isfinite(value) or not low <= value <= high:
                yield f"{who}: {name} = {value}"
    for row in played.rows[1:]:
        seen = row["client_accuracy"]
        if seen is None and row["round"] + 1 == _back(played):
            continue
        if seen is None or not 0 <= seen <= 1:
            yield f"round {row['round']}: client_accuracy = {seen}"


def _files(played: Played) -> Iterator[str]:
    """The JSON files hold finite numbers and the report is the page with data in it, and nothing else."""
    for name in ("rounds.jsonl", "clients.jsonl", "result.json", "nodes.json", "config.json"):
        text = (played.folder / name).read_text(encoding="utf-8")
        for part in text.splitlines() if name.endswith("l") else [text]:
            try:
                numbers = list(_numbers(json.loads(part, parse_constant=_refuse)))
            except ValueError as err:
                yield f"{name}: {err}"
                continue
            if not all(map(math.isfinite, numbers)):
                yield f"{name}: a number beyond float64"
    page, report = _Page(), played.folder / "report.html"
    if not report.exists():
        yield "report.html is missing"
        return
    page.feed(report.read_text(encoding="utf-8"))
    if page.elements != ELEMENTS:
        yield f"report.html has the elements {page.elements}"
    try:
        json.loads(page.data)
    except ValueError as err:
        yield f"report.html: its data end early: {err}"
    for drawing in (played.folder / "plots").glob("*.svg"):
        if "<script" in drawing.read_text(encoding="utf-8"):
            yield f"{drawing.name} has a script"


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, float):
        yield value


class _Page(HTMLParser):
    """Collects a page's elements, and the data that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.data = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take up an element."""
        self.elements.append(tag)
        self._inside = ("type", "application/json") in attrs

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        self._inside = False

    def handle_data(self, data: str) -> None:
        """Take up a text."""
        self.data += data if self._inside else ""


def _shown(played: Played) -> Iterator[str]:
    """Terminal and log show lines that print."""
    for line in [*played.printed.split("\n"), *played.logged]:
        if not line.isprintable():
            yield f"printed or logged: {line!r:.120}"


def _same_model(played: Played, player: Player) -> Iterator[str]:
    """A refused reply leaves the model that there is without it, and an evaluation never changes one."""
    if played.kind == "evaluate":
        if played.models != player.undisturbed(played):
            yield "mutated evaluations changed the model"
    elif played.kind in ("train", "train.gradient"):
        lost = {line["client"] for line in played.lines(1)}
        if lost >= played.said.keys() and played.models[:2] != player.without(played)[:2]:
            yield "the model of round 1 differs from that without the refused replies"
