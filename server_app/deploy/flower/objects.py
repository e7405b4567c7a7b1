"""Trees of objects, registered and deleted in a few statements; Flower's store takes five for each object."""

import re
from collections import Counter, defaultdict
from typing import Any

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.objectstore_models import ObjectChild, RunObject, StoredObject
from flwr.supercore.utils import uint64_to_int64
from sqlalchemy import delete, insert, select, update

MOST_OBJECTS = 10_000  # at once; a statement has at most 32,766 values
NAME = re.compile("[0-9a-f]{64}")


def register(store: SqlObjectStore, run_id: int, tree: ObjectTree) -> list[str] | None:
    """Register a tree as `SqlObjectStore.preregister` does; return what is missing.

    None: nothing was done, as the tree is large or not as it must be. Flower's own says what is wrong.
    """
    children = {node.object_id: [c.object_id for c in node.children] for node in iterate_object_tree(tree)}
    if len(children) > MOST_OBJECTS or not all(map(NAME.fullmatch, children)):
        return None
    if any(len(set(names)) < len(names) for names in children.values()):
        return None
    with store._mutation_session() as session:
        known = select(StoredObject.object_id, StoredObject.is_available)
        rows: Any = session.execute(known.where(StoredObject.object_id.in_(children)))
        here: dict[str, int] = dict(rows.all())
        listed: dict[str | None, set[str | None]] = defaultdict(set)
        if here:
            pairs = select(ObjectChild.parent_id, ObjectChild.child_id)
            for parent, child in session.execute(pairs.where(ObjectChild.parent_id.in_(here))):
                listed[parent].add(child)
        if any(listed[i] != set(children[i]) for i in here):
            return None
        new = [i for i in children if i not in here]
        links = [{"parent_id": i, "child_id": child} for i in new for child in children[i]]
        if new:
            blank: dict[str, Any] = {"content": b"", "is_available": 0, "ref_count": 0}
            session.execute(insert(StoredObject), [blank | {"object_id": i} for i in new])
        if links:
            session.execute(insert(ObjectChild), links)
        _count(session, Counter(link["child_id"] for link in links), 1)
        of_run = [{"run_id": uint64_to_int64(run_id), "object_id": i} for i in children]
        run_objects: Any = store.dialect_insert(RunObject).values(of_run)
        session.execute(run_objects.on_conflict_do_nothing())
        return [i for i in children if not here.get(i)]


def remove(store: SqlObjectStore, root: str) -> list[str]:
    """Delete an object and what only it refers to, as `SqlObjectStore.delete` does; return what that was."""
    deleted: list[str] = []
    with store._mutation_session() as session:
        level = [root]
        while level:
            free = select(StoredObject.object_id).where(
                StoredObject.object_id.in_(level[:MOST_OBJECTS]), StoredObject.ref_count == 0
            )
            gone = [name for name in session.scalars(free) if name]
            level = level[MOST_OBJECTS:]
            if gone:
                links = select(ObjectChild.child_id).where(ObjectChild.parent_id.in_(gone))
                children = Counter(session.scalars(links))
                session.execute(delete(StoredObject).where(StoredObject.object_id.in_(gone)))
                _count(session, children, -1)
                level += children
                deleted += gone
    return deleted


def _count(session: Any, references: Counter[str], sign: int) -> None:
    """Add references to objects, or take them away."""
    by_number = defaultdict(list)
    for name, number in references.items():
        by_number[number].append(name)
    for number, names in by_number.items():
        for at in range(0, len(names), MOST_OBJECTS):
            some = StoredObject.object_id.in_(names[at : at + MOST_OBJECTS])
            counted = StoredObject.ref_count + sign * number
            session.execute(update(StoredObject).where(some).values(ref_count=counted))
