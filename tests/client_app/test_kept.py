"""What clients keep, for every algorithm that keeps something: exact, whoever trains whom, also resumed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.solvers import SOLVERS
from client_app.solvers.sgd import Finished, Solver
from task.catalogue.algorithms import ALGORITHMS
from task.numerics.arrays import Arrays, sha256
from tests.support.alike import told
from tests.support.federation import Keep, OneRun, Played, far, owners_config, play, read_by, write_owners
from tests.support.horizontal import HORIZONTAL
from tests.support.kept import kept_by, store_of
from tests.support.shapes import by_shape
from tests.test_catalogue import ACTIVE

KEEPERS = [name for name, entry in sorted(HORIZONTAL.items()) if entry.keeps]
ROUNDS = 6
SETTINGS = {
    "fraction_train": 0.6,
    "local_epochs": 3,
    "batch_size": 4,
    "learning_rate": 0.3,
    "stragglers": 0.4,
}
FOLDERS = itertools.count()


def keys_of(name: str, tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Return the config of a run of the owners with a state folder of its own."""
    owners = tmp_path / "owners.npz"
    if not owners.exists():
        write_owners(owners)
    state = str(tmp_path / f"state-{next(FOLDERS)}")
    model = "mlp" if ALGORITHMS[name].personal else "logistic"
    given = SETTINGS | {"num_server_rounds": ROUNDS, "model": model} | more
    return read_by(owners_config(owners, algorithm=name, state_dir=state, **given) | ACTIVE[name])


def all_kept(keys: dict[str, Any], played: Played) -> dict[str, dict[str, Arrays]]:
    """Return what everybody kept, by field and client."""
    fields = [f.name for f in ALGORITHMS[keys["algorithm"]].keeps]
    return {field: kept_by(keys, played, field) for field in fields}


def digests(kept: dict[str, dict[str, Arrays]]) -> dict[tuple[str, str], str]:
    return {(field, c): sha256(a) for field, clients in kept.items() for c, a in clients.items()}


@pytest.mark.parametrize("name", by_shape(((n,) for n in KEEPERS), 2))
def test_the_spread_over_nodes_does_not_change_a_byte_of_what_is_kept(name: str, tmp_path: Path) -> None:
    found = []
    for nodes in (2, 5):  # of several clients and of one
        keys = keys_of(name, tmp_path)
        played = play(keys, nodes=nodes, seed=nodes)
        asked = {c for cohort in played.selected() for c in cohort}
        found.append(digests(all_kept(keys, played)))
        assert {c for _, c in found[-1]} == asked
        assert all(len(cohort) < len(played.names) for cohort in played.selected())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "model"),
    by_shape(
        ((n, m) for n in KEEPERS for m in ("logistic", "mlp") if m == "mlp" or not ALGORITHMS[n].personal),
        2,
    ),
)
def test_a_client_keeps_the_same_alone_and_in_a_stack(name: str, model: str, tmp_path: Path) -> None:
    both = []
    for stack in (1, 0):
        keys = keys_of(name, tmp_path, stack=stack, model=model)
        played = play(keys, nodes=1)
        both.append((played.arrays(ROUNDS), all_kept(keys, played)))
    (alone, kept_alone), (stacked, kept_stacked) = both
    assert stacked.keys() == alone.keys()
    if alone:  # the server has a part of the model
        assert far(tuple(stacked.values()), tuple(alone.values())) < 1e-4  # type: ignore[arg-type]
    for field, clients in kept_alone.items():
        assert clients.keys() == kept_stacked[field].keys()
        for c, arrays in clients.items():
            pair = tuple(kept_stacked[field][c].values()), tuple(arrays.values())
            assert far(*pair) < 1e-3, (field, c)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", by_shape((n,) for n in KEEPERS))
def test_a_client_that_does_not_take_part_keeps_what_it_has(name: str, tmp_path: Path) -> None:
    """Its state is that of its last round, byte for byte."""
    keys = keys_of(name, tmp_path)
    store, seen = store_of(keys), {}

    class Watch(Keep):
        def round_done(self, row: Any, clients: Any, snapshot: Any, clock: Any) -> None:
            super().round_done(row, clients, snapshot, clock)
            for c in ("anna", "ben", "cleo", "dora", "emil"):
                # the next round may be under way
                kept = store.load(c, name, before=snapshot.round + 1)
                seen[snapshot.round, c] = (kept.round, digests({c: kept.fields})) if kept else None

    played = play(keys, journal=Watch())
    for c in played.names:
        last = 0
        for t, cohort in enumerate(played.selected(), start=1):
            last = t if c in cohort else last
            now = seen[t, c]
            assert (now[0] if now else 0) == last
            if last != t:
                assert now == seen[t - 1, c]


