"""Who gets to train: laws of the draws, values by hand, memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from strategies import FedAvg
from strategies.selection.devices import Times
from strategies.selection.policies import SELECTORS, Oort, Pool, draw_by_size, fill_until, inclusion
from task.catalogue.selections import SELECTIONS
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.read import read_config
from tests.strategies.test_plan import registry_of
from tests.support.federation import read_by

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 100}


def config(selection: str = "uniform", **keys: Any) -> Config:
    base: dict[str, Any] = {
        "selection": selection,
        "fraction-train": 0.4,
        "num-clients": 0,
        "partition": "natural",
    }
    given = base | {k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}
    return read_config(read_by(given))


def pool(
    of: Config,
    server_round: int = 1,
    sizes: Mapping[str, int] = SIZES,
    seconds: Mapping[str, float] | None = None,
    nodes: int = 1,
) -> Pool:
    """Return a pool of clients that need so many seconds, all of it for the update."""

    def times(names: Sequence[str]) -> Times:
        update = np.array([(seconds or {}).get(c, 1.0) for c in names])
        return Times(np.zeros(len(names)), update, np.zeros(len(names)))

    return Pool(registry_of(dict(sizes), nodes), of, server_round, times)


def close(counts: Mapping[str, int], want: Mapping[str, float], n: int) -> None:
    """Assert that frequencies of n draws are within 5 standard deviations of probabilities."""
    for name, p in want.items():
        assert abs(counts[name] - n * p) <= 5 * math.sqrt(n * p * (1 - p)) + 1e-9, (name, counts[name] / n, p)


def test_catalogue_and_registry_name_the_same_policies() -> None:
    assert SELECTORS.keys() == SELECTIONS.keys()
    assert list(SELECTIONS) == sorted(SELECTIONS)
    assert all(key == s.name for key, s in SELECTIONS.items())
    with pytest.raises(ConfigError, match=r'"selection": got .*Did you mean "oort"'):
        FedAvg(selection="ort")


# ----------------------------------------------------------------------------------- in proportion


def test_inclusion_is_proportional_and_capped_at_one() -> None:
    assert inclusion(np.array([10.0, 20.0, 30.0, 40.0]), 2).tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8])
    # m p = (0.1, 0.2, 0.3, 0.4, 1) x 2 / 2 of 200: 2 * 100/200 = 1, the others share 1 by n_k / 100
    assert inclusion(np.array([10.0, 20.0, 30.0, 40.0, 100.0]), 2).tolist() == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 1]
    )
    # 3 of (1, 1, 8, 10): 10 is sure (1.5), then 8 of 10 (1.6), then 1 and 1 share one place
    assert inclusion(np.array([1.0, 1.0, 8.0, 10.0]), 3).tolist() == pytest.approx([0.5, 0.5, 1, 1])
    assert inclusion(np.array([3.0, 5.0]), 2).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("m", [1, 2, 3])
def test_clients_are_drawn_in_exact_proportion_to_their_examples(m: int) -> None:
    of, n = config("proportional", fraction_train=m / 5), 4000
    drawn: Counter[str] = Counter()
    selector = SELECTORS["proportional"](of)
    for t in range(1, n + 1):
        cohort = selector.select(pool(of, t), [], {})
        assert len(cohort) == len(set(cohort)) == m
        assert cohort == sorted(cohort)
        drawn.update(cohort)
    close(drawn, dict(zip(SIZES, inclusion(np.array(list(SIZES.values()), float), m), strict=True)), n)


def test_a_draw_by_size_of_many_is_of_different_clients() -> None:
    rng = np.random.default_rng(0)
    for m in (1, 10, 99, 100):
        drawn = draw_by_size(rng.lognormal(sigma=3, size=100), m, rng)
        assert len(set(drawn)) == m


def test_unweighted_means_come_with_draws_by_size() -> None:
    assert FedAvg(selection="uniform").entry.weight == "examples"
    for name in ("proportional", "power-of-choice"):
        assert FedAvg(selection=name).entry.weight == "uniform"


# --------------------------------------------------------------------------------- power of choice


def test_the_candidates_are_drawn_by_size_and_the_highest_losses_win() -> None:
    of, n = config("power-of-choice", select__candidates=3), 3000
    selector, asked, last = SELECTORS["power-of-choice"](of), Counter[str](), Counter[str]()
    losses = {"a": 5.0, "b": 1.0, "c": 2.0, "d": 4.0, "e": 3.0}
    for t in range(1, n + 1):
        candidates = selector.candidates(pool(of, t))
        assert len(candidates) == 3
        cohort = selector.select(pool(of, t), candidates, {c: losses[c] for c in candidates})
        assert cohort == sorted(sorted(candidates, key=lambda c: -losses[c])[:2])
        asked.update(candidates)
        last.update(cohort)
    close(asked, dict(zip(SIZES, inclusion(np.array(list(SIZES.values()), float), 3), strict=True)), n)
    assert last["b"] == 0  # the lowest of any three never wins


def test_ties_of_candidates_are_broken_by_lot() -> None:
    sizes = {f"c{i}": 5 for i in range(6)}
    of, drawn, n = config("power-of-choice", fraction_train=1 / 3, select__candidates=6), Counter[str](), 2000
    for t in range(1, n + 1):
        selector = SELECTORS["power-of-choice"](of)
        drawn.update(selector.select(pool(of, t, sizes), sorted(sizes), dict.fromkeys(sizes, 1.0)))
    close(drawn, dict.fromkeys(sizes, 1 / 3), n)


def test_with_as_many_candidates_as_places_it_is_the_draw_by_size() -> None:
    of = config("power-of-choice", select__candidates=2)
    for t in range(1, 20):
        candidates = SELECTORS["power-of-choice"](of).candidates(pool(of, t))
        assert candidates == SELECTORS["proportional"](of).select(pool(of, t), [], {})


def test_who_does_not_answer_the_query_is_not_drawn() -> None:
    of = config("power-of-choice", select__candidates=4)
    selector = SELECTORS["power-of-choice"](of)
    assert selector.select(pool(of), ["a", "b", "c"], {"b": 0.1}) == ["b"]
    assert selector.select(pool(of), ["a", "b", "c"], {}) == []


def test_last_known_losses_ask_nobody_and_new_clients_come_first() -> None:
    of = config("power-of-choice", select__candidates=5, select__losses="last")
    selector = SELECTORS["power-of-choice"](of)
    assert selector.candidates(pool(of)) == []
    told = {c: {"train-loss": float(i), "num-examples": 1} for i, c in enumerate("abc")}
    selector.observe(pool(of), told)
    assert selector.select(pool(of, 2), [], {}) == ["d", "e"]
    selector.observe(
        pool(of, 2), {"d": {"train-loss": 0.5}, "e": {"train-loss": 9.0}, "a": {"train-loss": 3.0}}
    )
    assert selector.select(pool(of, 3), [], {}) == ["a", "e"]


@pytest.mark.parametrize("population", [0, 20])
def test_fewer_candidates_than_places_are_refused(population: int) -> None:
    keys = {"selection": "power-of-choice", "fraction-train": 0.5, "select.candidates": 3, "num-clients": 20}
    message = r'"select.candidates": expected at least the 10 clients .*fraction-train 0.5 of 20.* got 3'
    if population:
        with pytest.raises(ConfigError, match=message):
            read_config(keys)
        return
    of = read_config(keys | {"num-clients": 0, "partition": "natural"})  # known at registration only
    with pytest.raises(ConfigError, match=message):
        SELECTORS["power-of-choice"](of).candidates(pool(of, sizes={f"c{i}": 1 for i in range(20)}))


# ------------------------------------------------------------------------------------------- oort


def oort(**keys: Any) -> tuple[Config, Oort]:
    of = config("oort", **keys)
    return of, Oort(of)


def row(examples: int, rms: float) -> dict[str, float]:
    return {"num-examples": examples, "loss-rms": rms}


def test_oorts_utility_by_hand() -> None:
    """Round 8; a: 10 x 1 in round 1, b: 20 x 2 in round 4, c: 30 x 1 in round 4; seconds 1, 8, 4; T = 4.

    Scaled to 0..1: 0, 1, 2/3. Staleness sqrt(0.1 ln 8 / L) with L = 1, 4, 4: s, s/2, s/2, s = 0.45601.
    b is late by a factor of 2: (1 + s/2) / 4 at alpha = 2.
    """
    of, selector = oort(select__clip=1.0, select__pace=0.5)
    seconds = {"a": 1.0, "b": 8.0, "c": 4.0}
    sizes = {"a": 10, "b": 20, "c": 30}
    selector.observe(pool(of, 1), {"a": row(10, 1.0)})
    selector.observe(pool(of, 4), {"b": row(20, 2.0), "c": row(30, 1.0)})
    there = pool(of, 8, sizes, seconds)
    scores = selector._scores(there, np.arange(3), there.times(there.names).total)
    s = math.sqrt(0.1 * math.log(8))
    assert scores.tolist() == pytest.approx([s, (1 + s / 2) / 4, 2 / 3 + s / 2])


def test_utility_is_cut_at_a_quantile_so_that_one_huge_loss_does_not_rule() -> None:
    of, selector = oort(select__clip=0.5, select__penalty=0.0)
    selector.observe(
        pool(of, 1), {c: row(1, rms) for c, rms in zip("abcde", [1, 2, 3, 400, 5000], strict=True)}
    )
    scores = selector._scores(pool(of, 1), np.arange(5), np.ones(5))  # ln 1 = 0: no staleness
    assert scores.tolist() == pytest.approx([0, 0.5, 1, 1, 1])  # the median is 3


def test_oort_explores_by_speed_and_less_by_and_by() -> None:
    sizes = {f"c{i}": 5 for i in range(6)}
    seconds = {f"c{i}": float(2**i) for i in range(6)}
    of, n = config("oort", fraction_train=1 / 6), 3000
    drawn = Counter(c for t in range(n) for c in Oort(of).select(pool(of, t + 1, sizes, seconds), [], {}))
    total = sum(0.5**i for i in range(6))
    close(drawn, {f"c{i}": 0.5**i / total for i in range(6)}, n)
    # epsilon = 0.9, 0.9 x 0.5, then never below 0.3: of 10 places 9, 4 or 5, 3 are for newcomers
    many = {f"c{i:02d}": 5 for i in range(40)}
    of = config("oort", fraction_train=0.25, select__exploration_decay=0.5, select__exploration_min=0.3)
    for t, newcomers in ((1, {9}), (2, {4, 5}), (3, {3}), (9, {3})):
        selector = Oort(of)
        selector.known = {f"c{i:02d}": (1.0, 1.0) for i in range(20)}
        cohort = selector.select(pool(of, t, many), [], {})
        assert sum(c not in selector.known for c in cohort) in newcomers
        assert len(cohort) == 10


def test_oort_fills_the_cohort_whoever_is_left() -> None:
    of, selector = oort(fraction_train=0.8)
    assert len(selector.select(pool(of), [], {})) == 4  # all new
    selector.observe(pool(of), {c: row(1, 1.0) for c in "abcde"})
    assert len(selector.select(pool(of, 2), [], {})) == 4  # none new
    selector.known.pop("a")
    assert "a" in selector.select(pool(of, 3), [], {})  # epsilon m = 3, but only one is new


def test_oort_draws_the_useful_in_proportion_to_utility() -> None:
    """One place, no exploration. Scores 0.96 and 1 are within 95 % of the best; 0.9 and 0 are not."""
    of = config(
        "oort", fraction_train=0.2, select__exploration=0.0, select__exploration_min=0.0, select__clip=1.0
    )
    selector, n = Oort(of), 4000
    utilities = {"a": 0.0, "b": 90.0, "c": 96.0, "d": 100.0, "e": 96.0}
    drawn: Counter[str] = Counter()
    for seed in range(n):
        selector.known = {c: (u, 1e12) for c, u in utilities.items()}  # so recent that staleness is nothing
        drawn.update(selector.select(pool(Config(seed=seed, server=of.server, select=of.select), 2), [], {}))
    close(drawn, {"a": 0.0, "b": 0.0, "c": 96 / 292, "d": 100 / 292, "e": 96 / 292}, n)


def test_the_pacer_gives_more_time_when_utility_falls() -> None:
    of, selector = oort(select__pacer_window=2, select__pace=0.3, select__pacer_step=0.5)
    paces = []
    for t, rms in enumerate([5, 5, 4, 4, 4, 4, 3, 3, 9, 9, 1, 1], start=1):
        selector.observe(pool(of, t), {"a": row(1, rms)})
        paces.append(selector.lists["pace"][0])
    # compared at t = 4: 10 > 8; 6: 8 = 8; 8: 8 > 6 (at most 1); 10: 6 < 18; 12: 18 > 2
    assert paces == pytest.approx([0.3, 0.3, 0.3, 0.8, 0.8, 0.8, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0])
    before = list(selector.lists["history"])
    selector.observe(pool(of, 13), {})  # nobody answered: no fall
    assert selector.lists["history"] == before


# ------------------------------------------------------------------------------------------ fedcs


def test_fedcs_keeps_who_is_done_in_time_on_links_of_their_own() -> None:
    of = config("fedcs", fraction_train=1.0, select__deadline=3.0)
    seconds = {"a": 1.0, "b": 3.0, "c": 3.1, "d": 2.0, "e": 9.0}
    assert SELECTORS["fedcs"](of).select(pool(of, 1, SIZES, seconds), [], {}) == ["a", "b", "d"]


def test_fedcs_greedy_schedule_by_hand() -> None:
    """Shared uplink. download 1, 1, 3; update 5, 2, 1; upload 2, 2, 2.

    Increase with nobody in:  0: 1+2+5 = 8,  1: 1+2+2 = 5,  2: 3+2+1 = 6      -> 1, Theta = 4, ends at 5
    then                      0: 0+2+1 = 3,  2: 2+2+0 = 4                      -> 0, Theta = 7, ends at 8
    then                      2: 2+2+0 = 4                                     -> 2, Theta = 9, ends at 12
    """
    times = Times(np.array([1.0, 1.0, 3.0]), np.array([5.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0]))
    assert fill_until(times, 12.0, shared=True) == [1, 0, 2]
    assert fill_until(times, 11.9, shared=True) == [1, 0]
    assert fill_until(times, 7.9, shared=True) == [1]  # 2 would end at 3 + 6 = 9
    assert fill_until(times, 4.9, shared=True) == []


def test_fedcs_draws_from_the_uniform_cohort() -> None:
    of = config("fedcs", select__deadline=1.5)
    seconds = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 2.0, "e": 1.0}
    for t in range(1, 10):
        drawn = SELECTORS["uniform"](of).select(pool(of, t), [], {})
        assert SELECTORS["fedcs"](of).select(pool(of, t, SIZES, seconds), [], {}) == [
            c for c in drawn if seconds[c] < 1.5
        ]


def test_a_deadline_that_nobody_can_meet_is_refused() -> None:
    of = config("fedcs", select__deadline=0.5)
    with pytest.raises(
        ConfigError, match=r'"select.deadline": expected at least 1 simulated seconds.*got 0.5'
    ):
        SELECTORS["fedcs"](of).select(pool(of), [], {})


# ----------------------------------------------------------------------------------------- common


def remembering(name: str, of: Config) -> Any:
    selector = SELECTORS[name](of)
    for t, names in enumerate(("ab", "cd", "äa"), start=1):
        told = {c: row(3 + t, 0.1 * t) | {"train-loss": 1 / t} for c in names}
        selector.observe(pool(of, t), dict(reversed(told.items())) if t % 2 else told)
    return selector


@pytest.mark.parametrize("name", sorted(SELECTORS))
@pytest.mark.parametrize("losses", ["query", "last"])
def test_memory_survives_bit_for_bit_and_in_any_order(name: str, losses: str) -> None:
    of = config(name, select__losses=losses)
    selector = remembering(name, of)
    memory = selector.dump()
    assert bool(memory) == (name == "oort" or (name == "power-of-choice" and losses == "last"))
    assert all(key.startswith("selection/") for key in memory)
    again = SELECTORS[name](of)
    again.load(memory | {"arrays/w": np.zeros(2)})
    assert (again.known, again.lists) == (selector.known, selector.lists)
    assert {k: a.tobytes() for k, a in again.dump().items()} == {k: a.tobytes() for k, a in memory.items()}
    again.load({})
    assert again.dump() == {}


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_a_draw_depends_on_names_seed_and_round_alone(name: str) -> None:
    sizes = {f"client-{i:02d}": 5 + i for i in range(30)}
    of = config(name, fraction_train=0.3, select__deadline=1.5)

    def cohorts(of: Config, nodes: int) -> list[list[str]]:
        selector, out = SELECTORS[name](of), []
        for t in range(1, 7):
            there = pool(of, t, sizes, {c: 1.0 + (i % 2) for i, c in enumerate(sizes)}, nodes)
            asked = selector.candidates(there)
            out.append(selector.select(there, asked, {c: float(len(c)) for c in reversed(asked)}))
            selector.observe(there, {c: row(sizes[c], 1.0) for c in out[-1]})
        return out

    once = cohorts(of, 1)
    assert once == cohorts(of, 3)
    assert once != cohorts(read_config({**_keys(of), "seed": 2}), 1)
    assert len({str(c) for c in once}) > 1
    assert all(c == sorted(set(c)) for c in once)


def _keys(of: Config) -> dict[str, Any]:
    from task.config.read import as_run_config

    return dict(as_run_config(of))


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_without_clients_nobody_is_drawn(name: str) -> None:
    of = config(name)
    there = pool(of, sizes={})
    selector = SELECTORS[name](of)
    assert selector.candidates(there) == []
    assert selector.select(there, [], {}) == []
