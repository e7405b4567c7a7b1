"""The store of kept state: whole or refused, and never somebody else's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from client_app.memory.state import StateStore
from strategies.engine.recovery import oldest_checkpoint
from task.errors import StateError
from task.numerics.arrays import Arrays, sha256
from task.storage.client_state import safe_name

HEAD: dict[str, Arrays] = {
    "head": {"2/weight": np.array([[1.5, -0.0]], np.float32), "2.bias": np.array([1e-45], np.float32)},
    "ala": {"weights": np.array(0.25), "started": np.array(1, np.int64)},
}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "state", "wards")


def names_in(store: StateStore, run: str = "") -> set[str]:
    """Return the names of the files in a run's folder."""
    return {p.name for p in store.path("a", run).parent.iterdir()}


def test_what_is_saved_is_loaded_with_its_bits(store: StateStore) -> None:
    store.save("ward-3", "fedper", 7, HEAD)
    kept = store.load("ward-3", "fedper")
    assert kept is not None
    assert kept.round == 7
    assert kept.fields.keys() == HEAD.keys()
    for field, arrays in HEAD.items():
        assert sha256(kept.fields[field]) == sha256(arrays)
        assert {k: a.dtype for k, a in kept.fields[field].items()} == {k: a.dtype for k, a in arrays.items()}


def test_a_field_without_arrays_is_kept_too(store: StateStore) -> None:
    """A model without normalisation layers has an empty private part under FedBN."""
    store.save("a", "fedbn", 1, {"personal": {}, "head": HEAD["head"]})
    kept = store.load("a", "fedbn")
    assert kept is not None
    assert kept.fields.keys() == {"personal", "head"}
    assert kept.fields["personal"] == {}


def test_a_client_that_never_saved_has_nothing(store: StateStore) -> None:
    assert store.load("ward-3", "fedper") is None


def test_the_last_save_counts_and_clients_do_not_mix(store: StateStore) -> None:
    store.save("a", "fedper", 1, {"head": {"w": np.array([1.0])}})
    store.save("b", "fedper", 1, {"head": {"w": np.array([2.0])}})
    store.save("a", "fedper", 2, {"head": {"w": np.array([3.0])}})
    kept = [store.load(c, "fedper") for c in "ab"]
    assert [(k.round, k.fields["head"]["w"].tolist()) for k in kept if k] == [(2, [3.0]), (1, [2.0])]
    assert names_in(store) == {"a.safetensors", "b.safetensors"}  # no temporary file is left


def test_federations_do_not_mix(tmp_path: Path) -> None:
    StateStore(tmp_path, "one").save("a", "fedper", 1, HEAD)
    assert StateStore(tmp_path, "two").load("a", "fedper") is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def to_garbage(path: Path) -> None:
    path.write_bytes(b"\x00garbage" * 9)


def to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def meta_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="np") as file:
        return dict(json.loads(file.metadata()["bouquet"]))


def with_meta(change: Callable[[dict[str, Any]], dict[str, str] | None]) -> Callable[[Path], None]:
    """Rewrite the file with other metadata; its arrays stay."""

    def damage(path: Path) -> None:
        save_file(load_file(path), path, change(meta_of(path)))

    return damage


def without(key: str) -> Callable[[Path], None]:
    return with_meta(lambda meta: {"bouquet": json.dumps({k: v for k, v in meta.items() if k != key})})


def but(**keys: Any) -> Callable[[Path], None]:
    return with_meta(lambda meta: {"bouquet": json.dumps(meta | keys)})


DAMAGE = {
    "truncated": truncate,
    "garbage": to_garbage,
    "empty": to_nothing,
    "one bit": flip_a_bit,
    "no metadata": with_meta(lambda meta: None),
    "metadata that is no JSON": with_meta(lambda meta: {"bouquet": "{"}),
    "metadata that is a list": with_meta(lambda meta: {"bouquet": "[1]"}),
    **{f"metadata without {key}": without(key) for key in ("format", "xxh3", "client", "round", "fields")},
    "a round that is no number": but(round="x"),
    "another round": but(round=2),
    "another version before": but(previous=1),
    "another client under the checksum of this one": but(client="b"),
}


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_a_damaged_file_is_refused_by_name_and_kept_aside(kind: str, store: StateStore) -> None:
    store.save("a", "fedper", 1, HEAD)
    path = store.path("a")
    DAMAGE[kind](path)
    damaged = path.read_bytes()
    with pytest.raises(StateError, match="client a: kept state") as error:
        store.load("a", "fedper")
    assert str(path) in str(error.value)
    assert not path.exists()
    (aside,) = path.parent.glob("*.damaged")
    assert aside.read_bytes() == damaged
    assert aside.name in str(error.value)


