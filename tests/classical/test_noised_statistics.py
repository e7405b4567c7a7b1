"""Statistics with noise for each row: how far a row moves them, how wide the noise is, and what it costs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from task.classical.columns import NamedColumns
from task.classical.noised import (
    GRID,
    cut_totals,
    cuts_sensitivity,
    spread,
    table_sensitivity,
    table_size,
    table_totals,
    tables_in,
)
from task.classical.survey import Cut, RangePart, SiteColumns, Survey, survey_of
from task.errors import BouquetError, ConfigError
from task.privacy.accounting import epsilon, gaussian_epsilon
from task.privacy.noise_ledger import NoiseLedger
from task.privacy.row_noise import RowNoise
from task.resolve.read import read_config
from tests.classical.support import at_sites
from tests.support.grid import LocalGrid

COLUMNS = "age(0..128), dose(-1..1), sex(f|m), ill(no|yes)"
KEYS = {"algorithm": "statistics", "dataset": "csv", "num-server-rounds": 12, "statistics.columns": COLUMNS}
NOISE = {"dp.noise": 0.5, "dp.unit": "example", "dp.delta": 1e-4}


def survey(**more: Any) -> Survey:
    keys = {"cross": "sex*ill", "bins": 4, "correlation": True} | more
    return survey_of(read_config(KEYS | {f"statistics.{k}": v for k, v in keys.items()}))


def rows_of(
    age: Sequence[float], dose: Sequence[float], sex: Sequence[int], ill: Sequence[int]
) -> NamedColumns:
    numbers = {"age": np.array(age, float), "dose": np.array(dose, float)}
    return NamedColumns(numbers, {"sex": (np.array(sex), ("f", "m")), "ill": (np.array(ill), ("no", "yes"))})


def drawn(n: int, rng: np.random.Generator) -> NamedColumns:
    """Return rows at the ends of the ranges and beyond them, with values that are not there."""
    age, dose = rng.choice([0.0, 128, 64, 1e9, -7, np.nan], n), rng.choice([-1.0, 1, 0.3, np.nan], n)
    return rows_of(age, dose, rng.integers(-1, 2, n).tolist(), rng.integers(-1, 2, n).tolist())


def without(table: NamedColumns, row: int) -> NamedColumns:
    """Return a table in which one row has no values."""
    blank = np.arange(table.rows) == row
    numbers = {name: np.where(blank, np.nan, x) for name, x in table.numbers.items()}
    return NamedColumns(numbers, {k: (np.where(blank, -1, at), of) for k, (at, of) in table.places.items()})


def moved(site: Survey, table: NamedColumns, row: int, cuts: Sequence[Cut] = ()) -> float:
    """Return the squared L2 distance that one row makes."""

    def totals(of: NamedColumns) -> list[int]:
        columns = SiteColumns.of(site, of, clipped=True)
        return cut_totals(columns, cuts) if cuts else table_totals(columns)

    both = zip(totals(table), totals(without(table, row)), strict=True)
    return sum((a - b) ** 2 for a, b in both) / 4**GRID


# ------------------------------------------------------------------------------------- sensitivity


@pytest.mark.parametrize("more", [{}, {"bins": 0}, {"cross": "", "correlation": False}], ids=str)
def test_no_row_moves_the_tables_further_than_is_said(more: dict[str, Any]) -> None:
    asked, rng = survey(**more), np.random.default_rng(1)
    worst = 0.0
    for _ in range(20):
        table = drawn(6, rng)
        worst = max(worst, *(moved(asked, table, row) for row in range(6)))
    assert worst <= table_sensitivity(asked)
    extreme = rows_of([128.0] * 2, [1.0] * 2, [1, 1], [0, 0])  # t = 1 in both numbers
    assert moved(asked, extreme, 1) == table_sensitivity(asked)


def test_a_count_and_a_histogram_of_disjoint_bins_have_the_sensitivity_one() -> None:
    levels = Survey(tuple(v for v in survey().variables if v.name == "sex"))
    table = rows_of([1.0, 2], [0.0, 0], [0, 1], [0, 1])
    assert table_sensitivity(levels) == 1
    assert moved(levels, table, 0) == 1


@pytest.mark.parametrize("seed", range(5))
def test_any_cuts_that_a_server_may_ask_for_have_a_known_sensitivity(seed: int) -> None:
    """Disjoint ones count once; a hostile server nests them, and each costs."""
    rng, asked = np.random.default_rng(seed), survey()
    parts = [RangePart(0), RangePart(1)]
    for _ in range(3):
        parts += [piece for part in parts for piece in Cut(part, int(rng.integers(3))).pieces]
    cuts = [Cut(parts[i], int(rng.integers(3))) for i in rng.choice(len(parts), 9, replace=False)]
    table = rows_of(np.linspace(0, 128, 257), np.linspace(-1, 1, 257), [0] * 257, [0] * 257)
    each = [
        max(moved(asked, table, row, [c for c in cuts if c.part.variable == i]) for row in range(257))
        for i in {c.part.variable for c in cuts}
    ]
    assert sum(each) == cuts_sensitivity(cuts)
    halves = [Cut(piece) for i in (0, 1) for piece in Cut(RangePart(i)).pieces]
    assert cuts_sensitivity(halves) == 2


def test_values_beyond_the_range_and_other_levels_tell_nothing() -> None:
    asked = survey(correlation=False)
    inside, outside = rows_of([128.0], [1.0], [-1], [0]), rows_of([1e300], [np.inf], [0], [0])
    other = NamedColumns(outside.numbers, {**outside.places, "sex": (np.array([0]), ("x", "f"))})
    found = [table_totals(SiteColumns.of(asked, t, clipped=True)) for t in (inside, other)]
    assert found[0] == found[1]


def test_without_noise_the_figures_are_those_of_exact_sums() -> None:
    asked, rng = survey(), np.random.default_rng(4)
    table = rows_of(
        rng.uniform(0, 128, 50), rng.uniform(-1, 1, 50), [0] * 20 + [1] * 30, [1] * 25 + [-1] * 25
    )
    table.numbers["age"][:7] = np.nan  # type: ignore[index]
    site = SiteColumns.of(asked, table)
    totals = table_totals(site)
    assert len(totals) == table_size(asked)
    found, leaves = tables_in(asked, [*totals, 50, 0])
    exact = site.sums()
    assert found[: 1 + asked.counts] == exact[: 1 + asked.counts]
    sums = zip(found[1 + asked.counts :], exact[1 + asked.counts :], strict=True)
    assert max(abs(a - b) for a, b in sums) < 50 * 2.0 ** (81 - GRID)  # each row is rounded once
    assert sum(leaf.count for leaf in leaves) == 43 + 50


# ------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("shares", [1, 4])
def test_noise_has_the_variance_that_is_said(shares: int) -> None:
    noise = RowNoise(0.5, shares, lambda client, totals: b"k" * 32)
    *found, shown = noise.added("ward", [7 << GRID] * 40_000, 9, GRID)
    wide = (np.array(found) / 2.0**GRID - 7) / (0.5 * 3)
    assert abs(wide.mean()) < 4 / 200 / math.sqrt(shares)
    assert wide.var() * shares == pytest.approx(1, abs=4 * math.sqrt(2 / 40_000))
    assert shown / 2.0**GRID == pytest.approx(1 / shares, rel=1e-6)


def test_the_error_of_a_figure_is_how_far_noise_moves_it() -> None:
    """Against the spread of means of sums with noise that is drawn."""
    rng = np.random.default_rng(5)

    def mean(n: float, s1: float) -> float:
        return s1 / n

    draws = [mean(400 + a, 100 + b) for a, b in rng.normal(0, 12, (20_000, 2))]
    assert spread(mean, [400, 100], [12, 12]) == pytest.approx(np.std(draws), rel=0.03)


# -------------------------------------------------------------------------------------------- runs


def frames(count: int = 3, n: int = 60) -> list[pd.DataFrame]:
    rng = np.random.default_rng(6)
    rows = count * n
    made = pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows).astype(float),
            "dose": rng.uniform(-1, 1, rows),
            "sex:category(f|m)": rng.choice(["f", "m"], rows),
            "ill:target(no|yes)": rng.choice(["no", "yes"], rows),
        }
    )
    return [made.iloc[i::count] for i in range(count)]


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_run_says_what_it_costs_and_how_far_figures_may_be_off(tmp_path: Path) -> None:
    """With a budget at a node, whose ledger has a line for each question and the same epsilon."""
    keys = KEYS | NOISE | {"statistics.by-site": True, "statistics.bins": 16, "statistics.quantiles": "0.5"}
    folder = at_sites(tmp_path, frames(), keys, **{"max-epsilon": 60.0, "delta": 1e-4})
    table = json.loads((folder / "result.json").read_text())["table"]
    rows = rounds_of(folder)
    cost = gaussian_epsilon(math.sqrt(rows[-1]["round"]) / 0.5, 1e-4)
    assert rows[-1]["epsilon"] == cost
    assert {row["lr"] for row in rows} == {None}  # nothing learns, nor is anything clipped
    privacy = json.loads((folder / "result.json").read_text())["privacy"]
    assert privacy == {"epsilon": cost, "unit": "example", "delta": 1e-4, "noise": 0.5}
    assert cost == pytest.approx(epsilon([(1.0, 0.5)] * rows[-1]["round"], 1e-4), rel=1e-2)
    deviation = 0.5 * math.sqrt(table_sensitivity(survey(cross="", correlation=False)))
    assert table["by_site"][0]["count_error"] == pytest.approx(deviation)
    assert table["count_error"] == pytest.approx(deviation * math.sqrt(3))
    age, whole = table["columns"][0], pd.concat(frames())
    assert 0 < age["mean_error"] < 10
    assert abs(age["mean"] - whole.age.mean()) < 5 * age["mean_error"]
    assert abs(age["count"] - 180) < 5 * table["count_error"]
    (median,) = age["quantiles"]
    assert median["value"] is None
    assert median["low"] <= whole.age.median() <= median["high"]
    assert "noise_error" in (folder / "table.csv").read_text()
    assert f"± {table['columns'][0]['mean_error']:.2g}" in (folder / "statistics.html").read_text()
    spent = NoiseLedger(tmp_path / "state-0" / "noise.ledger.jsonl").spent()
    assert len(spent.orders) == rows[-1]["round"]
    assert spent.epsilon(1e-4) == pytest.approx(cost, rel=1e-2)
    assert not (tmp_path / "state-0" / "queries.ledger.jsonl").exists()


def test_masked_noise_is_shared_by_the_nodes(tmp_path: Path) -> None:
    """t = 3 of 3 nodes and c = 1: two shares suffice, and three are added."""
    keys = KEYS | NOISE | {"secagg": True, "statistics.quantiles": ""}
    policy = {"secagg-unverified": True, "max-epsilon": 99.0, "delta": 1e-4}
    folder = at_sites(tmp_path, frames(), keys, **policy)
    table = json.loads((folder / "result.json").read_text())["table"]
    deviation = 0.5 * math.sqrt(table_sensitivity(survey(cross="", correlation=False)))
    assert table["count_error"] == pytest.approx(deviation * math.sqrt(3 / 2), rel=1e-6)
    assert abs(table["columns"][0]["count"] - 180) < 5 * table["count_error"]
    assert len(NoiseLedger(tmp_path / "state-2" / "noise.ledger.jsonl").spent().orders) == 1


def test_a_question_that_comes_twice_gets_the_same_answer_and_costs_once(tmp_path: Path) -> None:
    keys = KEYS | NOISE | {"statistics.quantiles": "", "run-name": "one"}
    answers = []

    class Twice(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            sent = list(messages)
            for message in sent:
                if message.metadata.message_type == "train":
                    replies = super().pull_messages(super().push_messages([message]))
                    answers.append([r.content["cell-sums"]["rows"].numpy() for r in replies])  # type: ignore
            return super().push_messages(sent)

        def pull_messages(self, ids: Any) -> Any:
            replies = list(super().pull_messages(ids))
            for reply in replies:
                if reply.has_content() and "cell-sums" in reply.content:
                    answers.append([reply.content["cell-sums"]["rows"].numpy()])  # type: ignore[index]
            return replies

    at_sites(tmp_path, frames(1), keys, grid_type=Twice, **{"max-epsilon": 9.0, "delta": 1e-4})
    flat = [a for found in answers for a in found]
    assert len(flat) > 1
    assert all((a == flat[0]).all() for a in flat)
    assert len(NoiseLedger(tmp_path / "state-0" / "noise.ledger.jsonl").spent().orders) == 1


def test_an_owner_of_small_cells_needs_a_budget_and_keeps_it(tmp_path: Path) -> None:
    keys = KEYS | NOISE
    with pytest.raises(BouquetError, match=r"min-examples = 5; with noise.*max-epsilon"):
        at_sites(tmp_path, frames(1), keys)
    with pytest.raises(BouquetError, match=r"max-epsilon = 5; with this epsilon would be"):
        at_sites(tmp_path, frames(1), keys, **{"max-epsilon": 5.0, "delta": 1e-4})
    with pytest.raises(BouquetError, match=r"max-epsilon = 5; expected a run in which nodes add noise"):
        at_sites(tmp_path, frames(1), KEYS, **{"max-epsilon": 5.0, "delta": 1e-4})


def test_a_delta_too_large_for_a_site_is_the_run_s_mistake_and_no_owner_s(tmp_path: Path) -> None:
    """The key is to be corrected; nothing is said of a policy, nor of how many rows there are."""
    with pytest.raises(ConfigError, match=r'"dp.delta": expected less than one over the rows of') as refused:
        at_sites(tmp_path, frames(1), KEYS | NOISE | {"dp.delta": 0.5}, least=0)
    assert "Correct that, and start the run again." in str(refused.value)
    assert "policy" not in str(refused.value)


def test_a_run_ends_before_its_budget_does(tmp_path: Path) -> None:
    folder = at_sites(tmp_path, frames(1), KEYS | NOISE | {"dp.max-epsilon": 20.0}, least=0)
    last = rounds_of(folder)[-1]
    assert last["epsilon"] <= 20 < last["epsilon_next"]
    assert json.loads((folder / "result.json").read_text())["ended_by"] == "dp.max-epsilon"


def test_what_is_closed_is_not_asked_of_anybody(tmp_path: Path) -> None:
    """Which cells hold few persons would be an exact answer."""
    kinds = set()

    class Watched(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            sent = list(messages)
            kinds.update(m.metadata.message_type for m in sent)
            return super().push_messages(sent)

    at_sites(tmp_path, frames(1), KEYS | NOISE, least=0, grid_type=Watched)
    assert {kind for kind in kinds if not kind.startswith("query")} == {"train"}


REFUSED = [
    ({"dp.clip": 2.0}, "dp.clip"),
    ({"secagg": True, "dp.colluding": 3}, 'expected less|it does not go with|"dp.colluding"'),
    ({"dp.max-epsilon": 1.0}, 'dp.max-epsilon": expected at least .* which the first question costs'),
    ({"dp.noise": 1e-4}, "below which it protects no one"),
    ({"dp.unit": "client"}, "exact sums over all their rows"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "why"), REFUSED, ids=str)
def test_what_does_not_go_with_it_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_config(KEYS | NOISE | more)
