"""The robust rules: by hand, against brute force, through real messages, and what they refuse."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies import STRATEGIES
from strategies.engine.state import ServerState, too_few
from strategies.rules.bulyan import around_median, selection
from strategies.rules.geometric_median import weiszfeld
from strategies.rules.krum import scores
from strategies.rules.robust_math import squared_distances
from task.catalogue.algorithms import ALGORITHMS
from task.config.algorithm_sections import RobustConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.numerics.collect import SPOOL
from task.resolve.read import read_config
from tests.reference.robust import SEVEN, Robust
from tests.support.federation import owners_config, play, write_owners
from tests.support.rules import reduced, w

RULES = sorted(name for name, entry in ALGORITHMS.items() if entry.withstands)


def config(name: str, **knobs: Any) -> Config:
    return Config(algorithm=name, robust=RobustConfig(**knobs))


def apply(
    name: str, rows: list[Arrays], start: Arrays | None = None, sizes: list[int] | None = None, **knobs: Any
) -> tuple[Arrays, dict[str, Any]]:
    """Return the model and the metrics that a rule makes of these clients' models."""
    replies = {f"{k:02}": (row, sizes[k] if sizes else 1) for k, row in enumerate(rows)}
    trainable = tuple(n for n in rows[0] if n.startswith("w"))
    start = start or {n: np.zeros_like(a) for n, a in rows[0].items()}
    state = STRATEGIES[name].rule_type(config(name, **knobs)).initial_state(start, trainable)
    told = reduced(name, replies, trainable=trainable)
    new, metrics = STRATEGIES[name].update(state, told, config(name, **knobs))
    return new.arrays, metrics


def points(*values: float) -> list[Arrays]:
    return [w(v) for v in values]


def test_these_are_the_rules() -> None:
    more = ["centered-clipping", "dnc", "meamed"]
    assert (
        sorted([*more, "bulyan", "geometric-median", "krum", "median", "multi-krum", "trimmed-mean"]) == RULES
    )


# ------------------------------------------------------------------------------------- by hand


def test_median_by_hand() -> None:
    # each coordinate by itself: med(1, 5, 900) = 5, med(7, -1, 3) = 3; of four the mean of the middle two
    rows = [w(1, 7), w(5, -1), w(900, 3)]
    assert apply("median", rows)[0]["w"].tolist() == [5.0, 3.0]
    assert apply("median", [*rows, w(6, 4)])[0]["w"].tolist() == [5.5, 3.5]


def test_trimmed_mean_by_hand() -> None:
    # K = 5, beta = 0.2: b = 1. Sorted -900 1 2 6 800: (1 + 2 + 6) / 3 = 3. beta 0.4: b = 2, the median.
    rows = points(2, 800, 1, -900, 6)
    assert apply("trimmed-mean", rows, trim=0.2) == ({"w": np.array([3.0], np.float32)}, {"trimmed": 1})
    assert apply("trimmed-mean", rows, trim=0.4)[0]["w"].tolist() == [2.0]
    assert apply("trimmed-mean", rows, trim=0.1)[0]["w"][0] == pytest.approx(-91 / 5)  # b = 0, plain mean


def test_a_share_is_counted_without_the_rounding_of_floats() -> None:
    """0.29 * 100 is 28.999999999999996 in floating point; 29 clients are meant."""
    assert apply("trimmed-mean", points(*range(100)), trim=0.29)[1] == {"trimmed": 29}
    assert RobustConfig(byzantine=0.29).f(100) == 29


def test_krum_by_hand() -> None:
    # 0, 1, 3, 4.5, 100 with f = 1: the 2 closest. Scores: 0: 1 + 9; 1: 1 + 4; 3: 2.25 + 4; 4.5: 2.25 + 12.25
    D = np.subtract.outer(*[np.array([0, 1, 3, 4.5, 100.0])] * 2) ** 2
    assert scores(D, 1).tolist() == [10.0, 5.0, 6.25, 14.5, 95.5**2 + 97.0**2]
    model, metrics = apply("krum", points(0, 1, 3, 4.5, 100), byzantine=1)
    assert model["w"].tolist() == [1.0]
    assert metrics == {"byzantine": 1, "taken": 1, "score": 5.0}


def test_multi_krum_by_hand() -> None:
    # scores as above: 1, 3, 0, 4.5, 100 in ascending order; m = 0 is K - f - 2 = 2
    rows = points(0, 1, 3, 4.5, 100)
    assert apply("multi-krum", rows, byzantine=1)[0]["w"].tolist() == [2.0]
    assert apply("multi-krum", rows, byzantine=1, m=3)[0]["w"][0] == pytest.approx(4 / 3)
    # no more than K - f, whatever m: 100 stays out
    assert apply("multi-krum", rows, byzantine=1, m=5)[0]["w"][0] == pytest.approx(8.5 / 4)