def refused_untouched(store: StateStore, match: str, run: str = "") -> None:
    """Check that the store refuses the file of client a, for reading and for writing, and leaves it there."""
    path = store.path("a", run)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StateError, match=match) as error:
            store.load("a", "fedper", run)
        assert str(path) in str(error.value)
        with pytest.raises(StateError, match=match):
            store.save("a", "fedper", 9, HEAD, run)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_another_clients_file_is_refused_and_stays(store: StateStore) -> None:
    store.save("b", "fedper", 1, HEAD)
    store.path("b").rename(store.path("a"))
    refused_untouched(store, r"client a: .*expected fedper state of a; got fedper state of b")


def test_another_algorithms_file_is_refused_and_stays(store: StateStore) -> None:
    store.save("a", "moon", 1, HEAD)
    refused_untouched(store, r"client a: .*expected fedper state of a; got moon state of a")


def test_another_federations_file_is_refused_and_stays(store: StateStore) -> None:
    """It was copied there, or the ids of two runs begin alike."""
    first, second = "0123456789abc", "0123456789abd"
    store.save("a", "fedper", 1, HEAD, first)
    assert store.path("a", first) == store.path("a", second)
    refused_untouched(store, f"expected state of run '{second}'; got state of run '{first}'", second)
    assert store.load("a", "fedper", first) is not None


def test_a_newer_format_is_refused_and_stays(store: StateStore) -> None:
    store.save("a", "fedper", 1, HEAD)
    assert meta_of(store.path("a"))["format"] == 2
    save_file(load_file(store.path("a")), store.path("a"), {"bouquet": json.dumps({"format": 3})})
    refused_untouched(store, r"expected format 2; got format 3, of a newer Bouquet.* Update Bouquet")


def test_an_earlier_format_is_refused_and_stays(store: StateStore) -> None:
    store.save("a", "fedper", 1, HEAD)
    save_file(load_file(store.path("a")), store.path("a"), {"bouquet": json.dumps({"format": 1})})
    refused_untouched(store, r"expected format 2; got format 1, of an earlier Bouquet.* new run")


def test_a_damaged_file_is_not_overwritten_by_a_save(store: StateStore) -> None:
    store.save("a", "fedper", 1, HEAD)
    to_garbage(store.path("a"))
    with pytest.raises(StateError, match="expected a whole state file"):
        store.save("a", "fedper", 2, HEAD)
    assert names_in(store) == {"a.damaged"}


def test_no_flipped_bit_goes_unseen(store: StateStore) -> None:
    """Whichever byte of the file it is in: header, names, numbers or arrays."""
    store.save("a", "fedper", 1, HEAD, "r", 0)
    path = store.path("a", "r")
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ (1 << int(rng.integers(8)))]) + whole[i + 1 :])
        try:
            kept = store.load("a", "fedper", "r")
        except StateError:
            kept = None
        else:  # white space that became other white space
            assert kept is not None
            assert {f: sha256(a) for f, a in kept.fields.items()} == {f: sha256(a) for f, a in HEAD.items()}
            assert kept.round == 1
            assert whole[i : i + 1] == b" "
        for aside in path.parent.glob("*.damaged"):
            aside.unlink()


LIKE = {f: dict(arrays) for f, arrays in HEAD.items()}


