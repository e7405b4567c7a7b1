"""Tables of the algorithms and the run-config keys, for the documents (`tests.pages`) and the terminal."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import GROUPS, Algorithm
from task.catalogue.record import Record, Scalar
from task.config.names import elsewhere
from task.config.read import Knob, knobs, section_title
from task.errors import ConfigError, choose_from
from task.resolve.effective import reads_only


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
    """Return everything that leaves a client in a round, by phase if there are several."""
    before = "".join(f"{name} phase: {_up(phase)}; then: " for name, phase in entry.phases.items())
    return before + _fields(entry.up, entry.up_scalars)


PRIVATE = {
    "": "",
    "head": "last layers",
    "body": "all but the last layers",
    "norm": "normalisation layers",
    "twin": "local extractor, head",
    "all": "all",
}


def groups() -> dict[str, list[Algorithm]]:
    """Return the algorithms grouped by purpose: under the headings of `GROUPS`."""
    return {title: [a for a in ALGORITHMS.values() if a.group == group] for group, title in GROUPS.items()}


def contracts(algorithms: list[Algorithm]) -> list[list[str]]:
    """Return the table rows that say what each algorithm sends.

    Returns:
        Title, name, down, up, reduction, client state. Then the key values at which it equals FedAvg; for
        algorithms with personal models, the part that never leaves the client and what a new client starts
        with.
    """
    out = []
    for a in algorithms:
        plain = "plain " if a.weight == "uniform" else ""
        reduced = ", ".join(sorted({plain + f.reduce if f.reduce == "mean" else f.reduce for f in a.up}))
        wire = [_fields(a.down, a.down_scalars), _up(a), reduced, _fields(a.keeps, ())]
        last = [PRIVATE[a.private] or "nothing", a.newcomer] if a.personal else [_neutral(a)]
        out.append([a.title, f"`{a.name}`", *wire, *last])
    return out


def terminal_table() -> Group:
    """Return the catalogue as tables for the terminal."""
    tables = []
    for title, algorithms in groups().items():
        table = Table("algorithm", "what it does", "paper", title=title)
        table.columns[0].no_wrap = True
        for a in algorithms:
            table.add_row(a.name, a.about, _paper(a))
        tables.append(table)
    return Group(*tables, "", "Details and knobs of one: bouquet algorithms NAME")


def card(name: str) -> Group:
    """Return the description of an algorithm: what it does, paper, knobs, what leaves a client.

    Raises:
        ConfigError: There is no such algorithm.
    """
    if name not in ALGORITHMS:
        raise ConfigError(elsewhere("algorithm", name) or choose_from("algorithms NAME", name, ALGORITHMS))
    a = ALGORITHMS[name]
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=a.title, title_justify="left")
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    where = f", {a.paper.where}" if a.paper.where else ""
    paper = f"{a.paper.authors}: {a.paper.title}. {a.paper.year}, {a.paper.source}{where}"
    mean = "unweighted" if a.weight == "uniform" else "weighted by examples"
    sums = ", num-examples" + ("" if a.statistics else ", train-loss") + ", test metrics" * a.personal
    own, neutral = [k for k in knobs() if reads_only(k.key, name)], _neutral(a)
    for label, text in (
        ("what it does", a.about),
        ("paper", paper),
        ("not as published", a.differs),
        ("goes to clients", _fields(a.down, a.down_scalars)),
        (
            "leaves a client",
            _up(a) + sums,
        ),
        ("never leaves it", "training data" + (f", {PRIVATE[a.private]}" if a.private else "")),
        ("a client keeps", _fields(a.keeps, ())),
        ("the mean is", mean if any(r.reduce == "mean" for r in a.up) else ""),
        ("a new client", a.newcomer),
        ("equals FedAvg", neutral if a.no_neutral or not a.neutral else f"when {neutral}"),
    ):
        if text:
            facts.add_row(label, text)
    parts: list[RenderableType] = [facts, ""]
    if own:
        parts += [key_table(own, "its knobs"), ""]
    records = (*a.up, *(r for phase in a.phases.values() for r in phase.up), *a.keeps)
    words = Table(show_header=False, box=None, padding=(0, 2, 0, 2), title="these are", title_justify="left")
    words.add_column(no_wrap=True)
    words.add_column()
    named: tuple[Record | Scalar, ...] = (*records, *a.up_scalars)
    for one in {r.name: r for r in named}.values():
        words.add_row(one.name, one.meaning)
    parts += [words, ""] if words.row_count else []
    return Group(*parts, f"bouquet run -c '{example(a)}'")


def example(a: Algorithm) -> str:
    """Return run-config keys, as ``-c`` takes them, with which an algorithm runs on its default data."""
    if a.example:
        return f'algorithm="{a.name}" dataset="csv" {a.example}'
    own = [k for k in knobs() if reads_only(k.key, a.name)]
    model = ['model="mlp-bn"'] if a.private == "norm" else []  # the default model has no normalisation
    return " ".join([f'algorithm="{a.name}"', *model, *(f"{k.key}={json.dumps(k.default)}" for k in own[:2])])


def _neutral(a: Algorithm) -> str:
    never = f"never: {a.no_neutral}" if a.no_neutral else "is FedAvg"
    return ", ".join(f"{k}={v}" for k, v in a.neutral.items()) or never


def _paper(a: Algorithm) -> str:
    return f"{a.paper.authors.split(',')[0]} et al. {a.paper.year}, {a.paper.source}"


def listing() -> Group:
    """Return every key with its default and its meaning, by section."""
    parts = [
        key_table(list(found), section_title(section))
        for section, found in groupby(knobs(), key=lambda k: k.section)
    ]
    spaced = [one for part in parts for one in (part, "")]
    return Group(*spaced, "Set them with -c 'key=value key=value', or in a TOML file for --recipe.")


def key_table(keys: Sequence[Knob], title: str) -> Table:
    """Return the keys below a heading."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column(no_wrap=True, style="bold")
    table.add_column(justify="right", max_width=14)
    table.add_column()
    for k in keys:
        table.add_row(k.key, json.dumps(k.default), k.meaning)
    return table
