"""Writes generated files: algorithms, composition, reproduction, pyproject's keys, signatures, page.json.

``make docs`` runs it; tests hold all of them to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from textwrap import fill

import click

import strategies
from server_app.cli.catalogue import contracts, groups
from server_app.extras.reproduce.pages import counts, markdown, rows_of, verdict
from server_app.extras.reproduce.tables import read_table, tables
from server_app.results.svg import STYLE
from strategies import STRATEGIES
from strategies.engine.arguments import own_arguments, server_arguments
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.config.read import knobs, section_title
from task.features import CHOICES
from tests import promise

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- algorithms: begin (make docs) -->", "<!-- algorithms: end -->"
STOCK_BEGIN, STOCK_END = "<!-- any ClientApp: begin (make docs) -->", "<!-- any ClientApp: end -->"
MARKS = [*ascii_lowercase, *(a + b for a in ascii_lowercase for b in ascii_lowercase)]
SENT = ["algorithm", "`algorithm=`", "down", "up", "reduced by", "client keeps"]
OWN = [*SENT, "never leaves the client", "a new client begins with"]


ALGORITHMS_HEAD = """\
# What each algorithm does and sends

```bash
bouquet algorithms fedprox        # one algorithm: the same, with its knobs and an example
```

Nothing else leaves a client: a test records every array on the wire and compares it with the
[catalogue](../../task/catalogue/algorithms.py), from which `make docs` makes this page.

A `mean` is weighted by examples. In a `plain mean` all clients have equal weight, as in the paper.

With `standardise` or `missing="mean"` a client also sends the sums of its table's columns, once, before
round 1 ([`columns.py`](../../task/catalogue/columns.py)). For each column of numbers these are the number of
values, their sum and, to standardise, the sum of their squares.

With `metrics` or `groups` a client sends sums over its test examples with its evaluation; those of
[groups of people](../howto/fairness.md#what-leaves-a-site) as far as its owner lets them go."""

NEWCOMERS = """
## Clients that join, are away, or leave

Under {means} the server holds the mean of the clients' states over all clients that the
run has known, online or not:

* A client that joins begins with zero, so the mean shrinks by N_old / N_new before its first round.
* A client that is away stays in the mean with its last state.
* A client that has left for good stays in it, too. The run then converges to the point where its last
  gradient and those of the others sum to zero, as if its loss were linear from then on. To remove the
  client, begin a new run from the model (`initial-model`).

Under `apple` a client that is away, or has left, stays in all clients' mixtures with its last core
model. With differential privacy for clients, M is the expected number of clients, out of all that the
run has known. `fltrust` without `fltrust.root` trusts the first client by name of its first round."""

COMPOSITION_HEAD = """\
# What goes together

```bash
bouquet run -c 'algorithm="krum" secagg=true'     # refused before round 1, with the reason
```

Which algorithms work with which local optimizers, stages and selection policies. A letter stands for the
reason why not, listed below the table; such a run is refused before round 1. `make docs` makes this page
from the catalogue; a test runs every cell that says yes.
"""

REPRODUCTION = """\
# Reproduction of published tables

This page compares our results with the tables of papers, cell by cell:

```bash
bouquet reproduce --list           # every cell, its progress, and the time that it takes
bouquet reproduce --quoted --list --budget 5min    # published values that take at most five minutes here
bouquet reproduce mcmahan-table1-2nn-centred --cells iid-b10-c0 --again   # such a cell once more
bouquet reproduce mcmahan-table1-2nn --cells 'iid-*' --budget 2h
bouquet reproduce fedprox --jobs 8 # eight runs at the same time, each with its share of the cores
bouquet reproduce mytable.toml     # your own table; its results.jsonl lies next to it
```

A cell that has all its results runs only with `--again`, at its best rate. At the end stands a table with
the published value, the recorded one and the new one, and whether the models are the same to the bit:

```
cell        published  recorded      again         difference  verdict
iid-b10-c0  316        229.1 ± 12.3  229.1 ± 12.3  -28 %       same bits in 3 of 3 seeds
```

`make docs` makes the page from the [tables](../../task/recipes/tables) and the
[results](../../task/recipes/tables/results.jsonl). Only `bouquet reproduce` writes results: each run's value,
hash of the final model, time, machine, date and commit. [tables.md](../howto/tables.md) says how to write a
table, with its keys and metrics.

How to read the tables:

* A cell is a recipe with changes, a grid of learning rates, and seeds. The rate is chosen on the first
  seed, and the other seeds run at that rate. Mean ± sample standard deviation are over all seeds.
* A run of the grid ends as soon as it cannot be the best one: after the number of rounds that the best one
  needed.
* A grid is *walked*: from a start to the neighbours of the best rate, until both are worse. This finds the
  best of the whole grid if there is one optimum over the rates. The number of rates tried is in brackets.
* A factor such as (16.5x) says how many times fewer rounds a cell needs than FedSGD, in McMahan's Table 1
  than C = 0.
* `>N`: a run ended after N rounds without the target. A cell with such a seed has no mean.
* *full*: all seeds at the published size; *fraction*: less, and what; *not run*: no results yet.
* Hours are wall-clock time, including the grid's, on machines with much other work: two cores, or a
  borrowed machine with a GPU. Estimates are for two quiet cores, until a cell has its own runs.
* Bits depend on the processor's vector instructions, or the GPU: a hash is valid for the machine next to
  it.
"""


def table(head: list[str], lines: list[list[str]]) -> str:
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*text, *("| " + " | ".join(line) + " |" for line in lines)])


