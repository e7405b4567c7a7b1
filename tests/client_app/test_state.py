"""The store of kept state: whole or refused, and never somebody else's."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from client_app.state import StateStore, oldest_resumable, safe_name
from task.arrays import Arrays, sha256
from task.errors import StateError

HEAD: dict[str, Arrays] = {
    "head": {"2/weight": np.array([[1.5, -0.0]], np.float32), "2.bias": np.array([1e-45], np.float32)},
    "ala": {"weights": np.array(0.25), "started": np.array(1, np.int64)},
}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "state", "wards")


def test_what_is_saved_is_loaded_with_its_bits(store: StateStore) -> None:
    store.save("ward-3", "fedper", 7, HEAD)
    kept = store.load("ward-3", "fedper")
    assert kept is not None
    assert kept.round == 7
    assert kept.fields.keys() == HEAD.keys()
    for field, arrays in HEAD.items():
        assert sha256(kept.fields[field]) == sha256(arrays)
        assert {k: a.dtype for k, a in kept.fields[field].items()} == {k: a.dtype for k, a in arrays.items()}


def test_a_client_that_never_saved_has_nothing(store: StateStore) -> None:
    assert store.load("ward-3", "fedper") is None


def test_the_last_save_counts_and_clients_do_not_mix(store: StateStore) -> None:
    store.save("a", "fedper", 1, {"head": {"w": np.array([1.0])}})
    store.save("b", "fedper", 1, {"head": {"w": np.array([2.0])}})
    store.save("a", "fedper", 2, {"head": {"w": np.array([3.0])}})
    kept = [store.load(c, "fedper") for c in "ab"]
    assert [(k.round, k.fields["head"]["w"].tolist()) for k in kept if k] == [(2, [3.0]), (1, [2.0])]
    assert len(list(store.folder.iterdir())) == 2  # no temporary file is left


def test_federations_do_not_mix(tmp_path: Path) -> None:
    StateStore(tmp_path, "one").save("a", "fedper", 1, HEAD)
    assert StateStore(tmp_path, "two").load("a", "fedper") is None


@pytest.mark.parametrize("where", ["safetensors", "rename"])
def test_a_crash_in_the_middle_of_a_save_leaves_the_old_state(
    where: str, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save("a", "fedper", 1, HEAD)
    before = store.path("a").read_bytes()

    def torn(tensors: Any, path: Path, metadata: Any) -> None:
        Path(path).write_bytes(b"half of it")
        raise OSError("no space left on device")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    if where == "safetensors":
        monkeypatch.setattr("task.files.save_file", torn)
    else:
        monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises((OSError, KeyboardInterrupt)):
        store.save("a", "fedper", 2, {"head": {"w": np.array([3.0])}})
    monkeypatch.undo()
    assert store.path("a").read_bytes() == before
    assert [p.name for p in store.folder.iterdir()] == ["a.safetensors"]
    kept = store.load("a", "fedper")
    assert kept is not None
    assert kept.round == 1


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


def with_meta(meta: Any) -> Any:
    """Rewrite the file with other metadata; its arrays stay."""

    def damage(path: Path) -> None:
        arrays = load_file(path)
        header = meta(sha256(arrays))
        save_file(arrays, path, header)

    return damage


DAMAGE = {
    "truncated": truncate,
    "garbage": to_garbage,
    "empty": to_nothing,
    "one bit": flip_a_bit,
    "no metadata": with_meta(lambda digest: None),
    "metadata that is no JSON": with_meta(lambda digest: {"bouquet": "{"}),
    "metadata that is a list": with_meta(lambda digest: {"bouquet": "[1]"}),
    "metadata without a checksum": with_meta(
        lambda digest: {"bouquet": json.dumps({"client": "a", "algorithm": "fedper", "round": 1})}
    ),
    "metadata without a client": with_meta(
        lambda digest: {"bouquet": json.dumps({"algorithm": "fedper", "round": 1, "sha256": digest})}
    ),
    "a round that is no number": with_meta(
        lambda digest: {
            "bouquet": json.dumps({"client": "a", "algorithm": "fedper", "round": "x", "sha256": digest})
        }
    ),
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


def test_another_clients_file_is_refused(store: StateStore) -> None:
    store.save("b", "fedper", 1, HEAD)
    store.path("b").rename(store.path("a"))
    with pytest.raises(StateError, match=r"client a: .*expected fedper state of a; got fedper state of b"):
        store.load("a", "fedper")
    assert [p.name for p in store.folder.iterdir()] == ["a.damaged"]


def test_another_algorithms_file_is_refused(store: StateStore) -> None:
    store.save("a", "moon", 1, HEAD)
    with pytest.raises(StateError, match=r"client a: .*expected fedper state of a; got moon state of a"):
        store.load("a", "fedper")
    assert [p.name for p in store.folder.iterdir()] == ["a.damaged"]


def test_a_second_damaged_file_does_not_overwrite_the_first(store: StateStore) -> None:
    for text in (b"first", b"second"):
        store.folder.mkdir(parents=True, exist_ok=True)
        store.path("a").write_bytes(text)
        with pytest.raises(StateError):
            store.load("a", "fedper")
    assert sorted(p.read_bytes() for p in store.folder.iterdir()) == [b"first", b"second"]


NAMES = [
    "a", "A", "a/b", "a%2Fb", "a%252Fb", "a\\b", "..", ".", "...", ".a", "a.", "%2E", "ü", "u", "u\u0308",
    "client-1", "client-01", "ward 3", "a\nb", "a\x00b", "é5", "\u0e95", "Ȋ" + "C", "€", "日本", "x.damaged",
    "x", "x.safetensors", "-rf", "~", "C:x", "a" * 60,
]  # fmt: skip


def test_tricky_names_are_files_of_their_own_in_the_folder(store: StateStore) -> None:
    paths = {name: store.path(name) for name in NAMES}
    for name, path in paths.items():
        assert path.parent == store.folder, name
        assert path.resolve().parent == store.folder.resolve(), name
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


def test_what_another_run_of_the_name_kept_is_not_this_ones(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "run")
    store.save("ben", "fedper", 7, {"head": {"w": np.ones(2, np.float32)}}, "first")
    again = store.load("ben", "fedper", "first")
    assert again is not None
    assert again.round == 7
    assert store.load("ben", "fedper", "second") is None
    assert store.path("ben").exists()  # until the second run saves its own
    store.save("ben", "fedper", 1, {"head": {"w": np.zeros(2, np.float32)}}, "second")
    assert store.load("ben", "fedper", "first") is None


# -------------------------------------------------------------------------------------- earlier versions


def saves(store: StateStore, *rounds: int, every: int = 1, run: str = "r") -> None:
    """Save in these rounds, as a run does whose checkpoints are `every` rounds apart."""
    for t in rounds:
        fields = {"head": {"w": np.array([float(t)])}}
        store.save("a", "fedper", t, fields, run, oldest_resumable(t, every))


def loaded(store: StateStore, before: int | None) -> float | None:
    """Return the round that a client's state is found to be of."""
    kept = store.load("a", "fedper", "r", before)
    if kept is None:
        return None
    assert kept.fields["head"]["w"].tolist() == [float(kept.round)]
    return kept.round