def test_multi_krum_does_not_weigh_by_what_clients_say_of_themselves() -> None:
    rows = points(0, 1, 3, 4.5, 100)
    assert apply("multi-krum", rows, sizes=[1, 1, 10**6, 1, 10**8], byzantine=1)[0]["w"].tolist() == [2.0]


def test_of_equal_scores_the_first_name_wins() -> None:
    assert apply("krum", points(2, 2, 2, 2, 2, 0, 0, 0), byzantine=0)[0]["w"].tolist() == [2.0]
    assert apply("krum", points(-1, 1, -1, 1), byzantine=1)[0]["w"].tolist() == [-1.0]


def test_bulyan_selects_anew_after_each_choice() -> None:
    """0, 1, 3, 4, 5, 6, 100 with f = 1, so theta = 5; the scores of those that are left, by hand.

    4 neighbours: 51 30 18 15 22 39 .. -> 4.   3 of 0 1 3 5 6 100: 35 21 17 21 35 .. -> 3.
    2 of 0 1 5 6 100: 26 17 17 26 .. -> 1.     1 of 0 5 6 100: 25 1 1 .. -> 5.   1 of 0 6 100: 36 36 .. -> 0.
    Choosing once, by the first scores, would take 1 3 4 5 6 and leave 0 out.
    """
    values = np.array([0, 1, 3, 4, 5, 6, 100.0])
    D = np.subtract.outer(values, values) ** 2
    assert scores(D, 1)[:6].tolist() == [51, 30, 18, 15, 22, 39]
    assert selection(D, 1) == [0, 1, 2, 3, 4]
    # median 3; of 0 1 3 4 5 the closest 3: 3, 4 and, of 1 and 5 that are equally far, the smaller
    model, metrics = apply("bulyan", points(*values), byzantine=1)
    assert model["w"][0] == pytest.approx((1 + 3 + 4) / 3)
    assert metrics == {"byzantine": 1, "selected": 5, "averaged": 3}


