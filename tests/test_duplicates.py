"""No code of the product stands twice: neither to the letter, nor with other names."""

from __future__ import annotations

import ast
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bouquet", "client_app", "server_app", "strategies", "task")
LINES = 5  # of code, the same to the letter, in functions
SHAPES = 5  # of code with other names, numbers and texts, in two functions
# Files with such a shape in common, and why they do not share it.
APART = {("task/classical/clusters.py", "task/classical/components.py"): "zeros in the form of two results"}
_THIN = re.compile(r"""[\["'()\]{}:,.=*n0 -]*""")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def functions(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the lines of each function without inner functions, docstrings, comments and lone brackets."""
    lines, taken = text.split("\n"), set[int]()
    for node in reversed([*ast.walk(ast.parse(text))]):  # inner functions first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            whole = range(body[0].lineno, (body[-1].end_lineno or 0) + 1) if body else range(0)
            numbers = [i for i in whole if i not in taken]
            taken |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
            found = [(i, " ".join(lines[i - 1].split())) for i in numbers]
            yield [(i, line) for i, line in found if re.search(r"\w", line) and not line.startswith("#")]


def shape(line: str) -> str:
    """Return a line with every text, number and name of one kind; "" if it is a text or an argument only."""
    line = re.sub(r'f?"[^"]*"', '"', line)
    line = re.sub(r"\d+", "0", _NAME.sub(lambda m: m[0] if keyword.iskeyword(m[0]) else "n", line))
    return "" if _THIN.fullmatch(line) else line


def test_no_code_stands_twice() -> None:
    same, alike = defaultdict(set), defaultdict(set)  # by some lines, the functions that have them
    for path in (p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))):
        name = str(path.relative_to(ROOT))
        for lines in functions(path.read_text(encoding="utf-8")):
            here = name, lines[0][0] if lines else 0
            for i in range(len(lines) - LINES + 1):
                same[tuple(line for _, line in lines[i : i + LINES])].add(here)
            shapes = [form for _, line in lines if (form := shape(line))]
            for i in range(len(shapes) - SHAPES + 1):
                alike[tuple(shapes[i : i + SHAPES])].add(here)
    twice = [sorted(places) for places in same.values() if len(places) > 1]
    assert not twice, f"the same {LINES} lines: write them once, in the room where they belong: {twice}"
    found = [sorted(places) for places in alike.values() if len(places) > 1]
    by_files = {tuple(sorted({name for name, _ in places})): places for places in found}
    new = {files: places for files, places in by_files.items() if files not in APART}
    assert not new, f"lines of one shape: write them once, or say in APART why not: {new}"
    assert by_files.keys() == APART.keys(), "APART names files that are no longer alike"


def test_code_with_other_names_has_the_same_shape() -> None:
    assert shape('wide = 2 * rows["a"]') == shape('x = 10 * y["mean"]') != shape('x = 10 + y["mean"]')
    assert shape('"only a text"') == shape("name=name,") == ""