def with_table(text: str) -> str:
    """Return the README's text with the table between its two marks replaced: the names by what one wants."""
    lines = [[title, " ".join(f"`{a.name}`" for a in some)] for title, some in groups().items()]
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(['you want', '`algorithm=`'], lines)}\n{END}{tail}"


def paper_link(a: Algorithm) -> str:
    first, *others = a.paper.authors.split(",")
    return f"[{first}{' et al.' if others else ''} {a.paper.year}]({a.paper.url})"


def sent() -> str:
    """Return docs/reference/algorithms.md: what each algorithm does, and what goes to and leaves clients."""
    parts = [ALGORITHMS_HEAD]
    for title, algorithms in groups().items():
        head = OWN if algorithms[0].personal else [*SENT, "equals FedAvg when"]
        does = [[f"`{a.name}`", a.about, paper_link(a)] for a in algorithms]
        parts += ["", f"## {title}", "", table(["`algorithm=`", "what it does", "paper"], does)]
        parts += ["", table(head, contracts(algorithms))]
        if differing := [f"- `{a.name}`: {a.differs}" for a in algorithms if a.differs]:
            parts += ["", "Not as published:", "", *differing]
    means = [f"`{a.name}`" for a in ALGORITHMS.values() if any(r.mean for r in a.keeps)]
    parts.append(NEWCOMERS.format(means=", ".join(means)))
    return "\n".join([*parts, ""])


def with_keys(text: str) -> str:
    """Return the text of pyproject.toml with every run-config key, its default and its meaning."""
    head, mark, rest = text.partition("[tool.flwr.app.config]\n")
    _, end, tail = rest.partition("[tool.ruff]\n")
    nested_last = sorted(knobs(), key=lambda k: "." in k.key)
    sections = groupby(nested_last, key=lambda k: k.key.rpartition(".")[0])
    tables = [
        f"[tool.flwr.app.config.{name}]\n" * bool(name)
        + "".join(f"{k.key.rpartition('.')[2]} = {json.dumps(k.default)}  # {k.doc}\n" for k in keys)
        for name, keys in sections
    ]
    return head + mark + "\n".join([*tables, ""]) + end + tail


KEYS_HEAD = """\
# Run-config keys

```bash
bouquet run --help-keys                                  # this list, in the terminal
bouquet run -c 'algorithm="fedprox" fedprox.mu=0.1'      # set some
```

[contributing.md](../explain/contributing.md#follow-one-thing-through-the-code) says where a key's code
is. If you set a key that the run does not read, the run is refused; the error says what would read the key.
`make docs` makes this page from the keys' declarations."""

COMMANDS_HEAD = """\
# Commands

```bash
bouquet --help
bouquet run --help
bouquet --install-completion      # completes commands and options in bash, zsh, fish and PowerShell
```

A package that is installed brings all this as a manual page, too: `man bouquet`. `make docs` makes both
from the commands' help. The [exit codes](../howto/deploy.md#exit-codes) are the same for all."""


def cell(text: str) -> str:
    return " ".join(text.replace("\\[", "[").replace("|", "\\|").replace("<", "&lt;").split())