def test_state_of_the_same_model_fits(store: StateStore) -> None:
    store.save("a", "fedper", 1, HEAD)
    zeros = {k: np.zeros_like(a) for k, a in HEAD["head"].items()}
    for like in (None, {}, LIKE, {"head": zeros}):  # its form counts, and only of the fields that are given
        assert store.load("a", "fedper", like=like) is not None


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (
            {"head": LIKE["head"] | {"2/weight": np.zeros((3, 2), np.float32)}},
            r"head/2/weight: expected float32 of shape \[3, 2\]; got float32 of shape \[1, 2\]",
        ),
        (
            {"ala": LIKE["ala"] | {"started": np.array(1, np.int32)}},
            r"ala/started: expected int32 of shape \[\]; got int64 of shape \[\]",
        ),
        (
            {"head": LIKE["head"] | {"3.bias": np.zeros(1)}},
            r"head/3.bias: expected float64 of shape \[1\]; got no such array",
        ),
        (
            {"head": {"2.bias": LIKE["head"]["2.bias"]}},
            r"head/2/weight: expected no such array; got float32 of shape \[1, 2\]",
        ),
        ({"body": LIKE["head"]}, r"body/2.bias: expected float32 of shape \[1\]; got no such array"),
    ],
)
def test_state_of_another_model_is_refused_and_stays(
    like: dict[str, Arrays], said: str, store: StateStore
) -> None:
    store.save("a", "fedper", 1, HEAD)
    with pytest.raises(StateError, match=said) as error:
        store.load("a", "fedper", like=like)
    assert str(store.path("a")) in str(error.value)
    assert names_in(store) == {"a.safetensors"}


def test_a_second_damaged_file_does_not_overwrite_the_first(store: StateStore) -> None:
    for text in (b"first", b"second"):
        store.path("a").parent.mkdir(parents=True, exist_ok=True)
        store.path("a").write_bytes(text)
        with pytest.raises(StateError):
            store.load("a", "fedper")
    assert sorted(p.read_bytes() for p in store.path("a").parent.iterdir()) == [b"first", b"second"]


NAMES = [
    "a", "A", "a/b", "a%2Fb", "a%252Fb", "a\\b", "..", ".", "...", ".a", "a.", "%2E", "ü", "u", "u\u0308",
    "client-1", "client-01", "ward 3", "a\nb", "a\x00b", "é5", "\u0e95", "Ȋ" + "C", "€", "日本", "x.damaged",
    "x", "x.safetensors", "-rf", "~", "C:x", "a" * 60,
]  # fmt: skip


def test_tricky_names_are_files_of_their_own_in_the_folder(store: StateStore) -> None:
    paths = {name: store.path(name) for name in NAMES}
    for name, path in paths.items():
        assert path.parent == store.path("a").parent, name
        assert path.resolve().parent == store.path("a").resolve().parent, name
    clashes = [(a, b) for a, b in itertools.combinations(NAMES, 2) if paths[a] == paths[b]]
    assert clashes == []
    assert safe_name("ward-3") == "ward-3"  # plain names stay readable


def test_tricky_names_are_saved_and_loaded(store: StateStore) -> None:
    for i, name in enumerate(NAMES):
        store.save(name, "fedper", i, {"head": {"w": np.array([float(i)])}})
    for i, name in enumerate(NAMES):
        kept = store.load(name, "fedper")
        assert kept is not None
        assert (kept.round, kept.fields["head"]["w"].tolist()) == (i, [float(i)]), name


def test_a_refused_client_stays_refused_until_somebody_mends_it(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "run")
    store.save("ward", "ditto", 3, {"model": {"w": np.ones(2)}})
    whole = store.path("ward").read_bytes()
    store.path("ward").write_bytes(whole[:40])
    for _ in range(3):
        with pytest.raises(StateError, match="ward"):
            store.load("ward", "ditto")
    store.path("ward").write_bytes(whole)
    kept = store.load("ward", "ditto")
    assert kept is not None
    assert kept.round == 3


def test_runs_of_one_name_neither_read_nor_overwrite_each_other(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "run")
    runs = {"first": 7, "second": 1, "": 4}
    for run, t in runs.items():
        assert store.load("ben", "fedper", run) is None
        store.save("ben", "fedper", t, {"head": {"w": np.full(2, float(t))}}, run)
    for run, t in runs.items():
        kept = store.load("ben", "fedper", run)
        assert kept is not None
        assert (kept.round, kept.fields["head"]["w"].tolist()) == (t, [float(t)] * 2)
    assert len({store.path("ben", run).parent for run in runs}) == 3


