"""Attacks on descriptive statistics: small cells, margins, one person more, shifted cuts, hostile orders."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from task.classical.columns import NamedColumns
from task.classical.disclosure import closed_cells, closed_cuts, complemented, dominated, vetoes_of
from task.classical.pooled import closed_by, words_of
from task.classical.survey import (
    Cut,
    Equation,
    RangePart,
    SiteColumns,
    Survey,
    cut_of,
    cuts_in,
    rows_of_cuts,
    survey_of,
)
from task.errors import BouquetError, ConfigError, RefusedError, StateError
from task.numerics.row_sums import from_wire
from task.privacy.query_ledger import QueryLedger, apart, digests
from task.privacy.row_sets import single_out
from task.resolve.read import read_config
from task.storage.files import read_safetensors
from tests.classical import support
from tests.support.grid import LocalGrid

M = 5
RNG = np.random.default_rng(3)


def survey(columns: str, **more: Any) -> Survey:
    keys = {"algorithm": "statistics", "dataset": "csv", "statistics.columns": columns}
    return survey_of(read_config(keys | {f"statistics.{k}": v for k, v in more.items()}))


def category(counts: Sequence[int]) -> np.ndarray:
    """Return places among levels with these counts."""
    return np.repeat(np.arange(len(counts)), counts)


def site_of(asked: Survey, **columns: np.ndarray) -> SiteColumns:
    return SiteColumns(asked, tuple(columns[v.name].astype(float) for v in asked.variables))


# ------------------------------------------------------------------------------------------- rules


def test_margins_do_not_give_a_cell_back() -> None:
    """Heart disease, hospital x sex: what agencies close there, by hand.

    VA's 5 women are few. Its total gives them back, so its men go; the columns' totals give both back, so the
    smallest other row goes. Of VA's women it is then known that they are 0 to 15.
    """
    counts = {"cleveland": (97, 207), "hungary": (80, 212), "switzerland": (10, 111), "va": (5, 139)}
    asked = survey("hospital(cleveland|hungary|switzerland|va), sex(f|m)", cross="hospital*sex")
    hospital = category([sum(pair) for pair in counts.values()])
    sex = np.concatenate([category(pair) for pair in counts.values()])
    site = site_of(asked, hospital=hospital, sex=sex)
    (cross,) = asked.crosses
    closed = closed_cells(site, 10)[cross.start :].reshape(5, 3)[:, :2]
    assert closed.tolist() == [[False] * 2, [False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert not closed_cells(site, 10)[: cross.start].any()  # the totals are shown
    assert closed_cells(site, 10)[asked.counts :].size == 0
    assert not closed_cells(site, 5).any()


def test_one_closed_level_closes_another() -> None:
    asked = survey("c(a|b|c|d)")
    closed = closed_cells(site_of(asked, c=category([3, 40, 7, 9])), M)
    assert closed.tolist() == [True, False, True, False, False]  # c is the smallest other


def test_two_small_levels_that_are_few_together_close_a_third() -> None:
    """With 1 and 3 closed, all that is known is that together they are 4: each is within less than 5."""
    asked = survey("c(a|b|c|d)")
    closed = closed_cells(site_of(asked, c=category([1, 3, 20, 30])), M)
    assert closed.tolist() == [True, True, True, False, False]


def test_few_missing_values_close_a_number_unless_the_owner_allows_them() -> None:
    asked = survey("x(0..10)")
    x = np.append(RNG.uniform(0, 10, 40), [np.nan] * 3)
    assert closed_cells(site_of(asked, x=x), M).tolist() == [True, True, True]
    assert not closed_cells(site_of(asked, x=x), M, missing=True).any()
    few = np.append([1.0, 2.0], [np.nan] * 40)  # who has a value is few: that stays closed
    assert closed_cells(site_of(asked, x=few), M, missing=True).tolist() == [True, True, True]


def test_a_row_with_all_its_persons_in_one_cell_is_closed() -> None:
    """Else everybody learns that each who smokes is ill."""
    asked = survey("smokes(no|yes), ill(no|yes)", cross="smokes*ill")
    smokes = category([60, 20])
    ill = np.concatenate([category([30, 30]), np.ones(20)])
    (cross,) = asked.crosses
    closed = closed_cells(site_of(asked, smokes=smokes, ill=ill), M)[cross.start :].reshape(3, 3)
    assert closed[1, :2].all()


def test_a_sum_that_two_persons_dominate_is_closed() -> None:
    asked = survey("cost(0..100000)")
    cost = np.append(np.full(30, 100.0), [50_000, 40_000])
    assert closed_cells(site_of(asked, cost=cost), M).tolist() == [False, False, True]
    assert dominated(np.array([1.0]))
    assert not dominated(np.full(30, 2.0))
    assert not dominated(np.zeros(30))


def test_correlations_of_almost_the_same_rows_as_a_mean_are_closed() -> None:
    """Their sums differ by those who lack the other column."""
    asked = survey("a(0..10), b(0..10)", correlation=True)
    a, b = RNG.uniform(0, 10, (2, 40))
    assert not closed_cells(site_of(asked, a=a, b=b), M).any()
    b[:3] = np.nan
    closed = closed_cells(site_of(asked, a=a, b=b), M, missing=True)
    assert closed[asked.complete]
    assert closed[asked.sums_cell(2)]
    assert not closed[asked.sums_cell(0)]


@pytest.mark.parametrize("seed", range(5))
def test_no_closed_cell_can_be_computed(seed: int) -> None:
    """By brute force: over all tables with these open cells, a small cell takes values m apart."""
    rng, least = np.random.default_rng(seed), 3
    table = rng.integers(0, 4, (2, 3))
    total = int(table.sum())
    counts = np.array([*table.sum(1), *table.sum(0), *table.ravel()])
    cells = np.arange(6).reshape(2, 3) + 5
    lines: list[Equation] = [((0, 1), -1), ((2, 3, 4), -1)]
    lines += [(tuple(cells[i].tolist()), i) for i in range(2)]
    lines += [(tuple(cells[:, j].tolist()), 2 + j) for j in range(3)]
    small = (counts > 0) & (counts < least)
    closed = complemented(counts, small, small, lines, least)
    assert (closed | ~small).all()
    inner = np.indices((total + 1,) * 5, dtype=np.int8).reshape(5, -1)
    inner = np.concatenate([inner, total - inner.sum(0, dtype=np.int16)[None]])
    grid = inner[:, inner[5] >= 0].reshape(2, 3, -1)
    every = np.concatenate([grid.sum(1), grid.sum(0), grid.reshape(6, -1)])
    found = every[:, (every[~closed] == counts[~closed, None]).all(0)]
    assert (np.ptp(found, axis=1)[small] >= least).all()


@pytest.mark.parametrize("seed", range(3))
def test_pooled_cells_are_shown_only_if_enough_of_all_sites_are_in_them(seed: int) -> None:
    """By drawing sites: a shown cell is of at least ten, or of nobody, or no site has few in it."""
    rng, asked = np.random.default_rng(seed), survey("a(x|y), b(f|m), c(0..9)", cross="a*b")
    shown = 0
    for _ in range(10):
        sites = []
        for _ in range(int(rng.integers(3, 7))):
            n = int(rng.integers(10, 80))
            columns = {"a": rng.choice(2, n, p=[0.7, 0.3]), "b": rng.integers(0, 2, n), "c": np.ones(n)}
            sites.append(site_of(asked, **columns))
        words = [
            words_of(site, closed_cells(site, M), vetoes_of(site, M), M, 10, allowed=True) for site in sites
        ]
        shut = closed_by(asked, np.sum(np.array(words, object), axis=0).tolist())
        by_site = np.sum([closed_cells(site, M) for site in sites], axis=0)
        for cell in range(asked.counts):
            counts = [site.counts[cell] for site in sites]
            if not shut[cell]:
                assert sum(counts) >= 10 or not any(0 < count < M for count in counts)
                shown += by_site[cell] > 0
            else:
                assert shut[cell] == by_site[cell]
    assert shown


@pytest.mark.parametrize(("willing", "women"), [(4, 192), (3, "<m"), (0, "<m")])
def test_the_pooled_count_stays_though_a_site_has_few(willing: int, women: object, tmp_path: Path) -> None:
    """Heart disease at four hospitals: VA has five women, of 192 at all of them."""
    counts = {"cleveland": (97, 207), "hungary": (80, 212), "switzerland": (10, 111), "va": (5, 139)}
    frames = [
        pd.DataFrame({"sex:category(f|m)": np.repeat(["f", "m"], pair), "ill:target": 1.0})
        for pair in counts.values()
    ]
    keys = {
        "algorithm": "statistics", "dataset": "csv", "statistics.columns": "sex(f|m)", "secagg": True,
        "statistics.pooled-least": 10,
    }  # fmt: skip
    policies = [{"pooled-counts": i < willing, "secagg-unverified": True} for i in range(4)]
    folder = support.at_sites(tmp_path, frames, keys, least=10, each=policies)
    found = table_of(folder)["columns"][0]["levels"]
    assert found["f"] == women
    assert found["m"] == (669 if willing == 4 else "<m")


def test_pooled_counts_need_masks_and_no_less_than_the_owner_says(tmp_path: Path) -> None:
    keys = SHORT | {"statistics.columns": "job(clerk|cook|nurse)", "statistics.pooled-least": M - 1}
    with pytest.raises(ConfigError, match=r"pooled-least.*expected 0 without secagg"):
        read_config(keys)
    few = [frame.drop(frame.index[frame.job == "cook"][2:]) for frame in wards()]
    policy = {"pooled-counts": True, "secagg-unverified": True}
    levels = table_of(at_sites(tmp_path, few, keys | {"secagg": True}, **policy))["columns"][0]["levels"]
    assert levels["cook"] == "<m"


def ways(depth: int, variable: int = 0) -> list[Cut]:
    """Return all cuts of all parts after so many cuts."""
    found, parts = list[Cut](), [RangePart(variable)]
    for _ in range(depth):
        cuts = [Cut(part, where) for part in parts for where in range(3)]
        found, parts = found + cuts, [piece for cut in cuts for piece in cut.pieces]
    return found


@pytest.mark.parametrize("n", [4, 7, 30, 200])
def test_what_is_between_cuts_is_nobody_or_enough(n: int) -> None:
    """Whatever a server asks, in whatever order: one part cut in several ways, another range."""
    first, second = survey("x(0..100)"), survey("x(1..90)")
    values = np.round(RNG.gamma(2.0, 8.0, n).clip(1, 90))
    counted: list[float] = []
    for asked in (first, second, first):
        site = site_of(asked, x=values)
        every = ways(4)
        order = RNG.permutation(len(every))
        for batch in np.array_split(order, 3):
            cuts = [every[i] for i in batch]
            shut = closed_cuts(site, cuts, closed_cells(site, M), M, {0: sorted(counted)})
            counted += [
                cut_of(asked.variables[0], c.at) for c, closed in zip(cuts, shut, strict=True) if not closed
            ]
    below = sorted({0, n, *(int((values <= cut).sum()) for cut in counted)})
    assert all(gap >= M for gap in np.diff(below)) or not counted
    assert bool(counted) == (n > 4)
    assert len(below) > 3 or n < 200


NO_CUTS = [
    (1, 0, 0, 0), (0, 0, 0, 3), (0, 0.5, 0, 0), (0, -1, 0, 0), (9, 0, 0, 0), (0, 7, 0, 0), (0, 1, 1, 0),
    (0, 7.0**17, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize("row", NO_CUTS, ids=str)
def test_cuts_of_no_range_are_refused(row: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(str([float(a) for a in row]))):
        cuts_in(survey("x(0..1), c(a|b)"), np.array([row], float))


def test_cuts_travel_as_numbers() -> None:
    asked, cuts = survey("x(0..1), y(0..1)"), [*ways(2), *ways(2, 1)]
    long = RangePart(0)
    for _ in range(22):
        long = Cut(long).pieces[1]
    assert cuts_in(asked, rows_of_cuts(cuts)) == cuts
    assert rows_of_cuts([Cut(long)]).max() < 2.0**53
    assert long.width == 1
    assert not Cut(long).possible


# ------------------------------------------------------------------------------------------ ledger


def rows(*of: int) -> np.ndarray:
    return digests(np.array(of, np.uint64) * np.uint64(7919))


EVERYBODY = rows(*range(100))
ABOUT = {"question": "glm: step-sums", "run": "first"}


def test_rows_that_differ_by_few_persons_are_refused_and_the_earlier_question_is_named(
    tmp_path: Path,
) -> None:
    ledger = QueryLedger(tmp_path)
    ledger.ask("ward", {"age": EVERYBODY}, EVERYBODY, M, ABOUT)
    ledger.ask("ward", {"age": EVERYBODY}, EVERYBODY, M, {})  # the same again tells nothing
    texts = set()
    for gone in (1, 4):
        with pytest.raises(
            RefusedError, match=r'min-examples = 5.*client ward \(age\).*"glm: step-sums".*run first'
        ) as err:
            ledger.ask("ward", {"age": EVERYBODY[gone:]}, EVERYBODY[gone:], M, {})
        texts.add(str(err.value))
    assert len(texts) == 1  # it does not say how many
    ledger.ask("ward", {"age": EVERYBODY[5:]}, EVERYBODY[5:], M, {})
    ledger.ask("ward", {"bmi": EVERYBODY[1:]}, EVERYBODY, M, {})  # of another column
    ledger.ask("other", {"age": EVERYBODY[1:]}, EVERYBODY, M, {})  # of another client
    assert sum("refused" in line for line in map(json.loads, ledger.path.read_text().splitlines())) == 2


def test_the_complement_of_an_earlier_question_is_refused(tmp_path: Path) -> None:
    """All, some, and all but these and one: the difference is that one."""
    ledger = QueryLedger(tmp_path)
    ledger.ask("ward", {"age": EVERYBODY[:40]}, EVERYBODY, M, {})
    with pytest.raises(RefusedError, match="or from those that it left out"):
        ledger.ask("ward", {"age": EVERYBODY[41:]}, EVERYBODY, M, {})
    ledger.ask("ward", {"age": EVERYBODY[40:]}, EVERYBODY, M, {})


def test_a_changed_row_is_one_person() -> None:
    assert apart(rows(1, 2, 3), rows(1, 2, 4)) == 1
    assert apart(rows(1, 1, 1), rows(1, 1)) == 1  # of persons with the same contents
    assert apart(rows(1, 2), rows(2, 1)) == 0


def test_three_answers_that_only_together_tell_of_a_person_are_refused(tmp_path: Path) -> None:
    """A - B - C is row 99; each two of them differ by many, and so does each from what another left out."""
    ledger = QueryLedger(tmp_path)
    a, b, c = EVERYBODY[20:91], EVERYBODY[20:50], EVERYBODY[50:90]
    ledger.ask("ward", {"age": a}, EVERYBODY, M, ABOUT)
    ledger.ask("ward", {"age": b}, EVERYBODY, M, ABOUT)
    with pytest.raises(
        RefusedError, match=r"client ward \(age\) .*together with those to 2 other sets of rows"
    ):
        ledger.ask("ward", {"age": c}, EVERYBODY, M, ABOUT)
    ledger.ask("ward", {"bmi": c}, EVERYBODY, M, ABOUT)
    ledger.ask("ward", {"age": c[:-4]}, EVERYBODY, M, ABOUT)  # five persons are enough
    ledger.ask("ward", {"age": b}, EVERYBODY, M, ABOUT)  # the same again tells nothing


@pytest.mark.parametrize("seed", range(30))
def test_combinations_on_few_rows_are_found_as_brute_force_finds_them(seed: int) -> None:
    """Rational ranks: the span has a vector on some rows alone if leaving these out lowers the rank."""
    rng = np.random.default_rng(seed)
    n, least = 8, int(rng.integers(2, 5))
    sets = np.unique(rng.integers(0, 2, (int(rng.integers(2, 6)), n)), axis=0)
    sets = np.repeat(sets[sets.any(axis=1)], rng.integers(1, 4, n), axis=1)
    rank = np.linalg.matrix_rank(sets)
    every = range(sets.shape[1])
    few = (some for k in range(1, least) for some in combinations(every, k))
    found = any(np.linalg.matrix_rank(np.delete(sets, some, axis=1)) < rank for some in few)
    row_sets = [np.flatnonzero(one).astype(np.uint64) for one in sets]
    assert single_out(row_sets, least) == found


def test_sets_that_grow_by_enough_persons_stay_allowed() -> None:
    grown = [rows(*range(40 + 5 * k)) for k in range(40)]
    assert not single_out(grown, M)
    assert single_out([*grown, rows(*range(43))], M)


def test_the_owner_s_limit_of_questions_counts_refused_ones(tmp_path: Path) -> None:
    ledger = QueryLedger.of(tmp_path, {"max-questions": 3})
    ledger.ask("ward", {"age": EVERYBODY}, EVERYBODY, M, {})
    with pytest.raises(RefusedError, match="fewer persons"):
        ledger.ask("ward", {"age": EVERYBODY[1:]}, EVERYBODY, M, {})
    ledger.ask("ward", {"age": EVERYBODY}, EVERYBODY, M, {})
    with pytest.raises(RefusedError, match="max-questions = 3"):
        ledger.ask("ward", {"age": EVERYBODY}, EVERYBODY, M, {})
    with pytest.raises(ConfigError, match=r'"max-questions": expected a whole number >= 0; got -1'):
        QueryLedger.of(tmp_path, {"max-questions": -1})


def test_a_ledger_without_its_rows_is_an_error(tmp_path: Path) -> None:
    ledger = QueryLedger(tmp_path)
    ledger.ask("ward", {"age": EVERYBODY}, EVERYBODY, M, {})
    (kept,) = (tmp_path / "queries").iterdir()
    kept.write_bytes(rows(1, 2).tobytes())
    with pytest.raises(StateError, match="expected rows of this digest"):
        ledger.ask("ward", {"age": EVERYBODY[9:]}, EVERYBODY, M, {})
    kept.unlink()
    with pytest.raises(StateError, match="it is unknown what this node has answered"):
        ledger.ask("ward", {"age": EVERYBODY[9:]}, EVERYBODY, M, {})


# -------------------------------------------------------------------------------------------- runs

N = 90
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, N).astype(float),
        "job": np.repeat(["clerk", "cook", "nurse"], N // 3),
        "ill": np.tile([0, 1], N // 2),
    }
)
HEADER = ["age:number", "job:category(clerk|cook|nurse)", "ill:target"]
KEYS = {
    "algorithm": "statistics", "dataset": "csv", "num-server-rounds": 30,
    "statistics.columns": "age(0..120), job(clerk|cook|nurse), ill(0..1)", "statistics.bins": 4,
    "statistics.quantiles": "0, 0.5",
}  # fmt: skip
GLM = {
    "algorithm": "glm", "dataset": "csv", "num-server-rounds": 12, "regression.columns": "age(0..120)",
    "regression.target": "ill(0..1)", "regression.family": "binomial",
}  # fmt: skip


def at_sites(folder: Path, frames: Sequence[pd.DataFrame], *args: Any, **more: Any) -> Path:
    typed = [frame.set_axis(HEADER, axis=1) for frame in frames]
    return support.at_sites(folder, typed, *args, **more)


def wards(count: int = 3) -> list[pd.DataFrame]:
    return [FRAME.iloc[i::count] for i in range(count)]


def table_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())["table"]
    return found


def test_a_run_without_small_cells_has_the_hash_of_the_pooled_rows(tmp_path: Path) -> None:
    keys = KEYS | {"statistics.quantiles": "", "statistics.bins": 2}
    found = table_of(at_sites(tmp_path, wards(), keys))
    assert found["closed_cells"] == 0
    (tmp_path / "pooled").mkdir()
    pooled = table_of(at_sites(tmp_path / "pooled", [FRAME], keys, least=0))
    assert found["sums_sha256"] == pooled["sums_sha256"]
    assert found["columns"] == pooled["columns"]


def test_a_quantile_is_an_interval_where_persons_are_few(tmp_path: Path) -> None:
    folder = at_sites(tmp_path, wards(), KEYS)
    found = table_of(folder)
    age = found["columns"][0]
    least, median = age["quantiles"]
    assert least["value"] is None
    assert median["value"] is None
    assert least["low"] <= FRAME.age.min() <= least["high"]
    assert median["low"] <= FRAME.age.median() <= median["high"]
    for site in wards():
        for bar in age["histogram"]:
            inside = ((site.age > bar["low"]) & (site.age <= bar["high"])).sum()
            assert inside == 0 or inside >= M


@pytest.mark.parametrize("least", [0, M])
def test_quantiles_of_a_site_are_asked_of_it_alone_and_keep_its_rule(least: int, tmp_path: Path) -> None:
    """Without a bound they are those of the site's own rows; with one, no part has few persons."""
    keys = KEYS | {"statistics.by-site": True, "statistics.columns": "age(0..120)", "statistics.bins": 2}
    found = table_of(at_sites(tmp_path, wards(2), keys | {"statistics.site-quantiles": True}, least=least))
    for site, frame in zip(found["by_site"], wards(2), strict=True):
        (age,) = site["columns"]
        lowest, median = age["quantiles"]
        assert median["low"] <= frame.age.median() <= median["high"]
        assert (lowest["value"] is None) == bool(least)
        if not least:
            assert median["value"] == frame.age.median()
        for bar in age["histogram"]:
            inside = ((frame.age > bar["low"]) & (frame.age <= bar["high"])).sum()
            assert inside == bar["count"]
            assert inside == 0 or inside >= least