def names_in(store: StateStore) -> set[str]:
    return {p.name for p in store.folder.iterdir()}


@pytest.mark.parametrize(
    ("server_round", "every", "wanted"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1), (9, 1, 7), (9, 5, 5), (6, 5, 0), (7, 5, 5), (12, 5, 10), (9, 0, 7)],
)
def test_the_oldest_round_to_resume_from(server_round: int, every: int, wanted: int) -> None:
    """The checkpoint of the round before may not be there yet, that of two rounds before is if it is due."""
    assert oldest_resumable(server_round, every) == wanted


def test_a_round_that_is_trained_again_begins_with_what_was_kept_before_it(store: StateStore) -> None:
    saves(store, 1, 2, 3)
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]
    assert loaded(store, None) == 3


def test_versions_that_no_resume_can_ask_for_are_deleted(store: StateStore) -> None:
    saves(store, *range(1, 8))
    assert names_in(store) == {"a.safetensors", "a@6.safetensors", "a@5.safetensors"}


def test_of_a_client_that_takes_part_now_and_then_the_one_before_the_checkpoint_is_left(
    store: StateStore,
) -> None:
    saves(store, 2, 5, 17)  # a resume from 15 or 16 asks for round 5
    assert names_in(store) == {"a.safetensors", "a@5.safetensors"}
    assert [loaded(store, t) for t in (18, 17, 16)] == [17, 5, 5]


