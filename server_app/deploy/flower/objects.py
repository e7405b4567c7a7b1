"""Messages and their trees of objects, in a few SQL statements; Flower needs five for each object.

The statements are plain SQL, or built once: building one with SQLAlchemy costs fifty times its execution.
"""

import json
import re
import sqlite3
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.corestate_models import (
    ObjectPushSession,
    ObjectPushSessionPending,
    ObjectPushSessionRoot,
    Task,
)
from flwr.supercore.state.schema.linkstate_models import MessageIns, Run
from flwr.supercore.state.schema.objectstore_models import (
    ObjectChild,
    ObjectStoreLock,
    RunObject,
    StoredObject,
)
from sqlalchemy import bindparam, exists, select, update

from server_app.deploy.calls.protocol import PUSH_SESSION_S, now, object_id, objects_of, signed, unsigned
from server_app.deploy.host.replacing import replace
from task.flower.services import Protobuf

MOST_OBJECTS = 10_000  # of a tree
MOST_REMEMBERED = 200_000  # objects in the trees that are remembered
NAME = re.compile("[0-9a-f]{64}")
THESE = "(SELECT value FROM json_each(?))"
OBJECTS, CHILDREN = StoredObject.__tablename__, ObjectChild.__tablename__
RUN_OBJECTS, LOCKS = RunObject.__tablename__, ObjectStoreLock.__tablename__
SESSIONS, ROOTS = ObjectPushSession.__tablename__, ObjectPushSessionRoot.__tablename__
PENDING = ObjectPushSessionPending.__tablename__
MINE = ObjectPushSession.session_id == bindparam("session")
UPLOAD = select(
    ObjectPushSession.run_id, ObjectPushSession.expires_at, ObjectPushSession.pending_count
).where(MINE)
GOES_ON = update(ObjectPushSession).where(MINE)
LOCKED = (
    update(Run)
    .where(
        Run.run_id == bindparam("run"),
        exists().where(Task.task_id == Run.primary_task_id, Task.finished_at.is_(None)),
    )
    .values(run_id=Run.run_id)
    .returning(Run.run_id, Run.federation_id, Run.primary_task_id)
)
VALID = (
    f"SELECT COUNT(*) FROM {MessageIns.__tablename__} WHERE message_id IN {THESE} "
    "AND created_at + ttl > ? AND run_id = COALESCE(?, run_id)"
)


@contextmanager
def sql(database: SqlLinkState | SqlObjectStore) -> Iterator[sqlite3.Connection]:
    """Yield the connection of one transaction, for plain SQL."""
    with database.session() as session:
        yield cast(sqlite3.Connection, session.connection().connection.driver_connection)


@contextmanager
def _changing(database: SqlLinkState | SqlObjectStore) -> Iterator[sqlite3.Connection]:
    """Yield the connection of one transaction, during which nothing else writes."""
    with sql(database) as db:
        db.execute(f"UPDATE {LOCKS} SET lock_value = lock_value")  # from here on SQLite's own lock is held
        yield db


class _Trees:
    """The most recently registered trees of objects."""

    def __init__(self) -> None:
        self._trees: OrderedDict[str, tuple[Protobuf, int]] = OrderedDict()
        self._objects = 0
        self._lock = threading.Lock()

    def keep(self, tree: Protobuf) -> None:
        size = sum(1 for _ in objects_of(tree))
        with self._lock:
            self._drop(tree.object_id)
            self._trees[tree.object_id] = tree, size
            self._objects += size
            while self._objects > MOST_REMEMBERED:
                self._drop(next(iter(self._trees)))

    def get(self, root: str) -> Protobuf | None:
        found = self._trees.get(root)
        return found[0] if found else None

    def drop(self, root: str) -> None:
        with self._lock:
            self._drop(root)

    def _drop(self, root: str) -> None:
        _, size = self._trees.pop(root, (None, 0))
        self._objects -= size


