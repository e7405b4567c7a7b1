"""Queries of the SuperLink's database, for the checks of the Fleet API: which node has which message."""

import contextlib

from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.state.schema.corestate_models import ObjectPushSessionRoot
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes
from flwr.supercore.state.schema.objectstore_models import StoredObject
from sqlalchemy import select

from server_app.deploy.calls.protocol import now, object_ids, signed, unsigned


class Records:
    """The records of a SuperLink, to be read; with `delivery.Delivery` they are more than that.

    Args:
        state: The SuperLink's state, in a database.
    """

    def __init__(self, state: SqlLinkState) -> None:
        self.state = state

    def addressee(self, order: str) -> tuple[int | None, bool]:
        """Return the node that an order is for, None if there is none, and whether a reply is stored."""
        with self.state.session() as session:
            row = session.execute(
                select(MessageIns.dst_node_id, MessageRes.message_id)
                .join(MessageRes, MessageRes.reply_to_message_id == MessageIns.message_id, isouter=True)
                .where(MessageIns.message_id == order)
            ).first()
        return (unsigned(row[0] or 0), row[1] is not None) if row else (None, False)

    def owns(self, node: int, session_id: str) -> bool:
        """Return whether an upload is that of a reply of this node."""
        with self.state.session() as session:
            owner = session.scalar(
                select(MessageRes.src_node_id)
                .join(ObjectPushSessionRoot, ObjectPushSessionRoot.root_object_id == MessageRes.message_id)
                .where(ObjectPushSessionRoot.session_id == session_id)
            )
        return owner is not None and unsigned(owner) == node

    def has(self, object_id: str) -> bool:
        """Return whether an object has arrived: the sender may have missed the confirmation."""
        with self.state.session() as session:
            found = session.scalar(
                select(StoredObject.is_available).where(StoredObject.object_id == object_id)
            )
        return bool(found)

    def unanswered(self, node: int) -> dict[str, frozenset[str]]:
        """Return the orders that a node fetched but has not answered, each with the ids of its objects."""
        found = {}
        for order in self.unanswered_orders(node):
            with contextlib.suppress(NoObjectInStoreError):
                found[order] = frozenset(object_ids(self.state.object_store.get_object_tree(order)))
        return found

    def unanswered_orders(self, node: int) -> list[str]:
        """Return the ids of the orders that a node fetched but has not answered."""
        answered = select(MessageRes.reply_to_message_id).where(
            MessageRes.reply_to_message_id == MessageIns.message_id
        )
        with self.state.session() as session:
            found = session.scalars(
                select(MessageIns.message_id).where(
                    MessageIns.dst_node_id == signed(node),
                    MessageIns.delivered_at != "",
                    MessageIns.created_at + MessageIns.ttl > now().timestamp(),
                    ~answered.exists(),
                )
            ).all()
        return [order for order in found if order]

    def answer(self, order: str, node: int, reason: str) -> None:
        """Answer an order on behalf of its node; Flower does not, and the run waits until its time is up."""

    def refuse(self, node: int, reason: str) -> None:
        """Drop what a node is uploading. Flower does, once no part of it has come for a while."""
