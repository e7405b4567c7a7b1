"""Checkpoints: whole or refused, and never changed by being read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from server_app.run.checkpoint import Checkpoint
from strategies.engine.journal import Snapshot
from strategies.rules.fedprox import FedProxState
from task.errors import StateError
from task.numerics.arrays import sha256


def snapshot(server_round: int, value: float = 1.5) -> Snapshot:
    arrays = {"w": np.array([value, -0.0], np.float32), "seen": np.array(2**53 + 1, np.int64)}
    return Snapshot.of(server_round, FedProxState(arrays, mu=0.1 + 0.2, falls=3))


def saved(folder: Path, server_round: int = 4, value: float = 1.5) -> Checkpoint:
    checkpoint = Checkpoint(folder)
    taken = snapshot(server_round, value)
    checkpoint.commit(taken, checkpoint.write_arrays(taken), {"offsets": {"rounds": 10, "clients": 0}})
    return checkpoint


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_what_is_committed_is_read_with_its_bits(tmp_path: Path) -> None:
    found = saved(tmp_path).read()
    assert found is not None
    taken, extra = found
    assert taken.round == 4
    assert sha256(taken.arrays) == sha256(snapshot(4).arrays)
    assert taken.numbers == {"mu": 0.1 + 0.2, "previous_loss": float("inf"), "falls": 3}
    assert {k: type(v) for k, v in taken.numbers.items()} == {
        "mu": float,
        "previous_loss": float,
        "falls": int,
    }
    assert extra == {"offsets": {"rounds": 10, "clients": 0}}


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "nothing").read() is None


@pytest.mark.parametrize(
    "number",
    [True, False, 0, -3, 2**70, 1e-300, -0.0, 0.1, float("inf"), float("nan"), np.float64(0.1), np.int64(7)],
    ids=repr,
)
def test_every_kind_of_number_comes_back(number: float, tmp_path: Path) -> None:
    """A rule computes with NumPy, so its numbers may be NumPy's (a float64 is a float)."""
    checkpoint, taken = Checkpoint(tmp_path), Snapshot(1, {}, {"x": number})
    checkpoint.commit(taken, checkpoint.write_arrays(taken), {})
    found = checkpoint.read()
    assert found is not None
    got = found[0].numbers["x"]
    assert repr(got) == repr(number.item() if isinstance(number, np.generic) else number)