def test_of_equal_models_the_first_name_wins() -> None:
    """Also where what the distances are computed from differs in the last bit."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        K, size = int(rng.integers(7, 24)), int(rng.integers(20, 400))
        distinct = [w(*rng.normal(size=size)) for _ in range(K)]
        of = rng.integers(0, K // 2, K).tolist()
        D = squared_distances(
            {"w": np.stack([distinct[i]["w"] for i in of])}, w(*rng.normal(size=size)), ["w"]
        )
        f = (K - 3) // 4
        first = int(np.argmin(scores(D, f)))
        assert first == of.index(of[first])
        chosen = selection(D, f)
        for model in set(of):  # of each model the first ones of its names are taken
            names = [k for k in range(K) if of[k] == model]
            taken = [k for k in names if k in chosen]
            assert taken == names[: len(taken)]


def test_around_the_median_the_farthest_go_one_by_one_and_of_equals_the_larger() -> None:
    # medians 2, 0, 5: farthest first. Column 2: -1 and 1 are equally far from 0: 1 goes.
    block = np.array([[1, -1, 5], [2, 0, 5], [9, 1, 5]], np.float32)
    assert around_median(block, 1).tolist() == [1.5, -0.5, 5.0]
    assert around_median(block, 2).tolist() == [2.0, 0.0, 5.0]
    assert around_median(block, 0).tolist() == [4.0, 0.0, 5.0]


def test_geometric_median_by_hand() -> None:
    # On a line it is the median. From the mean 5 of 0, 1, 14, one step: weights 1/5, 1/4, 1/9 of sum 101/180.
    one = (1 / 4 + 14 / 9) / (1 / 5 + 1 / 4 + 1 / 9)
    for steps, want in ((1, one), (1000, 1.0)):
        got = apply("geometric-median", points(0, 1, 14), iterations=steps)[0]["w"][0]
        assert got == pytest.approx(want, abs=1e-5)
    # Of the corners of an equilateral triangle it is the centre.
    corners = [w(0, 0), w(2, 0), w(1, 3**0.5)]
    assert apply("geometric-median", corners)[0]["w"].tolist() == pytest.approx([1, 3**-0.5], rel=1e-6)


def test_geometric_median_weighs_by_examples_only_if_asked_to() -> None:
    # weight 5 of 8 in one place: the median is there; unweighted it is the middle one
    rows, sizes = points(0, 1, 14), [1, 2, 5]
    for weighted, want in ((True, 14), (False, 1)):
        got = apply("geometric-median", rows, sizes=sizes, weighted=weighted, iterations=1000)[0]
        assert got["w"][0] == pytest.approx(want, abs=1e-4)


def test_who_is_drawn_by_examples_is_not_weighed_by_them_again() -> None:
    rows, sizes = points(0, 1, 14), [1, 2, 5]
    of = config("geometric-median", weighted=True, iterations=1000)
    of = replace(of, server=replace(of.server, selection="proportional"))
    told = reduced(
        "geometric-median",
        {f"{k}": (row, n) for k, (row, n) in enumerate(zip(rows, sizes, strict=True))},
        trainable=("w",),
    )
    new, _ = STRATEGIES["geometric-median"].update(ServerState(w(0)), told, of)
    assert new.arrays["w"][0] == pytest.approx(1, abs=1e-4)


def test_a_smallest_distance_that_exceeds_all_makes_it_the_mean() -> None:
    assert apply("geometric-median", points(0, 1, 14), nu=1e9)[0]["w"].tolist() == [5.0]


def test_geometric_median_leaves_out_who_is_infinitely_far() -> None:
    G = np.array([[np.inf, np.nan, np.nan], [np.nan, 0.0, 0.0], [np.nan, 0.0, 4.0]])
    weights, _ = weiszfeld(G, np.array([0.8, 0.1, 0.1]), 1e-6, 50)
    assert weights.tolist() == pytest.approx([0.0, 0.5, 0.5])
    none = np.full((2, 2), np.inf)
    assert weiszfeld(none, np.array([0.3, 0.7]), 1e-6, 50)[0].tolist() == [0.3, 0.7]


# ---------------------------------------------------------------------------------- what all share


def knobs_of(name: str) -> dict[str, Any]:
    return {"byzantine": 1, "trim": 0.2, "m": 4}


@pytest.mark.parametrize("name", RULES)
def test_one_client_cannot_carry_the_model_away(name: str) -> None:
    """Whatever it sends, in parameters and in buffers: nothing leaves the range of the honest."""
    rng = np.random.default_rng(1)
    honest = [
        {
            "w": rng.normal(size=(4, 3)).astype(np.float32),
            "mean": rng.normal(size=3).astype(np.float32),
            "seen": np.array(rng.integers(10, 20), np.int64),
        }
        for _ in range(8)
    ]
    low = {n: np.min([r[n] for r in honest], axis=0) for n in honest[0]}
    high = {n: np.max([r[n] for r in honest], axis=0) for n in honest[0]}
    for value in (1e9, -1e9, 50.0, 0.0):  # with 0 it is among the honest, in parameters
        bad = {n: np.full_like(a, value if n == "w" else 10**9) for n, a in honest[0].items()}
        for place in (0, 8):
            model, _ = apply(name, [*honest[:place], bad, *honest[place:]], **knobs_of(name))
            for n, a in model.items():
                slack = 0.3 * np.max(high[n] - low[n])  # the geometric median bends to a far one
                assert np.all(a >= low[n] - slack), (value, n)
                assert np.all(a <= high[n] + slack), (value, n)


@pytest.mark.parametrize("name", sorted({*RULES} - {"centered-clipping"}))  # which goes only some way
def test_dtypes_shapes_and_the_order_of_arrays_stay_and_integers_are_rounded(name: str) -> None:
    row = {
        "w1": np.ones((2, 3), np.float32), "w2": np.ones((), np.float64), "w3": np.ones(3, np.float16),
        "seen": np.array(2**40 + 1, np.int64), "none": np.zeros((0, 3), np.float32),
    }  # fmt: skip
    model, _ = apply(name, [row] * 7, **knobs_of(name))
    assert list(model) == list(row)
    for n, a in row.items():
        assert (model[n].dtype, model[n].shape) == (a.dtype, a.shape)
        slack = (
            1e-15 if name in ("dnc", "geometric-median") else 0
        )  # whose weights are of sum 1 but for a rounding
        assert np.allclose(model[n], a, rtol=slack, atol=0), "where all agree, that is the result"


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum", "bulyan"])
def test_where_the_stack_lies_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    rows = [{"w": rng.normal(size=(5, 2000)).astype(np.float32)} for _ in range(11)]
    assert 11 * rows[0]["w"].nbytes < SPOOL
    want = apply(name, rows, **knobs_of(name))
    monkeypatch.setattr("task.numerics.collect.SPOOL", 1000)
    got = apply(name, rows, **knobs_of(name))
    assert np.array_equal(got[0]["w"], want[0]["w"])
    assert got[1] == want[1]


# ------------------------------------------------------------------------------------ brute force

WITHOUT_MEMORY = [kind for kind in Robust.__subclasses__() if "begin" not in vars(kind)]
CASES = {f"{kind.algorithm}, {case}": (kind, case) for kind in WITHOUT_MEMORY for case in kind.cases}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("K", [7, 8, 12])
def test_a_rule_equals_brute_force(case: str, K: int) -> None:
    kind, which = CASES[case]
    keys = {k: v for k, v in kind.cases[which].items() if k.startswith("robust__")}
    knobs = {k.removeprefix("robust__"): v for k, v in keys.items()}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = [{"w": rng.normal(rng.normal(), 1, 12), "w2": rng.normal(size=(3, 2))} for _ in range(K)]
        sizes = rng.integers(1, 9, K).tolist()
        start = {"w": rng.normal(size=12), "w2": rng.normal(size=(3, 2))}
        got = apply(kind.algorithm, rows, start, sizes, **knobs)[0]
        want = kind(**knobs).rule([np.concatenate([r["w"], r["w2"].ravel()]) for r in rows], sizes)
        assert np.concatenate([got["w"], got["w2"].ravel()]) == pytest.approx(want, rel=1e-9, abs=1e-12)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("value", [0.5, 0.7, 1.5, 2.25])
def test_half_or_a_broken_count_is_refused_with_key_and_range(value: float) -> None:
    with pytest.raises(ConfigError, match=r'"robust.byzantine".*>= 0 and < 0.5.*whole count >= 1') as error:
        read_config({"algorithm": "krum", "robust.byzantine": value})
    assert str(value) in str(error.value)


@pytest.mark.parametrize(
    ("name", "f", "needed"),
    [("krum", 2, 7), ("multi-krum", 2, 7), ("bulyan", 2, 11), ("median", 3, 7), ("trimmed-mean", 3, 7),
     ("geometric-median", 3, 7)],
)  # fmt: skip
def test_how_many_replies_a_rule_needs(name: str, f: int, needed: int) -> None:
    entry, chosen = ALGORITHMS[name], config(name, byzantine=float(f))
    assert too_few(entry, chosen, needed, needed) == ""
    why = too_few(entry, chosen, needed - 1, needed)
    assert f"= {needed} replies against f = {f}" in why
    assert f"got {needed - 1}: with that number f is at most {f - 1}" in why


def test_a_share_is_one_of_those_asked_not_of_those_who_answered() -> None:
    """Of 10 asked 2 may be malicious; if 4 honest ones are silent, the 2 are among the 6 that answered."""
    entry, chosen = ALGORITHMS["krum"], config("krum", byzantine=0.2)
    assert too_few(entry, chosen, 7, 10) == ""
    assert "f = 2 malicious of 10 clients asked; got 6" in too_few(entry, chosen, 6, 10)
    values = points(0, 0.1, 0.2, 0.4, 0.5, 5, 5.01, 5.02)
    replies = {f"{k}": (row, 1) for k, row in enumerate(values)}
    told = replace(reduced("krum", replies, trainable=("w",)), asked=15)
    _, metrics = STRATEGIES["krum"].update(ServerState(w(0)), told, chosen)
    assert metrics["byzantine"] == 3


def test_a_rule_that_promises_nothing_needs_nothing() -> None:
    assert too_few(ALGORITHMS["fedavg"], config("fedavg", byzantine=0.4), 1, 100) == ""


@pytest.mark.parametrize("name", ["bulyan", "dnc", "median"])
def test_too_small_a_cohort_is_refused_before_round_1(name: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(tmp_path / "owners.npz", algorithm=name, fraction_train=0.8, robust__byzantine=2.0)
    with pytest.raises(
        ConfigError, match=r'"robust.byzantine".*f = 2 malicious of 4 .*got 4: with that number'
    ):
        play(keys)
    enough = {"enough_replies": 2, "robust__byzantine": 1.0}
    with pytest.raises(ConfigError, match=f"{name} needs at least . f .* of 5 clients asked; got 2"):
        play(owners_config(tmp_path / "owners.npz", algorithm=name, **enough))


@pytest.mark.parametrize("name", ["centered-clipping", "krum", "median"])
def test_a_round_with_too_few_replies_keeps_the_model_and_says_so(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Seven clients on seven nodes, f = 1; in round 2 all but two are broken."""
    write_owners(tmp_path / "owners.npz", SEVEN)
    seen = {"replies": 0}

    def tamper(node: int, reply: Message) -> Message:
        seen["replies"] += 1
        if 9 < seen["replies"] <= 14:
            reply.content.clear()
        return reply

    keys = owners_config(tmp_path / "owners.npz", algorithm=name, robust__byzantine=1.0, num_server_rounds=3)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        rows = play(keys, nodes=7, tamper=tamper).rows
    assert [row["skipped"] for row in rows[1:]] == [False, True, False]
    assert rows[2]["model_sha256"] == rows[1]["model_sha256"] != rows[3]["model_sha256"]
    assert len(rows[2]["quarantined"]) == 5
    (line,) = [r.message for r in caplog.records if "keeps the model" in r.message]
    assert f'round 2 keeps the model: run-config key "robust.byzantine": {name} needs' in line
    assert "f = 1 malicious of 7 clients asked; got 2" in line
