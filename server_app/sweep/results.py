"""What a sweep amounts to: its configurations, the best of them, and differences over paired seeds."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from server_app.results import compare
from server_app.results.groups import Run, groups, said
from server_app.results.lines import Row
from server_app.results.paired import Difference, over_seeds
from server_app.results.summary import summarise
from server_app.sweep.queue import FAILED, STOPPED, Entry, SweepQueue
from task.numerics.metrics import mean_and_std

PERCENT = 100


@dataclass
class Outcome:
    """A sweep's results, as far as its runs have any."""

    curves: dict[str, list[Run]]  # by configuration
    on: str  # where accuracies were measured, see `compare.choose`
    header: list[str]
    lines: list[list[str]]  # a row for each configuration
    remarks: list[str]
    scores: dict[str, list[float]]  # by configuration of finished runs, its final numbers by seed
    metric: str  # what these are: accuracy in percent, or loss
    best: str | None = None
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by configuration, its swept keys

    @property
    def sign(self) -> int:
        """1 if more is better, else -1."""
        return 1 if self.metric == "accuracy" else -1

    @property
    def unit(self) -> str:
        """What scores are counted in, with a space in front; "" for a loss."""
        return " %" if self.metric == "accuracy" else ""

    @property
    def decimals(self) -> int:
        """Digits behind the point of a score."""
        return 2 if self.metric == "accuracy" else 4


def outcome(queue: SweepQueue, on: str | None, target: float) -> Outcome:
    """Compare all runs of a sweep that have rounds.

    Raises:
        ConfigError: No run has any, or they have no accuracy measured at one place.
    """
    curves = groups([queue.folder])
    on, remarks = compare.choose(curves, on)
    header, lines, more = compare.table(curves, on, target)
    runs = [run for group in curves.values() for run in group]
    metric = "accuracy" if any(_final(run, on, "accuracy") is not None for run in runs) else "loss"
    stopped = {entry.name for entry in queue.entries if entry.state == STOPPED}
    scores = {
        name: values
        for name, runs in curves.items()
        if not any(run.path.name in stopped for run in runs)
        and len(values := [a for run in runs if (a := _final(run, on, metric)) is not None]) == len(runs)
    }
    most = max(map(len, scores.values()), default=0)
    full = {name: mean_and_std(values)[0] for name, values in scores.items() if len(values) == most}
    out = Outcome(curves, on, header, lines, remarks + more, scores, metric)
    out.best = max(full, key=lambda name: out.sign * full[name], default=None)
    by_name = {entry.name: entry.keys for entry in queue.entries}
    for name, runs in curves.items():
        keys = by_name[runs[0].path.name]
        out.settings[name] = {key: keys[key] for key in queue.swept if key in keys and key != "seed"}
    out.remarks += _ended_early(queue)
    return out


def _final(run: Run, on: str, metric: str) -> float | None:
    value = summarise(run.rounds, run.clients, run.config, [], on)[metric]
    return None if value is None else float(value) * (PERCENT if metric == "accuracy" else 1)


def _ended_early(queue: SweepQueue) -> list[str]:
    found = []
    if stopped := queue.count(STOPPED):
        found.append(
            f"{stopped} runs were stopped by the median rule: their final numbers are those of "
            "their last round."
        )
    if failed := queue.count(FAILED):
        found.append(f"{failed} runs failed and are not in the table.")
    return found


def best_words(out: Outcome) -> list[str]:
    """Return sentences on the best configuration and on how sure its lead is."""
    if out.best is None:
        return []
    mean, std = mean_and_std(out.scores[out.best])
    spread = "" if std is None else f" ± {std:.{out.decimals}f}"
    seeds = f", {len(out.scores[out.best])} seeds" if std is not None else ""
    words = [f"Best: {out.best}: final {out.metric} {mean:.{out.decimals}f}{spread}{out.unit}{seeds}."]
    rivals = differences(out)
    words += [_difference_words(out, other, difference) for other, difference in rivals]
    if rivals and len(out.curves) > 2:
        words.append(
            "The best configuration was chosen by the same numbers that it is reported with, which "
            "flatters it: repeat it with new seeds before you rely on it."
        )
    return words


