"""The catalogue for people: terminal table, JSON, and the table of the README."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from task.spec.algorithms import ALGORITHMS
from task.spec.entry import Algorithm
from task.spec.record import Record, Scalar

BEGIN, END = "<!-- algorithms: begin (make docs) -->", "<!-- algorithms: end -->"


def as_dict() -> dict[str, Any]:
    """Return the catalogue as plain data."""
    return {name: _plain(entry) for name, entry in ALGORITHMS.items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _fields(records: tuple[Record, ...], scalars: tuple[Scalar, ...]) -> str:
    return ", ".join([r.name for r in records] + [s.name for s in scalars]) or "nothing"


def _up(entry: Algorithm) -> str:
    """Return all that leaves a client in a round, by phase if there are several."""
    before = "".join(f"{name} phase: {_up(phase)}; then: " for name, phase in entry.phases.items())
    return before + _fields(entry.up, entry.up_scalars)


PRIVATE = {
    "": "",
    "head": "last layers",
    "norm": "normalisation layers",
    "twin": "local extractor, head",
    "all": "all",
}
HEAD = ["algorithm", "`algorithm=`", "paper", "down", "up", "reduced by", "client keeps"]


def rows(personal: bool) -> list[list[str]]:
    """Return the algorithms whose models are the clients' own, or the others.

    Returns:
        Title, name, paper, down, up, reduction, kept by the client; then at which values it is FedAvg, or, of
        `personal`, which part of the model never leaves the client and what a new client begins with.
    """
    out = []
    for a in ALGORITHMS.values():
        if a.personal != personal:
            continue
        paper = f"{a.paper.authors.split(',')[0]} et al. {a.paper.year}, arXiv {a.paper.arxiv}"
        never = f"never: {a.no_neutral}" if a.no_neutral else "is FedAvg"
        neutral = ", ".join(f"{k}={v}" for k, v in a.neutral.items()) or never
        plain = "plain " if a.weight == "uniform" else ""
        reduced = ", ".join(sorted({plain + f.reduce if f.reduce == "mean" else f.reduce for f in a.up}))
        wire = [_fields(a.down, a.down_scalars), _up(a), reduced, _fields(a.keeps, ())]
        last = [PRIVATE[a.private] or "nothing", a.newcomer] if personal else [neutral]
        out.append([a.title, a.name, paper, *wire, *last])
    return out


def terminal_table() -> Group:
    """Return the catalogue as tables for the terminal."""
    return Group(
        _terminal("one global model", rows(False), ["FedAvg at"]),
        _terminal(
            "the clients' own models, and baselines", rows(True), ["stays at the client", "a new client"]
        ),
    )


def _terminal(title: str, lines: list[list[str]], last: list[str]) -> Table:
    table = Table("algorithm", "paper", "on the wire", *last, title=title, show_lines=True)
    for name, key, paper, down, up, reduce, keeps, *rest in lines:
        wire = f"down: {down}\nup: {up}" + (f" ({reduce})" if reduce else "") + f"\nclient keeps: {keeps}"
        table.add_row(f"{name}\n{key}", paper, wire, *rest)
    return table


def markdown_table() -> str:
    """Return the catalogue as the README shows it."""
    one = _markdown([*HEAD, "FedAvg at"], rows(False))
    own = _markdown([*HEAD, "never leaves the client", "a new client begins with"], rows(True))
    return f"One global model:\n\n{one}\n\nThe clients' own models, and what they are compared with:\n\n{own}"


def _markdown(head: list[str], lines: list[list[str]]) -> str:
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    text += ["| " + " | ".join([r[0], f"`{r[1]}`", *r[2:]]) + " |" for r in lines]
    return "\n".join(text)


def with_table(text: str) -> str:
    """Return the README's text with the table between its two marks replaced."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{markdown_table()}\n{END}{tail}"