def keys() -> str:
    """Return docs/reference/keys.md: every run-config key with its default, values and meaning."""
    parts = [KEYS_HEAD]
    nested_last = sorted(knobs(), key=lambda k: "." in k.key)
    for section, some in groupby(nested_last, key=lambda k: k.key.rpartition(".")[0]):
        found = list(some)
        lines = [[f"`{k.key}`", f"`{cell(json.dumps(k.default))}`", linked(cell(k.meaning))] for k in found]
        about = ["", f"{linked(section_title(found[0].section))}."] if section else []
        parts += ["", f"## {section or 'Of a run'}", *about, ""]
        parts.append(table(["key", "default", "meaning"], lines))
    return "\n".join([*parts, ""])


def linked(text: str) -> str:
    """Return a text of the code as a page of docs/reference has it: with links to the pages it names."""
    plain = re.sub(r"(?:``)?docs/([\w/-]+\.md)(?:``)?", lambda m: f"[{Path(m[1]).name}](../{m[1]})", text)
    return plain.replace("``", "`")


def command_pages() -> str:
    """Return docs/reference/commands.md: every command with its arguments and options, from its help."""
    parts = [COMMANDS_HEAD]
    for name, command in promise.commands():
        parts += ["", f"## {name}", "", about(command)]
        lines = []
        for p in command.params:
            names = ", ".join(f"`{o}`" for o in [*p.opts, *p.secondary_opts])
            shown = names if p.param_type_name == "option" else f"`{p.name.upper()}`"
            lines.append([shown, cell(getattr(p, "help", "") or "")])
        parts += ["", table(["option", "meaning"], lines)] if lines else []
    return "\n".join([*parts, ""])


def about(command: click.Command) -> str:
    return re.sub(r"\[/?(bold|dim|i)\]", "", command.help or "").replace("\\[", "[")


def roff(text: str) -> str:
    """Return text as a manual page has it; its hyphens are those that a reader can copy into a shell."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.splitlines())


def manual() -> str:
    """Return docs/reference/bouquet.1: every command as commands.md has it, as a manual page."""
    does = "federated learning: run, compare, deploy and check every classic algorithm"
    lines = ['.TH BOUQUET 1 "" Bouquet "User Commands"', ".SH NAME", roff(f"bouquet - {does}")]
    lines += [".SH SYNOPSIS", ".B bouquet", ".I COMMAND", roff("[OPTION]..."), ".SH COMMANDS"]
    for name, command in promise.commands():
        lines += [f'.SS "{roff(name)}"', roff(about(command)).replace("\n\n", "\n.PP\n")]
        for p in command.params:
            option = p.param_type_name == "option"
            names = ", ".join([*p.opts, *p.secondary_opts]) if option else p.name.upper()
            valued = option and not getattr(p, "is_flag", False)
            value = f" \\fI{roff(p.type.name.upper())}\\fR" if valued else ""
            meaning = " ".join((getattr(p, "help", "") or "").replace("\\[", "[").split())
            lines += [".TP", f"\\fB{roff(names)}\\fR{value}", roff(meaning)]
    return "\n".join([*lines, ""])


def composition() -> str:
    """Return what goes together: one row per algorithm, one column per choice, the reasons below."""
    reasons: dict[str, str] = {}
    lines = []
    for entry in ALGORITHMS.values():
        cells = []
        for choice in CHOICES:
            why = choice.why_not(entry)
            cells.append(reasons.setdefault(why, MARKS[len(reasons)]) if why else "yes")
        lines.append([f"`{entry.name}`", *cells])
    notes = [f"- **{mark}**: {why}" for why, mark in reasons.items()]
    columns = table(["algorithm", *(f"`{choice}`" for choice in CHOICES)], lines)
    return "\n".join([COMPOSITION_HEAD, columns, "", *notes, ""])


def reproduction() -> str:
    """Return docs/results/reproduction.md: every cell of the tables of papers, ours beside theirs."""
    found = sorted((read_table(name) for name in tables()), key=lambda t: t.group)
    parts = [(t, rows_of(t)) for t in found]
    lines = [[f"[{t.title}](#{anchor(t.title)})", f"`{t.name}`", *counts(rows)] for t, rows in parts]
    claims = [
        [claim.says, claim.where, f"[{t.name}](#{anchor(t.title)})", verdict(claim, rows)]
        for t, rows in parts
        for claim in t.claims
    ]
    head = ["", "`bouquet reproduce`", "cells", "full", "fraction", "not run", "time left, estimated"]
    said = table(["the paper says", "where", "table", "here"], claims)
    whole = "\n".join(markdown(t, rows, level=2) for t, rows in parts)
    return f"{REPRODUCTION}\n{table(head, lines)}\n\n## Claims\n\n{said}\n\n{whole}"


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def page() -> str:
    """Return style and script of report.html, made of the monitor's files: a bundle ships neither."""
    files = ROOT / "server_app" / "extras" / "monitor" / "static"
    parts = ["words", "elements", "common", "run", "report"]  # each after those that it imports
    script = "\n".join((files / f"{part}.js").read_text("utf-8") for part in parts)
    script = re.sub(r"^import [^;]*;\n", "", script, flags=re.M)
    script = re.sub(r"^export ", "", script, flags=re.M)
    style = STYLE + (files / "app.css").read_text("utf-8")
    return json.dumps({"style": style, "script": script}, indent=1) + "\n"