def economise_trees(state: SqlLinkState) -> None:
    """Process messages and trees in few statements; the object store's `delete` then takes several ids."""
    store, trees = state.object_store, _Trees()
    assert isinstance(store, SqlObjectStore)  # as the state is in a database
    preregister, find_tree = store.preregister, store.get_object_tree
    preregister_missing = state.preregister_object_tree
    lock, check = state._lock_run, state._check_stored_messages

    def lock_run(run_id: int, *, require_unfinished: bool) -> dict[str, Any] | None:
        if not require_unfinished:
            return lock(run_id)
        with state.session() as session:
            row = session.connection().execute(LOCKED, {"run": signed(run_id)}).mappings().one_or_none()
            return None if row is None else dict(row)

    def check_stored_messages(message_ids: set[str], run_id: int | None = None) -> None:
        run = None if run_id is None else signed(run_id)
        with sql(state) as db:
            (valid,) = db.execute(VALID, (*these(message_ids), now().timestamp(), run)).fetchone()
        if valid < len(message_ids):  # all nodes are in a link's one federation
            check(message_ids, run_id)

    def register_tree(run_id: int, object_tree: Protobuf) -> list[str]:
        missing = register(store, run_id, object_tree)
        if missing is None:
            missing = preregister(run_id, object_tree)
        trees.keep(object_tree)
        return missing

    def register_missing(object_tree: Protobuf, session_id: str) -> list[str]:
        missing = expect(state, object_tree, session_id)
        return preregister_missing(object_tree, session_id) if missing is None else missing

    def get_object_tree(object_id: str) -> Protobuf:
        return trees.get(object_id) or find_tree(object_id)

    def forget_objects(*object_ids: str) -> None:
        for gone in remove(store, object_ids):
            trees.drop(gone)

    replace(
        state, preregister_object_tree=register_missing, _lock_run=lock_run,
        _check_stored_messages=check_stored_messages,
    )  # fmt: skip
    replace(store, preregister=register_tree, get_object_tree=get_object_tree, delete=forget_objects)


def register(store: SqlObjectStore, run_id: int, tree: Protobuf) -> list[str] | None:
    """Register a tree as `SqlObjectStore.preregister` does; return what is missing.

    None: nothing was done, as the tree is large or not as it must be. Flower's own says what is wrong.
    """
    children = {node.object_id: [c.object_id for c in node.children] for node in objects_of(tree)}
    if len(children) > MOST_OBJECTS or not all(map(NAME.fullmatch, children)):
        return None
    if any(len(set(names)) < len(names) for names in children.values()):
        return None
    with _changing(store) as db:
        known = f"SELECT object_id, is_available FROM {OBJECTS} WHERE object_id IN {THESE}"
        here: dict[str, int] = dict(db.execute(known, these(children)))
        if here:
            listed = defaultdict[str, set[str]](set)
            pairs = f"SELECT parent_id, child_id FROM {CHILDREN} WHERE parent_id IN {THESE}"
            for parent, child in db.execute(pairs, these(here)):
                listed[parent].add(child)
            if any(listed[i] != set(children[i]) for i in here):
                return None
        new = [(i,) for i in children if i not in here]
        links = [(i, child) for (i,) in new for child in children[i]]
        row = f"INSERT INTO {OBJECTS} (object_id, content, is_available, ref_count) VALUES (?, x'', 0, 0)"
        db.executemany(row, new)
        db.executemany(f"INSERT INTO {CHILDREN} (parent_id, child_id) VALUES (?, ?)", links)
        _refer(db, Counter(child for _, child in links), 1)
        rows = [(signed(run_id), i) for i in children]
        db.executemany(f"INSERT OR IGNORE INTO {RUN_OBJECTS} (run_id, object_id) VALUES (?, ?)", rows)
    return [i for i in children if not here.get(i)]


def expect(state: SqlLinkState, tree: Protobuf, session_id: str) -> list[str] | None:
    """Register a tree and note what is missing, as `SqlLinkState.preregister_object_tree` does; return that.

    None: nothing was done, as the upload is unknown or the tree is part of an older one.
    """
    with _changing(state) as db:
        upload = db.execute(f"SELECT run_id FROM {SESSIONS} WHERE session_id = ?", (session_id,)).fetchone()
        older = db.execute(f"SELECT 1 FROM {ROOTS} WHERE root_object_id = ?", (tree.object_id,)).fetchone()
        if upload is None or older:
            return None
        missing: list[str] = state.object_store.preregister(unsigned(upload[0]), tree)
        rows = [(session_id, i) for i in missing]
        root = f"INSERT INTO {ROOTS} (session_id, root_object_id) VALUES (?, ?)"
        db.execute(root, (session_id, tree.object_id))
        pending = f"INSERT OR IGNORE INTO {PENDING} (session_id, object_id) VALUES (?, ?)"
        db.executemany(pending, rows)
        count = f"(SELECT COUNT(*) FROM {PENDING} WHERE session_id = ?)"
        left = f"UPDATE {SESSIONS} SET pending_count = {count} WHERE session_id = ?"
        db.execute(left, (session_id, session_id))
    return missing


