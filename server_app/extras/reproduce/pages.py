"""A paper's table with our values next to the published ones, as Markdown and as HTML."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from server_app.extras.reproduce.plan import Standing, standing
from server_app.extras.reproduce.records import SECONDS_AN_HOUR, RunRecord, RunRecords, results_of
from server_app.extras.reproduce.tables import (
    DIFFERENCE,
    OVER_BEST,
    RATIO,
    Cell,
    PublishedClaim,
    PublishedTable,
)
from server_app.results.svg import element
from server_app.sweep.report import html
from server_app.sweep.report import table as html_table
from task.numerics.metrics import mean_and_std
from task.units import human_seconds

NOT_RUN = "not run"
HEADS = (
    "cell", "setting", "published", "ours", "difference", "learning rate (tried)", "seeds", "status",
    "time", "machine", "model", "date",
)  # fmt: skip
CLAIM_HEADS = ("the paper's claim", "where", "here")
SHORT_HASH = 8
CANNOT_RUN = "cannot run here"  # the time of a cell that needs something that is absent
BAR = "\\|"  # in a row of Markdown


@dataclass(frozen=True)
class TableRow:
    """One cell with its numbers in words."""

    at: Standing
    published: str
    ours: str
    difference: str
    rate: str
    seeds: str
    status: str
    time: str
    machine: str
    model: str
    date: str

    @property
    def texts(self) -> list[str]:
        """Its columns, in the order of `HEADS`."""
        cell = self.at.cell
        return [
            cell.name, cell.setting, self.published, self.ours, self.difference, self.rate, self.seeds,
            self.status, self.time, self.machine, self.model, self.date,
        ]  # fmt: skip


def rows_of(table: PublishedTable, cells: Iterable[Cell] | None = None) -> list[TableRow]:
    """Return the rows of a table, by default all, as its results file has them."""
    runs = RunRecords(results_of(table.path)).by_run
    base = {name: standing(cell, runs) for name, cell in table.cells.items()}
    return [
        row_of(standing(cell, runs), base.get(cell.speed_up_over)) for cell in cells or table.cells.values()
    ]


def row_of(at: Standing, base: Standing | None = None) -> TableRow:
    """Return the row of a cell; its speed-up is over `base`."""
    cell, records = at.cell, list(at.by_seed.values())
    return TableRow(
        at,
        published=_published(cell) + (_speed_up(base.cell.published, cell.published) if base else ""),
        ours=_ours(at) + (_speed_up(base.mean, at.mean) if base else ""),
        difference=_difference(at),
        rate=f"{at.rate:.4g} ({len(at.tried)} of {len(cell.rates)})" if at.rate is not None else "",
        seeds=", ".join(f"{seed}: {said(cell, record)}" for seed, record in at.by_seed.items()),
        status=status(at),
        time=took(at.hours) if at.tried else f"({took(at.hours_left)} to do)",
        machine="; ".join(dict.fromkeys(record.machine for record in records)),
        model=" ".join(record.model_sha256[:SHORT_HASH] for record in records),
        date=max((record.date for record in records), default=""),
    )


def _published(cell: Cell) -> str:
    value, sd, decimals = cell.published, cell.published_sd, cell.measure.decimals
    if value is None:
        return "not quoted"
    if sd is None and float(value).is_integer() and cell.measure.to_target:
        return f"{value:.0f}"
    return f"{value:.{decimals}f}" + ("" if sd is None else f" ± {sd:.{decimals}f}")


def _speed_up(base: float | None, rounds: float | None) -> str:
    return f" ({base / rounds:.3g}x)" if base and rounds else ""


def said(cell: Cell, record: RunRecord) -> str:
    """Return what a run got in words: its measure, or that it ended before the target."""
    value = record.values.get(cell.measure.name)
    if value is not None:
        return f"{value:.{cell.measure.decimals}f}"
    return f">{record.rounds}" if cell.measure.to_target else "none"


def _ours(at: Standing) -> str:
    if not at.by_seed:
        return ""
    if at.mean is not None:
        decimals = at.cell.measure.decimals
        return f"{at.mean:.{decimals}f}" + ("" if at.std is None else f" ± {at.std:.{decimals}f}")
    lacking = [r.rounds for r in at.by_seed.values() if at.cell.measure.name not in r.values]
    word = f">{min(lacking)}" if at.cell.measure.to_target else "none"
    return word + (f" in {at.missed} of {len(at.by_seed)} seeds" if at.values else "")


def _difference(at: Standing) -> str:
    """Return ours less theirs in published standard deviations, or in per cent of rounds."""
    cell = at.cell
    if at.mean is None or cell.published is None:
        return ""
    gap = at.mean - cell.published
    if cell.published_sd:
        return f"{gap:+.{cell.measure.decimals}f} ({gap / cell.published_sd:+.1f} sd)"
    if cell.measure.to_target:
        return f"{100 * gap / cell.published:+.0f} %"
    return f"{gap:+.{cell.measure.decimals}f}"


def status(at: Standing) -> str:
    """Return full, fraction (what), or not run."""
    cell = at.cell
    if not at.tried:
        return f"{NOT_RUN}: {cell.needs}" if cell.needs else NOT_RUN
    less = [cell.fraction] if cell.fraction else []
    if at.rate is None:
        less.append(f"{len(at.tried)} of {len(cell.rates)} learning rates, and more to try")
    elif len(at.by_seed) < len(cell.seeds):
        less.append(f"{len(at.by_seed)} of {len(cell.seeds)} seeds")
    if at.missed and not cell.measure.to_target:
        less.append(f"no value in {at.missed} of {len(at.by_seed)} seeds")
    if at.at_the_edge:
        less.append("the best rate is at the edge of the grid")
    if less:
        return f"fraction ({'; '.join(less)})"
    if len(at.tried) < len(cell.rates):
        return f"full, grid walked ({len(at.tried)} of {len(cell.rates)} rates)"
    return "full"


def verdict(claim: PublishedClaim, rows: Sequence[TableRow]) -> str:
    """Return whether a claim holds here, with the numbers; every cell that it needs must be measured.

    It says which bound numbers lie outside of, and how many cells lack seeds, whose means may still move.
    """
    by_name = {row.at.cell.name: row.at for row in rows}
    means = {name: by_name[name].mean for name in (*claim.cells, *claim.base)}
    known = {name: mean for name, mean in means.items() if mean is not None}
    if len(known) < len(means):
        return f"open: {len(means) - len(known)} of {len(means)} cells have no value"
    ours, base = ([known[name] for name in names] for names in (claim.cells, claim.base))
    base = [min(base)] if claim.of == OVER_BEST else base
    if 0 in {RATIO: ours, DIFFERENCE: [], OVER_BEST: base}[claim.of]:
        return "open: a mean is 0"
    pairs = zip(ours, base if len(base) == len(ours) else base * len(ours), strict=True)
    found = [a - b if claim.of == DIFFERENCE else b / a if claim.of == RATIO else a / b for a, b in pairs]
    mean = mean_and_std(found)[0]
    inside = [claim.low <= value <= claim.high for value in found]
    word = f"holds in {sum(inside)} of {len(inside)}" if any(inside) else "does not hold"
    word = "holds" if all(inside) else word
    outside = [f"above {claim.high:g}"] * (max(found) > claim.high)
    outside += [f"below {claim.low:g}"] * (min(found) < claim.low)
    word += f" ({' and '.join(outside)})" if outside else ""
    numbers = ", ".join(f"{value:.3g}" for value in found)
    lacking = sum(not by_name[name].done for name in means)
    parts = [f"{word}: {numbers}"] + [f"mean {mean:.3g}"] * (len(found) > 1)
    return "; ".join(parts + [f"{lacking} of {len(means)} cells lack seeds"] * (lacking > 0))


def counts(rows: Sequence[TableRow]) -> list[str]:
    """Return how many cells there are, are full, a fraction and not run, and the time that is left."""
    kinds = [row.status.split(" ")[0].rstrip(",:") for row in rows]
    # Cells that count different things of the same runs want them once.
    wanted = {tuple(run.folder for run in row.at.wanted): row.at for row in rows if not row.at.cell.needs}
    left = math.fsum(at.hours_left for at in wanted.values())
    time = took(left) if left or not _lacking(rows) else CANNOT_RUN
    return [*map(str, [len(rows), *map(kinds.count, ("full", "fraction", "not"))]), time]


def _lacking(rows: Sequence[TableRow]) -> int:
    """Return how many cells are open and need something that is absent."""
    return sum(bool(row.at.cell.needs) and not row.at.done for row in rows)


def counted(rows: Sequence[TableRow]) -> str:
    """Return the same as a sentence."""
    number, full, fraction, not_run, left = counts(rows)
    cells = several(len(rows), "cell")
    if full == number:
        return f"{cells}, all full."
    words = f"{cells}: {full} full, {fraction} a fraction, {not_run} not run"
    if left != CANNOT_RUN:
        words += f"; {left} estimated for the rest"
    lacking = _lacking(rows)
    return words + (f"; {lacking} need what is absent." if lacking else ".")


def notes(rows: Sequence[TableRow]) -> list[str]:
    """Return what stands under a table: where its values are from, and why some are not quoted."""
    places = dict.fromkeys(row.at.cell.where for row in rows)
    found = [f"Published: {'; '.join(places)}."]
    whys: dict[str, list[str]] = {}
    for row in rows:
        if row.at.cell.unquoted:
            whys.setdefault(row.at.cell.unquoted, []).append(row.at.cell.name)
    for why, names in whys.items():
        which = "Nothing is quoted" if len(names) == len(rows) else f"Not quoted for {', '.join(names)}"
        found.append(f"{which}: {why}.")
    return found


def markdown(table: PublishedTable, rows: Sequence[TableRow], level: int = 1) -> str:
    """Return a table with its notes and claims as Markdown."""
    filled = [i for i, _ in enumerate(HEADS) if i < 8 or any(row.texts[i] for row in rows)]
    lines = [f"{'#' * level} {table.title}", "", _paper(table), ""]
    lines += [table.about.strip(), ""] if table.about else []
    lines += [counted(rows), ""]
    lines += [_line([HEADS[i] for i in filled]), "|" + "---|" * len(filled)]
    lines += [_line([f"`{row.texts[0]}`", *(row.texts[i] for i in filled[1:])]) for row in rows]
    lines += ["", *(f"* {note}" for note in notes(rows))]
    if table.claims:
        lines += ["", _line(CLAIM_HEADS), "|---|---|---|"]
        lines += [_line([claim.says, claim.where, verdict(claim, rows)]) for claim in table.claims]
    return "\n".join([*lines, ""])


def _line(texts: Iterable[str]) -> str:
    """Return a row of a table in Markdown, whose texts may hold bars and line breaks."""
    return f"| {' | '.join(' '.join(text.replace('|', BAR).split()) for text in texts)} |"


def _paper(table: PublishedTable) -> str:
    return f"[{table.paper}]({table.url})" if table.url else table.paper


def as_html(table: PublishedTable, rows: Sequence[TableRow]) -> str:
    """Return the same as a page."""
    link: Element | str = element("a", {"href": table.url}, table.paper) if table.url else table.paper
    inside = [element("h1", None, table.title), element("p", {"class": "soft"}, link)]
    inside += [element("p", None, text) for text in (table.about.strip(), counted(rows)) if text]
    inside.append(html_table(HEADS, [row.texts for row in rows]))
    inside.append(element("ul", None, *(element("li", None, note) for note in notes(rows))))
    if table.claims:
        lines = [[claim.says, claim.where, verdict(claim, rows)] for claim in table.claims]
        inside.append(html_table(CLAIM_HEADS, lines))
    return html(table.title, inside)


def several(count: int, noun: str) -> str:
    """Return for example "1 cell" or "2 cells"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def took(hours: float) -> str:
    """Return the time that runs take, in words."""
    return human_seconds(hours * SECONDS_AN_HOUR)