def test_a_small_cell_of_one_site_closes_it_for_all_and_stands_nowhere(tmp_path: Path) -> None:
    """1237 of one site's persons are fewer than 2000: neither they nor a sum with them leave it."""
    parts = []
    for cooks in (1237, 4211):
        job = np.repeat(["clerk", "cook", "nurse"], [3000, cooks, 5000])
        parts.append(pd.DataFrame({"age": np.arange(len(job)) % 80, "job": job, "ill": 1}))
    keys = SHORT | {"statistics.columns": "job(clerk|cook|nurse)", "statistics.by-site": True}
    folder = at_sites(tmp_path, parts, keys, least=2000)
    table = table_of(folder)
    assert table["columns"][0]["levels"] == {"clerk": "<m", "cook": "<m", "nurse": 10_000}
    first, second = (site["columns"][0]["levels"] for site in table["by_site"])
    assert first == {"clerk": "<m", "cook": "<m", "nurse": 5000}
    assert second == {"clerk": 3000, "cook": 4211, "nurse": 5000}
    assert "all,job,level,cook,<m" in (folder / "table.csv").read_text()
    sums = read_safetensors(folder / "model.safetensors")[1]["sums"]
    hidden = {1237, 1237 + 4211, 1237 + 3000}
    assert not hidden & set(from_wire(sums))
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".csv", ".html", ".log"):
            text = path.read_text()
            assert not [n for n in hidden if re.search(rf"(?<!\d)({n}|{n:,})(?!\d)", text)], path
    assert "&lt;m" in (folder / "statistics.html").read_text()