def test_only_the_last_checkpoint_is_kept(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    (tmp_path / "best.safetensors").write_bytes(b"the best model")
    saved(tmp_path, 5)
    assert set(contents(tmp_path)) == {"latest.json", "round-5.safetensors", "best.safetensors"}


def test_arrays_alone_do_not_count(tmp_path: Path) -> None:
    """A crash between `write_arrays` and `commit` leaves the checkpoint before."""
    checkpoint = saved(tmp_path, 4)
    checkpoint.write_arrays(snapshot(5, value=9.0))
    found = Checkpoint(tmp_path).read()
    assert found is not None
    assert found[0].round == 4
    assert found[0].arrays["arrays/w"].tolist() == [1.5, 0.0]


def test_a_crash_while_committing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = saved(tmp_path, 4)
    path = checkpoint.write_arrays(snapshot(5, value=9.0))

    def killed(temp: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.commit(snapshot(5, value=9.0), path, {})
    monkeypatch.undo()
    found = Checkpoint(tmp_path).read()
    assert found is not None
    assert found[0].round == 4


def test_a_crash_while_the_old_one_is_deleted_leaves_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = saved(tmp_path, 4)
    path = checkpoint.write_arrays(snapshot(5, value=9.0))
    unlink = Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith("round-"):
            raise KeyboardInterrupt
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.commit(snapshot(5, value=9.0), path, {})
    monkeypatch.undo()
    found = Checkpoint(tmp_path).read()
    assert found is not None
    assert (found[0].round, found[0].arrays["arrays/w"][0]) == (5, 9.0)
    saved(tmp_path, 6)
    assert set(contents(tmp_path)) == {"latest.json", "round-6.safetensors"}  # the leftover goes too


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = folder / "latest.json"
    meta = json.loads(path.read_text())
    new = change(meta)
    path.write_text(json.dumps(meta if new is None else new))


ARRAYS = "round-4.safetensors"
DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "truncated arrays": (ARRAYS, lambda f: (f / ARRAYS).write_bytes((f / ARRAYS).read_bytes()[:-3])),
    "empty arrays": (ARRAYS, lambda f: (f / ARRAYS).write_bytes(b"")),
    "garbage arrays": (ARRAYS, lambda f: (f / ARRAYS).write_bytes(b"\x00garbage" * 20)),
    "another round's arrays": (
        ARRAYS,
        lambda f: Checkpoint(f).write_arrays(snapshot(9, 2.0)).replace(f / ARRAYS),
    ),
    "no arrays": (ARRAYS, lambda f: (f / ARRAYS).unlink()),
    "garbage json": ("latest.json", lambda f: (f / "latest.json").write_text('{"round": 4,')),
    "binary json": ("latest.json", lambda f: (f / "latest.json").write_bytes(b"\xff\xfe\x00")),
    "empty json": ("latest.json", lambda f: (f / "latest.json").write_text("")),
    "a list": ("latest.json", lambda f: edit(f, lambda meta: [1])),
    "no file name": ("latest.json", lambda f: edit(f, lambda meta: meta.pop("file") and None)),
    "a wrong checksum": (ARRAYS, lambda f: edit(f, lambda meta: meta.update(xxh3="0" * 32))),
    "no checksum": (ARRAYS, lambda f: edit(f, lambda meta: meta.pop("xxh3") and None)),
    "a number in words": (ARRAYS, lambda f: edit(f, lambda meta: meta.update(numbers={"mu": "ten"}))),
    "no round": (ARRAYS, lambda f: edit(f, lambda meta: meta.update(round=None))),
}


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_a_damaged_checkpoint_is_refused_with_its_path_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    saved(tmp_path)
    where, damage = DAMAGE[kind]
    damage(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StateError, match=r"expected .*; got .*Nothing was changed") as error:
        Checkpoint(tmp_path).read()
    assert str(error.value).startswith(str(tmp_path / where))
    assert contents(tmp_path) == before


def test_the_checksum_of_an_older_version_is_read(tmp_path: Path) -> None:
    saved(tmp_path)
    kept = Checkpoint(tmp_path).read()
    assert kept is not None
    right = sha256(kept[0].arrays)
    edit(tmp_path, lambda meta: {k: v for k, v in meta.items() if k != "xxh3"} | {"sha256": right})
    again = Checkpoint(tmp_path).read()
    assert again is not None
    assert sha256(again[0].arrays) == right
    edit(tmp_path, lambda meta: meta.update(sha256="0" * 64))
    with pytest.raises(StateError, match="checksum"):
        Checkpoint(tmp_path).read()


def test_a_round_is_written_once(tmp_path: Path) -> None:
    """A run commits the state of its last round again as it ends, with the lengths of then."""
    checkpoint, last = Checkpoint(tmp_path), snapshot(4)
    for lengths in (1, 2):
        checkpoint.commit(last, checkpoint.write_arrays(last), {"offsets": lengths})
        changed = (tmp_path / ARRAYS).stat().st_mtime_ns
        if lengths == 1:
            first = changed
    assert changed == first
    found = Checkpoint(tmp_path).read()
    assert found is not None
    assert found[1] == {"offsets": 2}


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / ARRAYS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StateError, match="checksum"):
        Checkpoint(tmp_path).read()


@pytest.mark.skipif(os.name != "posix", reason="a file that is in use is not deleted elsewhere")
def test_a_state_lies_in_the_file_of_its_checkpoint_also_when_that_is_deleted(tmp_path: Path) -> None:
    checkpoint, taken = saved(tmp_path), snapshot(4)
    found = checkpoint.mapped(4, taken.arrays)
    assert found is not None
    for path in tmp_path.iterdir():
        path.unlink()
    assert sha256(found) == sha256(taken.arrays)
    assert not any(a.flags.owndata or a.flags.writeable for a in found.values())
    assert checkpoint.mapped(3, taken.arrays) is None