def test_rare_checkpoints_keep_more(store: StateStore) -> None:
    saves(store, 1, 4, 6, 8, 9, every=5)
    assert names_in(store) == {f"a{v}.safetensors" for v in ("", "@8", "@6", "@4")}
    assert loaded(store, 6) == 4  # resumed from the checkpoint of round 5
    saves(store, 6, every=5)
    assert names_in(store) == {"a.safetensors", "a@4.safetensors"}  # 8 and 9 are of rounds that never were
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


def test_a_version_that_is_gone_is_refused_and_not_taken_for_a_new_client(store: StateStore) -> None:
    saves(store, *range(1, 8))
    said = r"client a: .* from before round 5; got one of round 5, made from one of"
    with pytest.raises(StateError, match=said):
        loaded(store, 5)
    assert loaded(store, 6) == 5  # nothing was moved


def test_a_damaged_version_is_refused(store: StateStore) -> None:
    saves(store, 1, 2, 3)
    flip_a_bit(store.folder / "a@2.safetensors")
    with pytest.raises(StateError, match="checksum"):
        loaded(store, 3)
    with pytest.raises(StateError, match="that is not there"):
        loaded(store, 3)
    assert loaded(store, 4) == 3


def test_versions_of_another_run_are_not_this_ones(store: StateStore) -> None:
    saves(store, 1, 2, 3)
    saves(store, 1, run="second")
    assert names_in(store) == {"a.safetensors"}
    assert store.load("a", "fedper", "second", 1) is None


def test_without_hard_links_versions_are_copied(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise OSError("operation not supported")

    monkeypatch.setattr("os.link", refused)
    saves(store, 1, 2, 3)
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]
    assert names_in(store) == {"a.safetensors", "a@2.safetensors", "a@1.safetensors"}


def test_a_crash_in_a_save_leaves_all_versions(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    saves(store, 1, 2)

    def torn(tensors: Any, path: Path, metadata: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("task.files.save_file", torn)
    with pytest.raises(OSError, match="no space"):
        saves(store, 3)
    monkeypatch.undo()
    assert [loaded(store, t) for t in (3, 2)] == [2, 1]
    assert names_in(store) == {"a.safetensors", "a@1.safetensors"}
    os.link(store.path("a"), store.folder / "a@2.safetensors")  # a crash that ran no handler
    saves(store, 3)
    assert [loaded(store, t) for t in (4, 3, 2)] == [3, 2, 1]


def test_versions_of_clients_whose_names_look_alike_do_not_mix(store: StateStore) -> None:
    for name in ("a", "a@1", "a@", "a%401"):
        for t in (1, 2):
            store.save(name, "fedper", t, {"head": {"w": np.array([float(len(name) * t)])}}, "r", 0)
    for name in ("a", "a@1", "a@", "a%401"):
        kept = store.load(name, "fedper", "r", 2)
        assert kept is not None
        assert kept.fields["head"]["w"].tolist() == [float(len(name))]
