"""The Fleet API's servicer: Flower's own, with what it does not check."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import grpc
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.utils import get_metadata_bytes, get_metadata_str

from server_app.deploy.flower.delivery import Delivery, KeepingStore
from server_app.deploy.flower.limits import MAX_OBJECTS, RateLimiter, RefusedCallError
from server_app.deploy.host.host import PLACE_HEADER
from task import timing

logger = logging.getLogger("flwr")


class Fleet(FleetServicer):
    """Serves the nodes.

    Args:
        limiter: Stands before it.
        delivery: Of the same state.
        theirs: Arguments of Flower's servicer.
    """

    def __init__(self, *, limiter: RateLimiter, delivery: Delivery, **theirs: Any) -> None:
        super().__init__(**theirs | {"objectstore_factory": KeepingStore(delivery)})
        self._limiter, self._delivery = limiter, delivery

    def ActivateNode(self, request: ActivateNodeRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Activate the node whose key signed the call.

        Flower activates any node whose public key is named, and refuses one that it still holds for online.
        Here a node whose process was killed is let in `timing.DEAD_NODE_S` after its last call; at once where
        it comes from the place of the earlier one, since there only one process at a time has the node's kit.
        """
        if request.public_key != get_metadata_bytes(context.invocation_metadata(), PUBLIC_KEY_HEADER):
            raise RefusedCallError(
                "expected the public key that signed this call; got another", grpc.StatusCode.UNAUTHENTICATED
            )
        node = self._delivery.state.get_node_id_by_public_key(request.public_key)
        if node is not None:
            known = self._limiter.sender(node, request.public_key)
            place = get_metadata_str(context.invocation_metadata(), PLACE_HEADER)
            if time.monotonic() - known.heard > timing.DEAD_NODE_S or (place and place == known.place):
                self._delivery.state.deactivate_node(node)
        response = super().ActivateNode(request, context)
        logger.info("%s is here", self._limiter.sender(response.node_id, request.public_key))
        return response

    def PullMessages(self, request: PullMessagesRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Give a node what it shall do, also if it was given it before and has not done it.

        Not before all of it is here: the node would look for the rest no more than once a second.
        """
        self._delivery.reopen_orders(request.node.node_id)
        if self._delivery.comes(request.node.node_id):
            return PullMessagesResponse()
        return super().PullMessages(request, context)

    def PushMessages(self, request: PushMessagesRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Take the head of a reply that the node gives in its own name."""
        node = request.node.node_id
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise RefusedCallError(
                f"expected one reply with one tree of objects; got {len(request.messages_list)} and "
                f"{len(request.message_object_trees)}",
                grpc.StatusCode.INVALID_ARGUMENT,
            )
        metadata = request.messages_list[0].metadata
        if metadata.src_node_id != node or not metadata.reply_to_message_id:
            logger.warning(
                "%s: reply refused: expected a reply in its own name; got one of node %d",
                self._limiter.sender(node), metadata.src_node_id,
            )  # fmt: skip
            raise RefusedCallError(
                f"expected a reply of node {node}, whose key signed this call; got one of node "
                f"{metadata.src_node_id}",
                grpc.StatusCode.PERMISSION_DENIED,
            )
        if _more_than(MAX_OBJECTS, request.message_object_trees):
            text = f"expected at most {MAX_OBJECTS} objects in a reply; got more"
            logger.warning("%s: reply refused: %s", self._limiter.sender(node), text)
            self._delivery.answer(metadata.reply_to_message_id, node, text)
            raise RefusedCallError(text)
        is_new = not self._delivery.answered({metadata.reply_to_message_id})
        response = super().PushMessages(request, context)
        if is_new and response.objects_to_push:  # not for a head that is sent again, nor for one not stored
            self._limiter.begin_reply(node)
        return response

    def PushObject(self, request: PushObjectRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Take a part of a reply of this node."""
        if not self._delivery.owns(request.node.node_id, request.session_id):
            # The whole of it may be here: the answer was lost, and the node sends the last part again.
            return PushObjectResponse(stored=self._delivery.has(request.object_id))
        response = super().PushObject(request, context)
        if not response.stored and self._delivery.has(request.object_id):
            return PushObjectResponse(stored=True)
        return response

    def PullObject(self, request: PullObjectRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Give a node a part of a message.

        Flower tells a node that fetches a message of a run that has just ended that the run does not run. Its
        SuperNode then leaves the message with an executor that waits for the rest of it, and the node does no
        more work. Told that the part does not exist, it gives the message up.
        """
        try:
            return super().PullObject(request, context)
        except FlowerError as err:
            if err.code != ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                raise
            return PullObjectResponse(object_found=False, object_available=False)

    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest, context: grpc.ServicerContext
    ) -> Any:
        """Note nothing: what the node was told is kept until it has answered."""
        try:
            return super().ConfirmMessageReceived(request, context)
        except FlowerError as err:
            if err.code != ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                raise
            raise RefusedCallError(str(err), grpc.StatusCode.FAILED_PRECONDITION) from err  # see PullObject


def _more_than(most: int, trees: Iterable[ObjectTree]) -> bool:
    """Return whether trees hold more objects; looks at no more than that many."""
    seen, waiting = 0, list(trees)
    while waiting:
        tree = waiting.pop()
        seen += 1
        if seen > most:
            return True
        waiting.extend(tree.children)
    return False