def differences(out: Outcome) -> list[tuple[str, Difference]]:
    """Return the best configuration minus the best one of each other algorithm, over the seeds both have.

    With one algorithm it is minus the second best configuration.
    """
    if out.best is None:
        return []
    best = out.curves[out.best]
    mean = {name: mean_and_std(values)[0] for name, values in out.scores.items()}
    others = sorted((n for n in mean if n != out.best), key=lambda n: -out.sign * mean[n])
    algorithms = {name: str(out.curves[name][0].config.get("algorithm")) for name in mean}
    rivals = {algorithms[n]: n for n in reversed(others) if algorithms[n] != algorithms[out.best]}
    chosen = [n for n in others if n in rivals.values()] if rivals else others[:1]
    found = [
        (n, over_seeds(best, out.curves[n], lambda run: _final(run, out.on, out.metric))) for n in chosen
    ]
    return [(name, difference) for name, difference in found if difference is not None]


def matched(out: Outcome) -> list[tuple[str, str, Difference]]:
    """Return differences of algorithms under keys that are otherwise alike, as (pair, keys, difference)."""
    found = list[tuple[str, str, Difference]]()
    names = list(out.scores)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            a, b = out.settings[first], out.settings[second]
            shared = [key for key in a if key in b and key != "algorithm"]
            if a.get("algorithm") == b.get("algorithm") or any(a[key] != b[key] for key in shared):
                continue
            runs = out.curves[first], out.curves[second]
            if difference := over_seeds(*runs, lambda run: _final(run, out.on, out.metric)):
                own = [key for key in (*a, *b) if (key in a) != (key in b)]
                words = [said(key, {**a, **b}[key]) for key in (*shared, *own)]
                found.append(
                    (f"{a['algorithm']} minus {b['algorithm']}", ", ".join(words) or "-", difference)
                )
    return found


def _difference_words(out: Outcome, other: str, d: Difference) -> str:
    sure = "" if d.low > 0 or d.high < 0 else ", which includes 0"
    mean, low, high = (f"{value:+.{out.decimals}f}" for value in (d.mean, d.low, d.high))
    points = " points" if out.metric == "accuracy" else ""
    return (
        f"{out.best} minus {other}: {mean}{points} over {d.pairs} paired seeds; 95 % confidence interval "
        f"(paired t) {low} to {high}{sure}."
    )


def as_csv(queue: SweepQueue, out: Outcome | None, target: float) -> str:
    """Return a line for each run: how it ended, its swept keys and its numbers."""
    by_name = {run.path.name: run for runs in out.curves.values() for run in runs} if out else {}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    swept = list(queue.swept)
    numbers = ("rounds", "accuracy", "best_accuracy", "best_round", "loss", "client_accuracy", "client_loss")
    to = [f"{what}_to_target" for what in ("rounds", "bytes", "seconds")]
    last = ("bytes_up", "bytes_down", "seconds", "model_sha256")
    writer.writerow(["run", "state", *swept, *numbers, *to, *last, "target", "error"])
    for entry in queue.entries:
        run = by_name.get(entry.name)
        result = summarise(run.rounds, run.clients, run.config, [target], out.on) if run and out else {}
        cells = [result.get(key) for key in numbers]
        cells += [(result.get(key) or {}).get(str(float(target))) for key in to]
        cells += [result.get(key) for key in last]
        writer.writerow(
            [entry.name, entry.state, *(entry.keys.get(key) for key in swept), *cells, target, entry.error]
        )
    return text.getvalue()


def rows_of_runs(queue: SweepQueue, out: Outcome | None) -> Iterable[tuple[Entry, Row]]:
    """Yield each run with its summary, {} if it has no rounds."""
    by_name = {run.path.name: run for runs in out.curves.values() for run in runs} if out else {}
    for entry in queue.entries:
        run = by_name.get(entry.name)
        yield entry, summarise(run.rounds, run.clients, run.config, [], out.on) if run and out else {}
