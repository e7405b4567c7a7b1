"""No code of the product stands twice: neither to the letter, nor with other names."""

from __future__ import annotations

import ast
import keyword
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bouquet", "client_app", "server_app", "strategies", "task")
LINES = 5  # of code, the same to the letter, in functions
SHAPES = 6  # of code with other names, numbers and texts
# Files with such a shape in common, and why they do not share it.
APART = {
    (
        "client_app/memory/state.py",
        "task/numerics/collect.py",
    ): "an error after nested blocks; no line is alike",
    ("server_app/cli/describe.py", "server_app/run/server_model.py"): "a text, and arguments of a call",
    (
        "server_app/deploy/link/jobs.py",
        "server_app/sweep/queue.py",
    ): "a lock, and what each says if it is held",
    ("server_app/deploy/link/status.py",): "the columns of two tables",
    ("server_app/deploy/node/run_node.py", "task/flower/names.py"): "texts of two lines",
    (
        "server_app/extras/reproduce/records.py",
        "server_app/run/run_lock.py",
    ): "errors of a lock and of a file",
    ("server_app/run/opening.py", "server_app/run/server_model.py"): "arguments of two calls",
    ("strategies/membership/client_identity.py",): "reasons by kind of difference",
    ("task/resolve/model_card.py",): "a mapping from names to readers",
}
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def code(text: str) -> list[tuple[int, str]]:
    """Return the lines of functions, without docstrings, comments, blank lines and lone brackets."""
    lines, inside, said = text.split("\n"), set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, *rest = node.body
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                said |= {*range(first.lineno, (first.end_lineno or 0) + 1)}
            inside |= {*range(first.lineno, ((rest or [first])[-1].end_lineno or 0) + 1)}
    found = [(i, " ".join(lines[i - 1].split())) for i in sorted(inside - said)]
    return [(i, line) for i, line in found if re.search(r"\w", line) and not line.startswith("#")]


def shape(line: str) -> str:
    """Return a line with every text, number and name of one kind."""
    line = re.sub(r'f?"[^"]*"', '"', line)
    return re.sub(r"\d+", "0", _NAME.sub(lambda m: m[0] if keyword.iskeyword(m[0]) else "n", line))


def test_no_code_stands_twice() -> None:
    same, alike = defaultdict(list), defaultdict(list)
    for path in (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))):
        name, lines = str(path.relative_to(ROOT)), code(path.read_text(encoding="utf-8"))
        shapes = [shape(line) for _, line in lines]
        for i in range(len(lines) - LINES + 1):
            place = f"{name}:{lines[i][0]}"
            same[tuple(line for _, line in lines[i : i + LINES])].append(place)
            if i + SHAPES <= len(lines):
                alike[tuple(shapes[i : i + SHAPES])].append(place)
    twice = [places for places in same.values() if len(places) > 1]
    assert not twice, f"the same {LINES} lines: write them once, in the room where they belong: {twice}"
    pairs = {
        tuple(sorted({place.partition(":")[0] for place in places})): places
        for places in alike.values()
        if len(places) > 1
    }
    new = {pair: places for pair, places in pairs.items() if pair not in APART}
    assert not new, f"lines of one shape: write them once, or say in APART why not: {new}"
    assert pairs.keys() == APART.keys(), "APART names files that are no longer alike"
