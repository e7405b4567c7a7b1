"""The catalogue for people: terminal table, JSON, and the table of the README."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from rich.table import Table

from task.algorithms import ALGORITHMS, Algorithm, ArrayField, ScalarField

BEGIN, END = "<!-- algorithms: begin (make docs) -->", "<!-- algorithms: end -->"


def as_dict() -> dict[str, Any]:
    """Return the catalogue as plain data."""
    return {name: asdict(_plain(entry)) for name, entry in ALGORITHMS.items()}


def _plain(entry: Algorithm) -> Algorithm:
    # asdict deep-copies, which a mapping proxy does not allow.
    before = _plain(entry.before) if entry.before else None
    return replace(entry, neutral=dict(entry.neutral), before=before)


def _fields(fields: tuple[ArrayField, ...], scalars: tuple[ScalarField, ...]) -> str:
    return ", ".join([f.name for f in fields] + [s.name for s in scalars]) or "nothing"


def _up(entry: Algorithm) -> str:
    """Return all that leaves a client in a round, that of the exchange before the training first."""
    before = f"before: {_up(entry.before)}; then: " if entry.before else ""
    return before + _fields(entry.up, entry.up_scalars)


def rows() -> list[list[str]]:
    """Return the table: name, paper, down, up, reduction, kept by the client, neutral value."""
    out = []
    for a in ALGORITHMS.values():
        paper = f"{a.paper.authors.split(',')[0]} et al. {a.paper.year}, arXiv {a.paper.arxiv}"
        never = f"never: {a.no_neutral}" if a.no_neutral else "is FedAvg"
        neutral = ", ".join(f"{k}={v}" for k, v in a.neutral.items()) or never
        out.append(
            [
                a.title,
                a.name,
                paper,
                _fields(a.down, a.down_scalars),
                _up(a),
                ", ".join(sorted({f.reduce for f in a.up})),
                _fields(a.keeps, ()),
                neutral,
            ]
        )
    return out


HEAD = ["algorithm", "`algorithm=`", "paper", "down", "up", "reduced by", "client keeps", "FedAvg at"]


def terminal_table() -> Table:
    """Return the catalogue as a table for the terminal."""
    table = Table("algorithm", "paper", "on the wire", "FedAvg at", title="algorithms", show_lines=True)
    for title, name, paper, down, up, reduce, keeps, neutral in rows():
        wire = f"down: {down}\nup: {up} ({reduce})\nclient keeps: {keeps}"
        table.add_row(f"{title}\n{name}", paper, wire, neutral)
    return table


def markdown_table() -> str:
    """Return the catalogue as the README shows it."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join([r[0], f"`{r[1]}`", *r[2:]]) + " |" for r in rows()]
    return "\n".join(lines)


def with_table(text: str) -> str:
    """Return the README's text with the table between its two marks made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{markdown_table()}\n{END}{tail}"
