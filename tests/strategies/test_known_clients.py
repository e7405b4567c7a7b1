"""Clients join, are away, leave for good, and the run is resumed: what the server divides by.

A mean over all clients is one over those that the run has known. Who is away in a round does not change it,
and who joins makes it smaller at once.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategies import strategy_of
from strategies.engine.rule import Rule
from strategies.engine.state import MeansState
from strategies.membership.known_clients import KnownClients
from strategies.rules.client_models import ModelsState
from strategies.rules.scaffold import Scaffold, ScaffoldState
from task import timing
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.numerics.arrays import Arrays
from task.population import ClientNames
from tests.support.federation import SIZES, Keep, Played, owners_config, play, read_by, write_owners
from tests.support.joining import joining
from tests.support.kept import store_of
from tests.support.rules import context, w


def rule_of(entry: Algorithm) -> type[Rule]:
    return strategy_of(entry.rule).rule_type


@pytest.fixture(autouse=True)
def who_is_gone_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COME_BACK_S", 0.0)


MEANS = {name: entry for name, entry in ALGORITHMS.items() if any(r.mean for r in entry.keeps)}
TABLES = [name for name, entry in ALGORITHMS.items() if issubclass(rule_of(entry).state, ModelsState)]


def test_every_entry_with_state_on_both_sides_says_whether_the_server_holds_a_mean_of_the_clients() -> None:
    """A rule whose state adds up from zero, and whose clients keep something, follows their mean."""
    assert MEANS
    for name, entry in ALGORITHMS.items():
        rule, means = rule_of(entry), {r.mean for r in entry.keeps if r.mean}
        if entry.keeps and rule.zeros:
            assert set(rule.zeros) == means, name
        assert issubclass(rule.state, MeansState) == bool(means), name
        assert means <= {f.name for f in dataclasses.fields(rule.state)}, name


# ------------------------------------------------------------------------------------------ by hand


def counted(state: ScaffoldState, known: tuple[str, ...], online: tuple[str, ...] = ()) -> ScaffoldState:
    rule = Scaffold(Config(algorithm="scaffold"))
    given = dataclasses.replace(context(rule, online or known), known=known)
    found: ScaffoldState = rule.counted(state, given)
    return found


def test_a_client_that_joins_has_its_share_of_the_mean_and_one_that_is_away_keeps_its_own() -> None:
    """Anna alone has c_i = 1; ben joins with 0, so that the mean is 1/2, with both online or one."""
    alone = ScaffoldState(w(0.0), control=w(1.0), population=1)
    both = counted(alone, ("anna", "ben"))
    assert (both.control["w"].tolist(), both.population) == ([0.5], 2)
    assert counted(both, ("anna", "ben"), online=("ben",)).control["w"].tolist() == [0.5]
    assert counted(both, ("anna", "ben", "cleo", "dora")).control["w"].tolist() == [0.25]


def test_a_state_that_nobody_joined_is_the_same_to_the_bit() -> None:
    odd = ScaffoldState(w(0.0), control=w(0.1, 1e-30, -3.3), population=3)
    same = counted(odd, ("a", "b", "c"))
    assert same.control["w"] is odd.control["w"]


def test_the_known_are_those_ever_online_with_the_examples_that_they_had() -> None:
    known = KnownClients()
    known.add(["ben", "dora"])
    known.add(["anna", "dora"])
    assert list(known.names) == ["anna", "ben", "dora"]
    known.left({("ben",): np.array([12])})
    known.left({("ben",): np.array([13])})
    assert known.last_examples(["anna", "ben"]) == {"ben": 13}

    again = KnownClients()
    again.add(["emil"])
    again.load(known.dump({"anna": 7, "ben": 13, "dora": 5}))
    assert list(again.names) == ["anna", "ben", "dora", "emil"]
    assert again.last_examples(["anna", "ben", "emil"]) == {"anna": 7, "ben": 13}


def test_a_million_clients_of_a_pattern_are_known_by_their_number() -> None:
    known, everybody = KnownClients(), ClientNames(1_000_000)
    known.add(everybody)
    known.add(everybody)
    assert known.names is everybody
    (count,) = known.dump(None).values()
    assert count.tolist() == 1_000_000
    known.load({"known/count": count})
    assert known.names is everybody


# ------------------------------------------------------------------------------------------- in runs

LAST, RESUMED = 10, 6


def there(client: str, t: int) -> bool:
    """Return whether a client is online: emil joins, two are away, anna leaves, ben misses a restart."""
    return {
        "anna": t < 8,
        "ben": t != RESUMED,
        "cleo": not 4 <= t < 6,
        "dora": not 4 <= t < 7,
        "emil": t >= 3,
    }[client]


def play_them(folder: Path, algorithm: str, **more: Any) -> tuple[dict[str, Any], Played]:
    """Play a run of ten rounds that is killed after the fifth and resumed."""
    data = write_owners(folder / "owners.npz")
    base = {
        "num_classes": 3, "fraction_train": 0.7, "local_epochs": 2, "batch_size": 4, "run_name": "known",
        "state_dir": str(folder / "state"), "learning_rate": 0.1,
    }  # fmt: skip
    keys = read_by(owners_config(folder / "owners.npz", algorithm=algorithm, **{**base, **more}))
    keep, begun = Keep(), RESUMED - 1
    keep.run_id = "known"
    play({**keys, "num-server-rounds": begun}, journal=keep, grid_type=joining(folder, data, there))
    rest = Keep(keep.snapshots[-1])
    rest.run_id = "known"
    late = joining(folder, data, lambda client, t: there(client, max(t, RESUMED)))
    keys = {**keys, "num-server-rounds": LAST}
    played = play(keys, journal=rest, grid_type=late)
    rows = [row for row in (*keep.rows, *rest.rows) if row["round"]]
    assert [row["population"] for row in rows] == [
        sum(there(c, t) for c in SIZES) for t in range(1, LAST + 1)
    ]
    assert not any(row["skipped"] for row in rows)
    return keys, played


def field_of(arrays: Arrays, name: str) -> Arrays:
    return {k.removeprefix(f"{name}/"): a for k, a in arrays.items() if k.startswith(f"{name}/")}


@pytest.mark.parametrize("name", sorted(MEANS))
def test_the_server_holds_the_mean_of_what_the_clients_keep_whoever_comes_and_goes(
    tmp_path: Path, name: str
) -> None:
    keys, played = play_them(tmp_path, name)
    entry, store = MEANS[name], store_of(keys)
    kept = {c: found.fields for c in SIZES if (found := store.load(c, name))}
    assert set(kept) == set(SIZES)
    state = played.keep.snapshots[-1].arrays
    for record in (r for r in entry.keeps if r.mean):
        counts = {c: SIZES[c] if record.mean_by == "examples" else 1 for c in SIZES}
        server = field_of(state, record.mean)
        assert server
        for n, mean in server.items():
            want = sum(counts[c] * kept[c][record.name][n].astype(np.float64) for c in SIZES)
            want = want / sum(counts.values())
            assert np.abs(want).max() > 1e-4  # else any mean near 0 would pass
            assert np.abs(mean - want).max() <= 1e-6, (record.name, n)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_server_that_holds_the_clients_models_drops_none_of_them(tmp_path: Path, name: str) -> None:
    """What it sends and measures is a mean of all; nobody's model changes because its client is away."""
    more: dict[str, Any] = {"d_psgd__route": "complete"} if name == "d-psgd" else {}
    _, played = play_them(tmp_path, name, **more)
    state = played.keep.snapshots[-1].arrays
    models = field_of(state, "models")
    assert {key.rpartition("/")[0] for key in models} == set(SIZES)
    for n, mean in field_of(state, "arrays").items():
        rows = [models[f"{c}/{n}"].astype(np.float64) for c in SIZES]
        assert np.abs(mean - sum(rows) / len(rows)).max() <= 1e-6


@pytest.mark.parametrize("name", ["feddc"])
def test_examples_that_arrive_change_the_weight_of_what_a_client_has_kept(tmp_path: Path, name: str) -> None:
    """g = (1/n) sum n_k g_k with the examples that each had when it last trained."""
    file, state = tmp_path / "owners.npz", str(tmp_path / "state")
    write_owners(file)
    keys = read_by(
        owners_config(
            file, algorithm=name, state_dir=state, num_server_rounds=5, fraction_train=1.0, local_epochs=2,
            batch_size=4, stream__start=0.4, stream__per_round=0.1,
        )
    )  # fmt: skip
    played = play(keys)
    store = store_of(keys)
    kept = {c: found.fields for c in SIZES if (found := store.load(c, name))}
    counts = {c: int(kept[c]["examples"]["n"]) for c in SIZES}
    assert counts["cleo"] < SIZES["cleo"]
    server = field_of(played.keep.snapshots[-1].arrays, "gradient")
    for n, mean in server.items():
        want = sum(counts[c] * kept[c]["gradient"][n].astype(np.float64) for c in SIZES) / sum(
            counts.values()
        )
        assert np.abs(mean - want).max() <= 1e-6