def test_the_folder_of_a_run_shows_its_name_and_id(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "wards")
    assert store.path("ben", "0123456789abcdef") == tmp_path / "wards" / "0123456789ab" / "ben.safetensors"


def test_a_client_called_like_a_damaged_file_does_not_refuse_another(store: StateStore) -> None:
    store.save("a.damaged", "fedper", 1, HEAD)
    assert store.load("a", "fedper") is None


# -------------------------------------------------------------------------------------- earlier versions


def saves(store: StateStore, *rounds: int, every: int = 1, run: str = "r") -> None:
    """Save in these rounds, as a run does whose checkpoints are `every` rounds apart."""
    for t in rounds:
        fields = {"head": {"w": np.array([float(t)])}}
        store.save("a", "fedper", t, fields, run, oldest_checkpoint(t, every))


def loaded(store: StateStore, before: int | None) -> float | None:
    """Return the round that a client's state is found to be of."""
    kept = store.load("a", "fedper", "r", before)
    if kept is None:
        return None
    assert kept.fields["head"]["w"].tolist() == [float(kept.round)]
    return kept.round


def version(store: StateStore, t: int) -> Path:
    return store.path("a", "r").with_name(f"a@{t}.safetensors")


def test_a_round_that_is_trained_again_begins_with_what_was_kept_before_it(store: StateStore) -> None:
    saves(store, 1, 2, 3)
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]
    assert loaded(store, None) == 3


def test_versions_that_no_resume_can_ask_for_are_deleted(store: StateStore) -> None:
    saves(store, *range(1, 8))
    assert names_in(store, "r") == {"a.safetensors", "a@6.safetensors", "a@5.safetensors"}


def test_of_a_client_that_takes_part_now_and_then_the_one_before_the_checkpoint_is_left(
    store: StateStore,
) -> None:
    saves(store, 2, 5, 17)  # a resume from 15 or 16 asks for round 5
    assert names_in(store, "r") == {"a.safetensors", "a@5.safetensors"}
    assert [loaded(store, t) for t in (18, 17, 16)] == [17, 5, 5]


def test_rare_checkpoints_keep_more(store: StateStore) -> None:
    saves(store, 1, 4, 6, 8, 9, every=5)
    assert names_in(store, "r") == {f"a{v}.safetensors" for v in ("", "@8", "@6", "@4")}
    assert loaded(store, 6) == 4  # resumed from the checkpoint of round 5
    saves(store, 6, every=5)
    assert names_in(store, "r") == {"a.safetensors", "a@4.safetensors"}  # 8, 9 never were
    assert loaded(store, 9) == 6


def test_saving_a_round_again_replaces_it(store: StateStore) -> None:
    saves(store, 1, 2)
    store.save("a", "fedper", 2, {"head": {"w": np.array([7.0])}}, "r", 0)
    kept = store.load("a", "fedper", "r")
    assert kept is not None
    assert kept.fields["head"]["w"].tolist() == [7.0]
    assert loaded(store, 2) == 1


def test_a_client_is_new_before_its_first_round(store: StateStore) -> None:
    saves(store, 4, 5)
    assert loaded(store, 4) is None


def test_a_run_that_begins_again_without_a_checkpoint_finds_nothing(store: StateStore) -> None:
    saves(store, *range(1, 8), every=10**9)
    for t in (1, 2, 3):
        version(store, t).unlink(missing_ok=True)
    assert loaded(store, 1) is None
    saves(store, 1, 2)
    assert [loaded(store, t) for t in (3, 2, 1)] == [2, 1, None]


def test_a_version_that_is_gone_is_refused_and_not_taken_for_a_new_client(store: StateStore) -> None:
    saves(store, *range(1, 8))
    said = r"client a: .* from before round 5; got one of round 5, made from one of"
    with pytest.raises(StateError, match=said):
        loaded(store, 5)
    assert loaded(store, 6) == 5  # nothing was moved


