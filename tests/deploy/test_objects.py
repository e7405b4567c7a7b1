"""Trees of objects in few statements: the same tables as Flower's own store leaves."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import text

from server_app.deploy.flower import objects
from server_app.deploy.flower.objects import register, remove

# Flower's way to set up its database is deprecated by the library that does it.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TABLES = ("objects", "object_children", "run_objects")


def stores(folder: Path) -> tuple[SqlObjectStore, SqlObjectStore]:
    """Return two stores: for ours and for Flower's own methods."""
    made = []
    for name in ("ours", "theirs"):
        store = SqlObjectStore(str(folder / name), verify=False)
        store.initialize()
        made.append(store)
    return made[0], made[1]


def tables(store: SqlObjectStore) -> dict[str, list[Any]]:
    with store.session() as session:
        return {t: sorted(map(tuple, session.execute(text(f"SELECT * FROM {t}")))) for t in TABLES}


def name(number: int) -> str:
    return f"{number:064x}"


def tree(number: int, *children: ObjectTree) -> ObjectTree:
    return ObjectTree(object_id=name(number), children=children)


def some_tree(random: Random, levels: int) -> ObjectTree:
    """Return a tree that shares its lower parts with others; what is below one follows from its name."""
    number = levels * 100 + random.randrange(4)
    within = Random(number)
    numbers = {within.randrange(6) for _ in range(3)} if levels else set()
    return tree(number, *(some_tree(Random(i), levels - 1) for i in sorted(numbers)))


def unique(root: ObjectTree) -> ObjectTree:
    """Return the tree with each child once."""
    children = {c.object_id: unique(c) for c in root.children}
    return ObjectTree(object_id=root.object_id, children=children.values())


@pytest.mark.parametrize("seed", range(6))
def test_it_leaves_what_flower_leaves(tmp_path: Path, seed: int) -> None:
    ours, theirs = stores(tmp_path)
    random, roots = Random(seed), list[str]()
    for step in range(40):
        what = random.randrange(4)
        if what < 2 or not roots:
            root = unique(some_tree(random, random.randrange(4)))
            run = random.randrange(2) + (1 << 63)
            assert set(register(ours, run, root) or []) == set(theirs.preregister(run, root))
            roots.append(root.object_id)
        elif what == 2:
            here = roots[step % len(roots)]
            for store in (ours, theirs) if here in theirs else ():
                store.put(here, b"content")
        else:
            gone = random.choice(roots)
            before = {i for (i, *_) in tables(theirs)["objects"]}
            theirs.delete(gone)
            assert set(remove(ours, [gone])) == before - {i for (i, *_) in tables(theirs)["objects"]}
        assert tables(ours) == tables(theirs)
    assert any(tables(ours).values())


def test_it_does_so_whatever_the_number_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = stores(tmp_path)
    wide = tree(1000, *(tree(i, tree(500)) for i in range(20)))
    missing = register(ours, 1, wide)
    assert missing is not None
    assert set(missing) == set(theirs.preregister(1, wide))
    assert tables(ours) == tables(theirs)
    monkeypatch.setattr(objects, "MOST_OBJECTS", 3)
    assert register(ours, 1, wide) is None  # left to Flower's own
    assert len(remove(ours, [name(1000)])) == 22
    assert not any(tables(ours).values())


@pytest.mark.parametrize(
    "wrong",
    [tree(1, tree(2), tree(2)), ObjectTree(object_id="../x"), tree(7, tree(9))],
    ids=["twice", "no hash", "other children"],
)
def test_what_is_not_as_it_must_be_is_left_to_flower(tmp_path: Path, wrong: ObjectTree) -> None:
    ours, theirs = stores(tmp_path)
    for store in (ours, theirs):
        store.preregister(1, tree(7, tree(8)))
    assert register(ours, 1, wrong) is None
    assert tables(ours) == tables(theirs)
    with pytest.raises(ValueError, match=r"children|Invalid"):
        theirs.preregister(1, wrong)