@pytest.mark.parametrize("secagg", [False, True])
def test_a_site_with_one_person_in_a_cell_is_not_found_by_the_others(secagg: bool, tmp_path: Path) -> None:
    parts = wards()
    cooks = parts[1].index[parts[1].job == "cook"]
    parts[1] = parts[1].drop(cooks[1:])
    masked = {"secagg": True} if secagg else {}
    table = table_of(at_sites(tmp_path, parts, SHORT | masked, **{"secagg-unverified": secagg}))
    levels = table["columns"][1]["levels"]
    assert levels["cook"] == "<m"
    assert list(levels.values()).count("<m") == 2


def test_a_site_with_one_person_takes_no_part(tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match="min-examples = 5"):
        at_sites(tmp_path, [*wards(), FRAME.iloc[:1]], SHORT)


SHORT = KEYS | {"statistics.bins": 0, "statistics.quantiles": ""}  # the tables alone


@pytest.mark.parametrize(("first", "second"), [(SHORT, SHORT), (SHORT, GLM), (GLM, SHORT)])
def test_one_person_more_is_refused_across_runs_and_analyses(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    at_sites(tmp_path, [FRAME], first)
    of = "statistics: closed-cells" if first is SHORT else "glm: opening-sums"
    with pytest.raises(BouquetError, match=rf'differ by fewer persons .*"{of}"'):
        at_sites(tmp_path, [FRAME.drop(17)], second)
    at_sites(tmp_path, [FRAME], second)
    at_sites(tmp_path, [FRAME.drop(range(0, 90, 10))], second)  # nine are enough


def test_a_value_that_is_filled_in_is_a_person_too(tmp_path: Path) -> None:
    """Six new rows would do, but one of them alone has an age."""
    new = FRAME.iloc[:12].assign(age=np.nan)
    lacking = pd.concat([FRAME, new], ignore_index=True)
    at_sites(tmp_path, [lacking], SHORT)
    more = pd.concat([lacking, new.iloc[:6].assign(age=[50.0, *[np.nan] * 5], ill=1)], ignore_index=True)
    with pytest.raises(BouquetError, match=r"client ward-0 \(age\) differ by fewer persons"):
        at_sites(tmp_path, [more], SHORT)


def test_another_range_does_not_cut_a_person_out(tmp_path: Path) -> None:
    """Cuts at 30 and 31 would tell how many are 31; the second run halves where enough are between."""
    folder = at_sites(tmp_path, [FRAME], SHORT | {"statistics.bins": 64})
    before = counted_at(tmp_path)
    shifted = {"statistics.columns": "age(1..121), job(clerk|cook|nurse), ill(0..1)", "statistics.bins": 64}
    folder = at_sites(tmp_path, [FRAME], SHORT | shifted)
    assert table_of(folder)["columns"][0]["count"] == N
    cuts = counted_at(tmp_path)
    assert cuts >= before
    below = np.searchsorted(np.sort(FRAME.age), sorted(cuts), "right")
    assert all(gap == 0 or gap >= M for gap in np.diff([0, *below, N]).tolist())


def counted_at(folder: Path) -> set[float]:
    lines = (folder / "state-0" / "queries.ledger.jsonl").read_text().splitlines()
    return {cut for line in lines for cut in json.loads(line).get("cuts", {}).get("age", [])}


def test_a_server_that_opens_closed_cells_is_refused(tmp_path: Path) -> None:
    """It says that nothing is closed, whatever the sites said."""
    parts = [frame.drop(frame.index[frame.job == "cook"][2:]) for frame in wards()]

    class Hostile(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            for message in messages:
                forget(message)
            return super().push_messages(messages)

    def forget(message: Message) -> None:
        for name, record in message.content.array_records.items():
            if "closed" in name:
                for key, array in record.items():
                    record[key] = type(array)(np.zeros_like(array.numpy()))

    with pytest.raises(BouquetError, match="the server asks for a cell of fewer persons"):
        at_sites(tmp_path, parts, KEYS, grid_type=Hostile)


def test_levels_listed_in_another_order_are_the_same_levels() -> None:
    table = NamedColumns({}, {"c": (np.array([1, -1, 0]), ("b", "a"))})
    found = table.of(survey("c(a|b)").variables[0], missing=True)
    assert found[[0, 2]].tolist() == [0.0, 1.0]
    assert np.isnan(found[1])
