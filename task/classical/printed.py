"""A table of an analysis as csv, LaTeX and an object of JSON: rows of numbers, and the figures below them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = float | int | str | None


@dataclass(frozen=True)
class Printed:
    """A table and the figures below it."""

    rows_are: str  # key of the rows in an object of JSON, "coefficients"
    head: tuple[str, ...]  # names of the columns; the first names the rows
    rows: tuple[tuple[Cell, ...], ...]  # None = there is no such number
    figures: Mapping[str, Any]
    digest: str  # SHA-256 of all integers

    def as_dict(self) -> dict[str, Any]:
        """Return an object of JSON."""
        rows = [dict(zip(self.head, row, strict=True)) for row in self.rows]
        return {self.rows_are: rows, **self.figures, "sums_sha256": self.digest}

    def csv(self) -> str:
        """Return the rows with all digits; an empty cell is a number that there is not."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.head)
        for row in self.rows:
            writer.writerow(["" if c is None else c if isinstance(c, str) else repr(c) for c in row])
        return text.getvalue()

    def latex(self, heads: Mapping[str, str] | None = None) -> str:
        """Return a LaTeX tabular with six significant digits; `heads` has other names of columns."""
        named = heads or {}
        head = " & ".join(named.get(name, escaped(name)) for name in self.head)
        rows = [" & ".join("" if c is None else _short(c) for c in row) for row in self.rows]
        figures = {k: v for k, v in self.figures.items() if isinstance(v, int | float)}
        below = ", ".join(f"{escaped(name)} {value:.8g}" for name, value in figures.items())
        body = " \\\\\n".join(rows)
        form = "l" + "r" * (len(self.head) - 1)
        return (
            f"% {below}\n\\begin{{tabular}}{{{form}}}\n{head} \\\\\n\\hline\n{body} \\\\\n\\end{{tabular}}\n"
        )


def _short(cell: float | int | str) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    return str(cell) if isinstance(cell, int) else f"{cell:.6g}"


def escaped(name: str) -> str:
    """Return a name as LaTeX writes it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"}
    return "".join(special.get(c, c) for c in name)


def renamed(names: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns of which none is one of those `taken`: such a one gets an underscore."""
    return tuple(name + "_" if name in taken else name for name in names)
