"""Files are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from task.storage.durable_lines import DurableLines
from task.storage.files import (
    MOST_UNFREED,
    building,
    free,
    freeing_later,
    replacing,
    synced,
    write_bytes,
    write_json,
    write_safetensors,
    write_text,
)


def test_text_json_and_arrays_are_written_into_new_folders(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        write_text(folder / "t.txt", "grüße\n")
    finally:
        os.umask(before)
    write_json(folder / "j.json", {"x": [1, 2.5]})
    write_safetensors(folder / "s.safetensors", {"w": np.arange(3.0)}, {"note": "n"})
    assert (folder / "t.txt").read_text("utf-8") == "grüße\n"
    assert json.loads((folder / "j.json").read_text()) == {"x": [1, 2.5]}
    assert load_file(folder / "s.safetensors")["w"].tolist() == [0.0, 1.0, 2.0]
    assert len(list(folder.iterdir())) == 3
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent)} == {0o700}


def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")

    def half_way() -> None:
        with replacing(path) as temp:
            temp.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_no_new_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "f"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_readers_see_the_old_file_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_text(path, "old")
    with replacing(path) as temp:
        temp.write_text("new")
        assert path.read_text() == "old"
        assert temp.parent.parent == path.parent  # a rename must not cross file systems
    assert path.read_text() == "new"


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.replace

    def spy_fsync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        steps.append(f"sync {kind}")
        fsync(handle)

    def spy_rename(source: Any, target: Any) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_rename)
    write_text(tmp_path / "f", "x")
    write_safetensors(tmp_path / "g", {"w": np.arange(3.0)})
    of_g = [s for s in steps[3:] if s != "rename"], steps[-2]  # safetensors renames a file of its own, too
    assert (steps[:3], of_g) == (
        ["sync file", "rename", "sync folder"],
        (["sync file", "sync folder"], "rename"),
    )
    del steps[:]
    write_bytes(tmp_path / "f", b"y", durable=False)
    assert steps == ["rename"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_json_that_is_none_leaves_the_old_file(value: Any, tmp_path: Path) -> None:
    write_json(tmp_path / "j", {"x": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "j", {"x": value})
    assert json.loads((tmp_path / "j").read_text()) == {"x": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_equal_arrays_give_equal_bytes_in_any_order_and_layout(tmp_path: Path) -> None:
    a, b = np.arange(12.0).reshape(3, 4), np.array(3, np.int64)
    write_safetensors(tmp_path / "1", {"a": a, "b": b}, {"k": "v"})
    write_safetensors(tmp_path / "2", {"b": b, "a": np.asfortranarray(a)}, {"k": "v"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert load_file(tmp_path / "2")["a"].tolist() == a.tolist()
    assert load_file(tmp_path / "2")["b"].shape == ()


def test_two_writers_do_not_meet_in_one_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with replacing(path) as one, replacing(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"  # the outer block ends last


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    folder, mask = tmp_path / "new" / "a", os.umask(0)
    try:
        with building(folder) as temp, synced(temp / "f") as file:
            file.write(b"x")
            assert not folder.exists()
    finally:
        os.umask(mask)
    assert (folder / "f").read_bytes() == b"x"
    assert stat.S_IMODE((folder / "f").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_whose_block_fails_leaves_nothing(tmp_path: Path) -> None:
    def half_way() -> None:
        with building(tmp_path / "a", ".making-") as temp:
            write_text(temp / "f", "half")
            assert temp.name.startswith(".making-")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_way()
    assert list(tmp_path.iterdir()) == []


def test_of_two_who_build_a_folder_the_first_wins(tmp_path: Path) -> None:
    def second() -> None:
        with building(tmp_path / "a"), building(tmp_path / "a") as first:  # the inner block ends first
            write_text(first / "f", "first")

    with pytest.raises(OSError, match="not empty"):
        second()
    assert (tmp_path / "a" / "f").read_text() == "first"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    write_text(tmp_path / "f", "old")
    with pytest.raises(FileExistsError), synced(tmp_path / "f"):
        pass
    assert (tmp_path / "f").read_text() == "old"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_text(path, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
def test_a_file_is_gone_at_once_and_its_blocks_are_freed_by_whoever_has_time(tmp_path: Path) -> None:
    def is_open(number: int) -> bool:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the listing itself
                found.add(os.readlink(f"/proc/self/fd/{name}"))
        return f"{tmp_path / str(number)} (deleted)" in found

    free()
    for i in range(MOST_UNFREED + 2):
        path = tmp_path / str(i)
        write_text(path, "x")
        with freeing_later(path, wait=i == 1):
            path.unlink()
        assert not path.exists()
    # All but one that was waited for, and the first, since no more than so many stay open.
    assert [is_open(i) for i in range(4)] == [False, False, True, True]
    free()
    assert not is_open(3)
    with freeing_later(tmp_path / "none"):
        pass


def test_a_file_is_replaced_by_another_one_and_freed_later(tmp_path: Path) -> None:
    write_text(tmp_path / "f", "old")
    write_text(tmp_path / "g", "new")
    with freeing_later(tmp_path / "f"):
        os.replace(tmp_path / "g", tmp_path / "f")
    free()
    assert (tmp_path / "f").read_text() == "new"


@pytest.mark.parametrize(
    "err", [OSError(errno.ENOSPC, "No space left"), OSError("9 requested and 2 written")]
)
def test_a_full_disk_names_the_file(err: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise err

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "it.bin"
    for write in (lambda: write_bytes(path, b"x"), lambda: DurableLines(path).append({"a": 1})):
        with pytest.raises(OSError, match=r"it\.bin") as caught:
            write()
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    for block in (replacing, building, lambda it: synced(tmp_path / "other.bin")):
        with pytest.raises(OSError, match=r"it\.bin|other\.bin") as caught, block(path):
            raise err
        assert caught.value.errno == errno.ENOSPC
