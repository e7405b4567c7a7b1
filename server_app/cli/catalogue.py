"""The catalogue for people: its rows, the terminal's tables, JSON; `tests.pages` makes the README's of it."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from task.spec.algorithms import ALGORITHMS
from task.spec.entry import Algorithm
from task.spec.record import Record, Scalar


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