def test_a_damaged_version_is_refused(store: StateStore) -> None:
    saves(store, 1, 2, 3)
    flip_a_bit(version(store, 2))
    with pytest.raises(StateError, match="checksum"):
        loaded(store, 3)
    with pytest.raises(StateError, match="that is not there"):
        loaded(store, 3)
    assert loaded(store, 4) == 3


def test_versions_before_a_damaged_one_stay_until_it_is_mended(store: StateStore) -> None:
    saves(store, 4, 6, 7, 8, every=5)
    whole = version(store, 7).read_bytes()
    flip_a_bit(version(store, 7))
    with pytest.raises(StateError, match="checksum"):
        loaded(store, 8)
    saves(store, 9, every=5)
    with pytest.raises(StateError, match=r"made from one of round 7 .* put a@7.safetensors back"):
        loaded(store, 8)
    version(store, 7).write_bytes(whole)
    assert [loaded(store, t) for t in (10, 9, 8, 7, 6)] == [9, 8, 7, 6, 4]


def test_a_version_of_another_round_is_refused_and_stays(store: StateStore) -> None:
    """Somebody put the wrong backup there."""
    saves(store, 1, 2, 3)
    version(store, 2).write_bytes(store.path("a", "r").read_bytes())
    with pytest.raises(StateError, match="expected a version of round 2; got a version of round 3"):
        loaded(store, 3)
    assert loaded(store, 4) == 3
    saves(store, 4)
    assert loaded(store, 5) == 4
    assert version(store, 2).exists()


def test_versions_of_an_abandoned_course_that_a_crash_left_do_not_count(store: StateStore) -> None:
    saves(store, 1, 4, 6, 8, every=5)
    left = {t: version(store, t).read_bytes() for t in (4, 6)} | {8: store.path("a", "r").read_bytes()}
    store.save("a", "fedper", 6, {"head": {"w": np.array([6.5])}}, "r", oldest_checkpoint(6, 5))
    for t, content in left.items():  # the save was killed before it deleted them
        version(store, t).write_bytes(content)
    saves(store, 9, every=5)
    kept = store.load("a", "fedper", "r", 9)
    assert kept is not None
    assert kept.fields["head"]["w"].tolist() == [6.5]
    assert loaded(store, 6) == 4
    assert names_in(store, "r") == {f"a{v}.safetensors" for v in ("", "@6", "@4")}


def test_versions_of_another_run_are_not_this_ones(store: StateStore) -> None:
    saves(store, 1, 2, 3)
    saves(store, 1, run="second")
    assert names_in(store, "second") == {"a.safetensors"}
    assert store.load("a", "fedper", "second", 1) is None
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]


def test_versions_of_clients_whose_names_look_alike_do_not_mix(store: StateStore) -> None:
    for name in ("a", "a@1", "a@", "a%401"):
        for t in (1, 2):
            store.save(name, "fedper", t, {"head": {"w": np.array([float(len(name) * t)])}}, "r", 0)
    for name in ("a", "a@1", "a@", "a%401"):
        kept = store.load(name, "fedper", "r", 2)
        assert kept is not None
        assert kept.fields["head"]["w"].tolist() == [float(len(name))]


def test_what_was_kept_in_rounds_that_the_server_went_back_from_does_not_count(store: StateStore) -> None:
    """The server went back from rounds 3 and 4; a version of them is never loaded, nor made from, again."""

    def save(t: int, void: tuple[int, ...] = ()) -> None:
        fields = {"head": {"w": np.array([float(t)])}}
        store.save("a", "fedper", t, fields, "r", oldest_checkpoint(t, 1), void)

    def load(before: int, void: tuple[int, ...] = (3, 4)) -> int:
        found = store.load("a", "fedper", "r", before, void=void)
        assert found is not None
        return found.round

    for t in (1, 2, 3, 4):
        save(t)
    assert load(5, ()) == 4
    assert load(5) == load(7) == 2
    save(6, (3, 4))
    assert load(7) == 6
    assert load(6) == 2  # of a run that is resumed from the end of round 4 or 5
    assert load(5, ()) == 4  # of one whose last checkpoint is older than going back
    save(7, (3, 4))
    save(8, (3, 4))
    assert load(9) == 8
    assert names_in(store, "r") == {f"a{v}.safetensors" for v in ("", "@7", "@6")}
