"""At-least-once delivery in the SuperLink's database: messages arrive even if a process dies.

Flower's SuperLink marks a message as delivered when it is fetched and then forgets it. A message in transit
is therefore lost when a node, the ServerApp or the SuperLink dies: the round waits until its timeout, or
continues without it. Here a message stays until the answer to it has arrived.

* An order that a node fetched but has not answered is redelivered when the node, which does one thing after
the other, asks for work again; at most `MAX_ORDERS` times.
* A reply stays until the ServerApp has all of it, and is not delivered before it is complete, so that a
slow or broken upload does not delay others.
* After a restart of the SuperLink, nodes and tasks alive before have `timing.SURVIVORS_S` to report.

A client that trains twice for one round gives the same answer twice; only one of them is used.

Stored data survive the kill of a process. Flower's database (SQLite, a write-ahead log that is not
synchronised at each commit) may lose its last transactions in a power cut; the run then resumes.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any

from flwr.app import Error, Metadata
from flwr.app.message import make_message
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.state.schema.corestate_models import ObjectPushSession, ObjectPushSessionRoot, Task
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes, Node
from sqlalchemy import bindparam, select, update

from server_app.deploy.calls.inbox import Arrivals
from server_app.deploy.calls.protocol import (
    HEARTBEAT_PATIENCE,
    NODE_ONLINE,
    NODE_UNREGISTERED,
    PUSH_SESSION_S,
    SUPERLINK_NODE_ID,
    now,
    signed,
    unsigned,
)
from server_app.deploy.flower import objects
from server_app.deploy.flower.records import Records
from server_app.deploy.host.replacing import replace
from task import timing
from task.numerics import pages
from task.wire.error_codes import ErrorCode
from task.wire.parts import unpack

logger = logging.getLogger("flwr")

MAX_ORDERS = 3
ORDERS, REPLIES = MessageIns.__tablename__, MessageRes.__tablename__
# Built once: that costs more than their execution. Both are asked for each reply.
PARTIAL = (
    select(MessageRes.reply_to_message_id, ObjectPushSession.session_id, ObjectPushSession.expires_at)
    .join(ObjectPushSessionRoot, ObjectPushSessionRoot.root_object_id == MessageRes.message_id)
    .join(ObjectPushSession, ObjectPushSession.session_id == ObjectPushSessionRoot.session_id)
    .where(
        MessageRes.reply_to_message_id.in_(bindparam("orders", expanding=True)),
        ObjectPushSession.pending_count > 0,
    )
)
WAITING = (
    select(MessageIns.message_id)
    .join(Node, Node.node_id == MessageIns.dst_node_id)
    .join(MessageRes, MessageRes.reply_to_message_id == MessageIns.message_id, isouter=True)
    .join(ObjectPushSessionRoot, ObjectPushSessionRoot.root_object_id == MessageRes.message_id, isouter=True)
    .join(ObjectPushSession, ObjectPushSession.session_id == ObjectPushSessionRoot.session_id, isouter=True)
    .where(
        MessageIns.message_id.in_(bindparam("orders", expanding=True)),
        MessageIns.run_id == bindparam("run"),
        MessageIns.created_at + MessageIns.ttl > bindparam("seconds"),
        Node.status != NODE_UNREGISTERED,
        Node.online_until >= bindparam("seconds"),
        MessageRes.message_id.is_(None)
        | ((ObjectPushSession.pending_count > 0) & (ObjectPushSession.expires_at > bindparam("now"))),
    )
)


class Delivery(Records):
    """The SuperLink's records of messages in transit, which it keeps until they have arrived.

    Args:
        state: The SuperLink's state, in a database.
    """

    def __init__(self, state: SqlLinkState) -> None:
        super().__init__(state)
        self.arrivals = Arrivals()
        _watch(state, self.arrivals)
        self._orders: Counter[str] = Counter()  # how often each was redelivered
        self._done: set[str] = set()  # replies that the ServerApp has received, to be deleted
        self._came = 0  # bytes of objects since confirmed replies were last deleted
        self._lock = threading.Lock()
        replace(state, store_object=self._put(state.store_object))

    def survive(self) -> None:
        """Give nodes that were alive when the SuperLink stopped the time to report to the new one."""
        later = now() + timedelta(seconds=timing.SURVIVORS_S)
        with self.state.session() as session:
            session.execute(
                update(Node)
                .where(Node.status == NODE_ONLINE, Node.online_until < later.timestamp())
                .values(online_until=later.timestamp())
            )
            session.execute(
                update(Task)
                .where(Task.token.is_not(None), Task.finished_at.is_(None), Task.active_until < later)
                .values(active_until=later)
            )

    def reopen_orders(self, node: int) -> None:
        """Redeliver what a node fetched but has not answered; call this when the node asks for work.

        Only the link sees that a node which is online has lost its order. If the node itself is lost,
        `strategies.engine.exchange` sends a copy to another one. An upload that has not ended is given up.
        """
        for session_id, _ in self._uploads(node):
            self.state._cleanup_push_session(session_id, cleanup_messages=True)
        lost = self.unanswered_orders(node)
        for order in lost:
            with self._lock:
                self._orders[order] += 1
                times = self._orders[order]
            if times < MAX_ORDERS:
                logger.info("message %s to node %d: not answered; redelivering it", order[:8], node)
                with self.state.session() as session:
                    session.execute(
                        update(MessageIns).where(MessageIns.message_id == order).values(delivered_at="")
                    )
            else:
                self.answer(order, node, f"the node fetched this message {times} times without answering it")

    def answer(self, order: str, node: int, reason: str) -> None:
        """Answer an order on behalf of its node, with an error."""
        with self.state.session() as session:
            row = session.execute(
                select(
                    MessageIns.run_id, MessageIns.dst_node_id, MessageIns.group_id, MessageIns.message_type,
                    MessageIns.created_at, MessageIns.ttl,
                ).where(MessageIns.message_id == order, MessageIns.dst_node_id == signed(node))
            ).one_or_none()  # fmt: skip
        if row is None:
            return
        created = now().timestamp()
        metadata = Metadata(
            run_id=unsigned(row.run_id), message_id="", src_node_id=unsigned(row.dst_node_id),
            dst_node_id=SUPERLINK_NODE_ID, reply_to_message_id=order, group_id=row.group_id,
            created_at=created, ttl=row.created_at + row.ttl - created, message_type=row.message_type,
        )  # fmt: skip
        reply = make_message(metadata=metadata, error=Error(ErrorCode.UNKNOWN, reason))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        if self.state.store_message_res(reply) is not None:
            self.state._store_generated_message(reply)
            self.arrivals.answered(order, node)

    def refuse(self, node: int, reason: str) -> None:
        """Drop what a node is uploading, and answer on its behalf with an error."""
        for session_id, order in self._uploads(node):
            self.state._cleanup_push_session(session_id, cleanup_messages=True)
            self.answer(order, node, reason)

    def _uploads(self, node: int) -> list[tuple[str, str]]:
        """Return session and order of each incomplete reply of a node."""
        with self.state.session() as session:
            found = session.execute(
                select(ObjectPushSession.session_id, MessageRes.reply_to_message_id)
                .join(ObjectPushSessionRoot, ObjectPushSessionRoot.session_id == ObjectPushSession.session_id)
                .join(MessageRes, MessageRes.message_id == ObjectPushSessionRoot.root_object_id)
                .where(MessageRes.src_node_id == signed(node), ObjectPushSession.pending_count > 0)
            ).all()
        return [(str(session_id), str(order)) for session_id, order in found]

    def comes(self, node: int) -> bool:
        """Return whether a message to a node is incomplete; after `timing.PARTS_S` it has failed."""
        order, root = MessageIns, ObjectPushSessionRoot
        with self.state.session() as session:
            found = session.scalar(
                select(order.message_id)
                .join(root, root.root_object_id == order.message_id)
                .join(ObjectPushSession, ObjectPushSession.session_id == root.session_id)
                .where(
                    order.dst_node_id == signed(node),
                    order.delivered_at == "",
                    order.created_at > now().timestamp() - timing.PARTS_S,
                    ObjectPushSession.pending_count > 0,
                )
                .limit(1)
            )
        return found is not None

    def owns(self, node: int, session_id: str) -> bool:
        """As `Records.owns`, without the database if this process knows the upload."""
        if (uploader := self.arrivals.uploader(session_id)) is not None:
            return uploader == node
        return super().owns(node, session_id)

    def keep_uploads(self, node: int) -> None:
        """Keep a node's uploads alive after a sign of life: one part may take long on a slow line."""
        if sessions := self.arrivals.uploads(node):
            later = now() + timedelta(seconds=PUSH_SESSION_S)
            upload = ObjectPushSession
            with self.state.session() as session:
                session.execute(
                    update(upload).where(upload.session_id.in_(sessions)).values(expires_at=later)
                )

    def contents(self, object_ids: Iterable[str], most_bytes: int) -> dict[str, bytes]:
        """Return the contents of the objects that have arrived, as many as fit."""
        store: Any = self.state.object_store
        return objects.read(store, object_ids, most_bytes)

    def _put(self, theirs: Callable[..., bool]) -> Callable[..., bool]:
        """Return a `store_object` that also takes several packed objects, and repeated ones.

        It comes again if its answer was lost.
        """

        def put(run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
            self._came += len(object_content)
            parts = unpack(object_content)
            if parts is None:
                parts = {object_id: object_content}
            if objects.put(self.state, run_id, session_id, parts):
                self.arrivals.took(session_id, parts)
                return True
            stored = {name for name, part in parts.items() if theirs(run_id, session_id, name, part)}
            self.arrivals.took(session_id, stored)
            return all(name in stored or self.has(name) for name in parts)

        return put

    def whole(self, orders: Iterable[str]) -> set[str]:
        """Return the orders without those whose reply has arrived only in part.

        An upload that has stood still for too long is dropped; its order is then unanswered.
        """
        wanted = set(orders)
        with self.state.session() as session:
            partial = session.connection().execute(PARTIAL, {"orders": list(wanted)}).all()
        for _, session_id, expires in partial:
            if expires <= now():
                self.state._cleanup_push_session(session_id, cleanup_messages=True)
        return wanted - {order for order, _, _ in partial}

    def ready(self, orders: Collection[str], run: int) -> set[str]:
        """Return the orders of a run that have a complete reply, or will get an error instead."""
        at = now()
        values = {"orders": list(orders), "run": signed(run), "seconds": at.timestamp(), "now": at}
        with self.state.session() as session:
            waiting = session.connection().execute(WAITING, values).scalars().all()
        return set(orders) - set(waiting)

    def reopen_replies(self, orders: Iterable[str]) -> None:
        """Redeliver replies that the ServerApp requests although it has received them."""
        given = f"reply_to_message_id IN {objects.THESE} AND delivered_at != ''"
        with objects.sql(self.state) as db:
            these = objects.these(orders)
            if db.execute(
                f"SELECT 1 FROM {REPLIES} WHERE {given} LIMIT 1", these
            ).fetchone():  # else nothing is written
                db.execute(f"UPDATE {REPLIES} SET delivered_at = '' WHERE {given}", these)

    def forget(self, orders: set[str]) -> None:
        """Delete orders and their objects, and the replies to them."""
        if orders:
            self._delete(orders, orders)

    def _delete(self, orders: set[str], roots: set[str]) -> None:
        delete: Any = self.state.object_store.delete  # takes several, see objects.py
        with self.state.session():
            self.state.delete_messages(orders)
            delete(*roots)
        for order in orders:
            self._orders.pop(order, None)

    def confirmed(self, reply: str) -> None:
        """Delete a reply that the ServerApp has, and what it replies to: soon, with others."""
        with self._lock:
            if not self._done:
                timer = threading.Timer(timing.FORGET_S, self.forget_confirmed)
                timer.daemon = True
                timer.start()
            self._done.add(reply)

    def forget_confirmed(self) -> None:
        """Delete now what the ServerApp has received; a sweep deletes what a killed SuperLink left."""
        with self._lock:
            done, self._done = self._done, set()
        if not done:
            return
        try:
            came, self._came = self._came, 0
            found = f"SELECT reply_to_message_id FROM {REPLIES} WHERE message_id IN {objects.THESE}"
            # Of large replies each by itself: others wait until such a transaction is over.
            for some in [{reply} for reply in done] if came >= pages.LARGE else [done]:
                with objects.sql(self.state) as db:
                    orders = {order for (order,) in db.execute(found, objects.these(some))}
                self._delete(orders, orders | some)
            pages.reclaim(came)
        except Exception as err:  # such as a locked database: the sweep retries
            logger.warning("cannot delete messages that were answered: %s", err)

    def addressee(self, order: str) -> tuple[int | None, bool]:
        """As `Records.addressee`, in plain SQL, as each reply asks it."""
        found = (
            f"SELECT i.dst_node_id, r.message_id FROM {ORDERS} i LEFT JOIN {REPLIES} r "
            "ON r.reply_to_message_id = i.message_id WHERE i.message_id = ?"
        )
        with objects.sql(self.state) as db:
            row = db.execute(found, (order,)).fetchone()
        return (unsigned(row[0] or 0), row[1] is not None) if row else (None, False)

    def recall(self, node: int) -> None:
        """Tell the node's inbox what an earlier process delivered."""
        inbox = self.arrivals.inbox(node)
        for order, parts in self.unanswered(node).items():
            inbox.had(order, parts)

    def answered(self, orders: set[str]) -> set[str]:
        """Return those orders to which a reply is stored."""
        found = f"SELECT reply_to_message_id FROM {REPLIES} WHERE reply_to_message_id IN {objects.THESE}"
        with objects.sql(self.state) as db:
            return {order for (order,) in db.execute(found, objects.these(orders))}

    def sweep(self) -> None:
        """Delete what is no longer needed: expired orders, replies to them, objects.

        If the clock was set back, expiry times that are now too far away are shortened to the usual ones.
        """
        self.arrivals.prune()
        self._forget_the_future()
        with self.state.session() as session:
            old = session.execute(
                select(MessageIns.message_id, MessageRes.message_id)
                .join(
                    MessageRes,
                    MessageRes.reply_to_message_id == MessageIns.message_id,
                    isouter=True,
                )
                .where(MessageIns.created_at + MessageIns.ttl < now().timestamp() - timing.SURVIVORS_S)
            ).all()
        if old:
            self.forget({order for order, _ in old if order})
            for _, reply in old:
                if reply:
                    self.state.object_store.delete(reply)

    def _forget_the_future(self) -> None:
        upload, latest = ObjectPushSession, now() + timedelta(seconds=PUSH_SESSION_S)
        online = now().timestamp() + HEARTBEAT_PATIENCE * Node.heartbeat_interval
        with self.state.session() as session:
            session.execute(update(Node).where(Node.online_until > online + 1).values(online_until=online))
            late = upload.expires_at > latest + timedelta(seconds=1)
            session.execute(update(upload).where(late).values(expires_at=latest))


def _watch(state: SqlLinkState, arrivals: Arrivals) -> None:
    """Let a state's methods that store messages and end nodes report what they did."""
    store, delete, deactivate = (
        state.store_message_and_object_tree,
        state.delete_node,
        state.deactivate_node,
    )

    def store_message(message: Any, object_tree: Any, session_id: str) -> tuple[bool, list[str]]:
        stored, missing = store(message, object_tree, session_id)
        if stored:
            arrivals.stored(message.metadata, missing, session_id)
        return stored, missing

    def delete_node(owner_aid: str, node_id: int) -> None:
        delete(owner_aid, node_id)
        arrivals.inbox(node_id).close()  # for good: ids are not used again

    def deactivate_node(node_id: int) -> bool:
        done = deactivate(node_id)
        arrivals.inbox(node_id).enter()
        return done

    replace(
        state,
        store_message_and_object_tree=store_message,
        delete_node=delete_node,
        deactivate_node=deactivate_node,
    )
