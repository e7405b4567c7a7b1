"""Writes what follows from elsewhere: algorithms, composition, reproduction, pyproject's keys, page.json.

``make docs`` runs it; tests hold all of them to it.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase

from server_app.cli.catalogue import contracts, groups
from server_app.extras.reproduce.pages import counts, markdown, rows_of, verdict
from server_app.extras.reproduce.tables import read_table, tables
from server_app.results.svg import STYLE
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.config.read import knobs
from task.features import CHOICES

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- algorithms: begin (make docs) -->", "<!-- algorithms: end -->"
MARKS = [*ascii_lowercase, *(a + b for a in ascii_lowercase for b in ascii_lowercase)]
SENT = ["algorithm", "`algorithm=`", "down", "up", "reduced by", "client keeps"]
OWN = [*SENT, "never leaves the client", "a new client begins with"]


REPRODUCTION = """\
# Reproduction of published tables

Made by `make docs` from the [tables](../task/recipes/tables) and the
[results](../task/recipes/tables/results.jsonl), which only `bouquet reproduce` writes: each run's value,
hash of the final model, hours, machine, date and commit.

```bash
bouquet reproduce --list           # every cell, how far it is, and the hours that it takes
bouquet reproduce mcmahan-table1-2nn --cells 'iid-*' --budget 2h
bouquet reproduce fedprox --jobs 8 # eight runs at the same time, each with its share of the cores
bouquet reproduce mytable.toml     # a table of your own; its results.jsonl lies next to it
```

How a table is written down, with its keys and metrics: [tables.md](tables.md).

* A cell is a recipe with changes, a grid of learning rates, and seeds. The rate is chosen on the first
  seed. The others run at that rate, and mean ± sample standard deviation are over all of them.
* A run of the grid ends as soon as it cannot be the best one: after as many rounds as the best one needed.
* A grid is *walked*: from a start to the neighbours of the best rate, until both are worse. That is the
  best of the whole grid if there is one optimum over the rates. In brackets stands how many of its rates
  were tried.
* `>N`: a run ended after N rounds without the target. A cell with such a seed has no mean.
* *full*: all seeds at the published size; *fraction*: less, and what; *not run*: nothing yet.
* Hours are by the clock, the grid's included, on machines that had much other work: two cores, or a lent
  one with a GPU. Estimates are for two quiet cores, until a cell has runs of its own.
* Bits depend on the processor's vector instructions, or the GPU: a hash holds for the machine that stands
  next to it.
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
    """Return docs/algorithms.md: what each algorithm does, what goes to clients and what leaves them."""
    parts = [
        "# What each algorithm does and sends",
        "",
        "Made by `make docs` from [the catalogue](../task/catalogue/algorithms.py).",
        "Nothing else leaves a client: a test records every array on the wire and compares it with the",
        "catalogue. A `mean` is weighted by examples; in a `plain mean` all clients count alike, as in the",
        'paper. With `standardise` or `missing="mean"` the sums of the columns of its table go up too, once,',
        "before round 1 ([`columns.py`](../task/catalogue/columns.py)): of each column of numbers how many",
        "values there are, their sum and, to standardise, the sum of their squares.",
    ]
    for title, algorithms in groups().items():
        head = OWN if algorithms[0].personal else [*SENT, "equals FedAvg when"]
        does = [[f"`{a.name}`", a.about, paper_link(a)] for a in algorithms]
        parts += ["", f"## {title}", "", table(["`algorithm=`", "what it does", "paper"], does)]
        parts += ["", table(head, contracts(algorithms))]
        if differing := [f"- `{a.name}`: {a.differs}" for a in algorithms if a.differs]:
            parts += ["", "Not as published:", "", *differing]
    means = [f"`{a.name}`" for a in ALGORITHMS.values() if any(r.mean for r in a.keeps)]
    parts += [
        "",
        "## Clients that join, are away, or leave",
        "",
        f"Under {', '.join(means)} the server holds the mean over all clients of what each of them keeps.",
        "All clients are those that the run has known, online or not. One that joins begins with zero, so",
        "that the mean shrinks by N_old / N_new before its first round; one that is away stays in it with",
        "what it last had. A client that has left for good stays in it, too: the run then goes to the point",
        "where the gradient that it last had and those of the others sum to zero, as if its loss were linear",
        "from then on. To be rid of it, begin a new run from the model (`initial-model`).",
        "",
        "Under `apple` a client that is away, or has left, stays in everybody's mixture with its last core",
        "model. With differential privacy for clients, M is the number of clients to be expected of all that",
        "the run has known. `fltrust` without `fltrust.root` trusts the first by name of its first round.",
    ]
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
    return "\n".join(
        [
            "# What goes together",
            "",
            "Algorithms with local optimizers, stages and selection policies. A letter says why not, and",
            "such a run is refused before round 1. Made by `make docs` from the catalogue; a test runs every",
            "cell that says yes.",
            "",
            table(["algorithm", *(f"`{choice}`" for choice in CHOICES)], lines),
            "",
            *notes,
            "",
        ]
    )


def reproduction() -> str:
    """Return docs/reproduction.md: every cell of the tables of papers, ours beside theirs."""
    found = sorted((read_table(name) for name in tables()), key=lambda t: t.group)
    parts = [(t, rows_of(t)) for t in found]
    lines = [[f"[{t.title}](#{anchor(t.title)})", f"`{t.name}`", *counts(rows)] for t, rows in parts]
    claims = [
        [claim.says, claim.where, f"[{t.name}](#{anchor(t.title)})", verdict(claim, rows)]
        for t, rows in parts
        for claim in t.claims
    ]
    head = ["", "`bouquet reproduce`", "cells", "full", "fraction", "not run", "hours left, estimated"]
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


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text()))
    (ROOT / "docs/algorithms.md").write_text(sent())
    (ROOT / "docs/composition.md").write_text(composition())
    (ROOT / "docs/reproduction.md").write_text(reproduction())
    (ROOT / "server_app/results/page.json").write_text(page())
    project = ROOT / "pyproject.toml"
    project.write_text(with_keys(project.read_text()))