STUB = '''\
"""What editors and type checkers know of the strategies; `make docs` writes this file."""

from typing import TypedDict, Unpack

from strategies.shells import STRATEGIES as STRATEGIES
from strategies.shells import strategy_of as strategy_of
from strategies.strategy import Strategy as Strategy

__all__ = {names}

class ServerArguments(TypedDict, total=False):
    """Arguments of every strategy."""

'''


def stub() -> str:
    """Return strategies/__init__.pyi: each strategy with its own arguments by name, default and meaning."""

    def wrapped(line: str, deeper: int = 4) -> str:
        indent = len(line) - len(line.lstrip())
        return fill(line.replace('"', "'"), 104, subsequent_indent=" " * (indent + deeper))

    lines, stock = [], promise.stock_classes()
    for name, knob in server_arguments().items():
        meaning = wrapped(f"    {knob.doc}", 0).lstrip()
        lines += [f"    {name}: {knob.type.__name__}", f'    """{meaning}"""']
    for made in STRATEGIES.values():
        own = own_arguments(made.algorithm)
        title = (made.__doc__ or "").partition("\n")[0]
        clients = "any Flower ClientApp" if made.__name__ in stock else "Bouquet's ClientApp"
        lines += ["", f"class {made.__name__}(Strategy):", f'    """{title}', "", f"    Clients: {clients}."]
        if own:
            lines += ["", "    Args:", *(wrapped(f"        {n}: {k.doc}") for n, k in own.items())]
        lines += ['    """', "", "    def __init__(", "        self,"]
        lines += ["        *,"] if own else []
        for name, knob in own.items():
            default = json.dumps(knob.default) if knob.type is str else repr(knob.default)
            lines.append(f"        {name}: {knob.type.__name__} = {default},")
        lines += ["        **server: Unpack[ServerArguments],", "    ) -> None: ..."]
    names = sorted(strategies.__all__, key=lambda name: (not name.isupper(), name))  # as ruff sorts them
    listed = "".join(f'    "{name}",\n' for name in names)
    return STUB.replace("{names}", f"[\n{listed}]") + "\n".join(lines) + "\n"


def with_stock_classes(text: str) -> str:
    """Return docs/howto/extend.md with the list of those strategies between its two marks."""
    head, _, rest = text.partition(STOCK_BEGIN)
    _, _, tail = rest.partition(STOCK_END)
    listed = fill(", ".join(f"`{name}`" for name in promise.stock_classes()) + ".", 100)
    return f"{head}{STOCK_BEGIN}\n\n{listed}\n\n{STOCK_END}{tail}"


GENERATED: dict[str, Callable[[str], str]] = {  # by file, what makes its text of what it was
    "README.md": with_table,
    "docs/howto/extend.md": with_stock_classes,
    "docs/reference/algorithms.md": lambda _: sent(),
    "docs/reference/composition.md": lambda _: composition(),
    "docs/reference/keys.md": lambda _: keys(),
    "docs/reference/commands.md": lambda _: command_pages(),
    "docs/reference/bouquet.1": lambda _: manual(),
    "docs/results/reproduction.md": lambda _: reproduction(),
    "server_app/results/page.json": lambda _: page(),
    "strategies/__init__.pyi": lambda _: stub(),
    "pyproject.toml": with_keys,
    "docs/reference/promise.json": lambda _: promise.text(),
}


if __name__ == "__main__":
    changed = []
    for path, text_of in GENERATED.items():
        before = (ROOT / path).read_text()
        if (made := text_of(before)) != before:
            (ROOT / path).write_text(made)
            changed.append(path)
    print("written:", ", ".join(changed) or "nothing, all files are up to date")