def put(state: SqlLinkState, run_id: int, session_id: str, contents: Mapping[str, bytes]) -> bool:
    """Store objects of an upload, together, as `SqlLinkState.store_object` stores one; return whether.

    If not, nothing was done: one is not what its id says, or not awaited. One by one they show which.
    """
    try:
        for name, content in contents.items():
            if object_id(content) != name:
                return False
            validate_object_content(content)
        with state.session() as session, sql(state) as db:
            awaited = f"DELETE FROM {PENDING} WHERE session_id = ? AND object_id IN {THESE}"
            _expect(db.execute(awaited, (session_id, *these(contents))).rowcount == len(contents))
            upload = session.connection().execute(UPLOAD, {"session": session_id}).one()  # else none of it
            _expect(upload.run_id == signed(run_id) and upload.expires_at > now())
            store = f"UPDATE {OBJECTS} SET content = ?, is_available = 1 WHERE object_id = ?"
            stored = db.executemany(store, [(content, name) for name, content in contents.items()])
            _expect(stored.rowcount == len(contents))
            if left := upload.pending_count - len(contents):
                later = now() + timedelta(seconds=PUSH_SESSION_S)
                values = {"session": session_id, "pending_count": left, "expires_at": later}
                session.connection().execute(GOES_ON, values)
            else:
                db.execute(f"DELETE FROM {SESSIONS} WHERE session_id = ?", (session_id,))
    except ValueError:
        return False
    return True


def read(store: SqlObjectStore, names: Iterable[str], most_bytes: int) -> dict[str, bytes]:
    """Return the contents of objects, without those that are not there or do not fit after others."""
    chosen, left = [], most_bytes
    names = list(names)
    with sql(store) as db:
        size_of = f"SELECT object_id, length(content) FROM {OBJECTS} WHERE object_id IN {THESE}"
        sizes: dict[str, int] = dict(db.execute(size_of, these(names)))
        for name in names:
            if 0 < (size := sizes.get(name, 0)) <= left:
                chosen.append(name)
                left -= size
        found = f"SELECT object_id, content FROM {OBJECTS} WHERE object_id IN {THESE}"
        contents: dict[str, bytes] = dict(db.execute(found, these(chosen)))
    return {name: contents[name] for name in chosen}


def remove(store: SqlObjectStore, roots: Iterable[str]) -> list[str]:
    """Delete objects and what only they refer to, as `SqlObjectStore.delete` does; return what that was."""
    deleted: list[str] = []
    with _changing(store) as db:
        level = list(roots)
        while level:
            free = f"SELECT object_id FROM {OBJECTS} WHERE ref_count = 0 AND object_id IN {THESE}"
            gone = [name for (name,) in db.execute(free, these(level))]
            links = f"SELECT child_id FROM {CHILDREN} WHERE parent_id IN {THESE}"
            children = Counter(name for (name,) in db.execute(links, these(gone)))
            db.execute(f"DELETE FROM {OBJECTS} WHERE object_id IN {THESE}", these(gone))
            _refer(db, children, -1)
            level = list(children)
            deleted += gone
    return deleted


def these(names: Iterable[str]) -> tuple[str]:
    """Return the one value of a statement that has `THESE`: SQLite takes no more than 32,766 values."""
    return (json.dumps(list(names)),)


def _refer(db: sqlite3.Connection, references: Counter[str], sign: int) -> None:
    """Add references to objects, or take them away."""
    rows = [(sign * number, name) for name, number in references.items()]
    db.executemany(f"UPDATE {OBJECTS} SET ref_count = ref_count + ? WHERE object_id = ?", rows)


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError("the upload is a different one")  # and nothing of it is stored