@pytest.mark.parametrize(
    ("name", "every", "rounds"),
    by_shape(((n, e, r) for n in KEEPERS for e, r in ((1, (4, 5)), (4, (4,)))), 2),
)
def test_a_resumed_run_ends_with_the_bytes_of_one_that_was_not_stopped(
    name: str, every: int, rounds: tuple[int, ...], tmp_path: Path
) -> None:
    """The clients are some rounds ahead of the checkpoint when the run goes on from it."""
    keys = keys_of(name, tmp_path, checkpoint_every=every)
    whole = play(keys, journal=OneRun())
    want = digests(all_kept(keys, whole))
    for back_to in rounds:
        resumed = play(keys, journal=OneRun(whole.keep.snapshots[back_to]))
        assert len(told(resumed, back_to)) == ROUNDS - back_to
        assert told(resumed, back_to) == told(whole, back_to)
        assert digests(all_kept(keys, resumed)) == want


@pytest.mark.parametrize("name", by_shape(((n,) for n in KEEPERS), 2))
def test_another_run_of_the_name_begins_anew(name: str, tmp_path: Path) -> None:
    keys = keys_of(name, tmp_path, num_server_rounds=2, fraction_train=1.0)  # all kept something
    first, second = play(keys), play(keys)
    assert [r["model_sha256"] for r in first.rows] == [r["model_sha256"] for r in second.rows]


def not_numbers(arrays: Arrays) -> Arrays:
    return {k: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for k, a in arrays.items()}


# Ben is known by his number of examples, of which public ones are taken.
@pytest.mark.parametrize("name", [name for name in KEEPERS if not ALGORITHMS[name].public])
def test_a_client_that_diverges_keeps_what_it_had(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply is refused, so what it made of the round must not count for it either."""
    entry = ALGORITHMS[name]
    good = SOLVERS[entry.solver]

    def finish(self: Solver, task: Any, stats: Any) -> Finished:
        finished = good.finish(self, task, stats)
        # ben, from his second round on
        bad = [i for i, n in enumerate(task.num_examples) if n == 12 and self.kept[i]]
        for i in bad:
            upload, keep = finished[i]
            broken = {f: not_numbers(named) for f, named in keep.items()}
            if not broken:  # what is kept is made of what goes up
                upload = replace(upload, arrays={f: not_numbers(a) for f, a in upload.arrays.items()})
            finished[i] = (upload, broken)
        return finished

    monkeypatch.setitem(SOLVERS, entry.solver, type("Diverging", (good,), {"finish": finish}))
    keys = keys_of(name, tmp_path, fraction_train=1.0, num_server_rounds=3)
    played = play(keys)
    refused = [[q["client"] for q in row["quarantined"]] for row in played.rows[1:]]
    assert refused == [[], ["ben"], ["ben"]]
    kept = store_of(keys).load("ben", name)
    assert kept is not None
    assert kept.round == 1
    assert all(np.isfinite(a).all() for named in kept.fields.values() for a in named.values())


def test_a_cohort_that_fails_half_way_through_its_saves_is_not_trained_on_what_it_just_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cohort that failed is tried in halves, each client from what it had before the round."""
    from client_app.memory.state import StateStore

    save, failing = StateStore.save, iter([False, True, *[False] * 99])

    def once(self: StateStore, *args: Any) -> None:
        if next(failing):
            raise OSError("no space left on device")
        save(self, *args)

    keys = keys_of("scaffold", tmp_path, fraction_train=1.0, num_server_rounds=2)
    want = play(keys, nodes=1)
    monkeypatch.setattr(StateStore, "save", once)
    again = keys_of("scaffold", tmp_path, fraction_train=1.0, num_server_rounds=2)
    got = play(again, nodes=1)
    assert [r["model_sha256"] for r in got.rows] == [r["model_sha256"] for r in want.rows]
    assert digests(all_kept(again, got)) == digests(all_kept(keys, want))
