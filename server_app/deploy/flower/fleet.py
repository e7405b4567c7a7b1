"""The Fleet API's servicer: Flower's own, with additional checks."""

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from zipfile import BadZipFile

import grpc
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.supercore.error import ApiErrorCode, FlowerError

from server_app.deploy.calls.limits import MAX_OBJECTS, NodeNotes, RateLimiter, RefusedCallError
from server_app.deploy.calls.protocol import PUBLIC_KEY_HEADER, header
from server_app.deploy.flower.records import Records
from server_app.deploy.host.app_integrity import HEADER_LETTERS, differs, listing, read_app
from server_app.deploy.host.host import APP_HEADER, PLACE_HEADER
from task import timing
from task.errors import RefusedError
from task.flower.services import FLEET, Protobuf

logger = logging.getLogger("flwr")


class CheckedFleet(FleetServicer):
    """Serves the nodes as Flower does, but refuses what a node may not do.

    Args:
        limiter: Stands before it.
        records: Of the same state.
        apps: Which app each node runs, by node id, as it last said.
        code: Of the app that this SuperLink's runs are of; "" = of any.
        theirs: Arguments of Flower's servicer.
    """

    def __init__(
        self,
        *,
        limiter: RateLimiter,
        records: Records,
        apps: NodeNotes | None = None,
        code: str = "",
        **theirs: Any,
    ) -> None:
        super().__init__(**theirs)
        self._limiter, self._records = limiter, records
        self._apps, self._code = apps or NodeNotes(), code
        self._fetched: dict[int, frozenset[str]] = {}  # ids of the objects of a node's orders
        self._uploads: dict[int, str] = {}  # each node's last session of uploads

    def ActivateNode(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Activate the node whose key signed the call.

        Flower activates any node whose public key is named, and refuses one that it still believes to be
        online. Here a node whose process was killed is admitted `timing.DEAD_NODE_S` after its last call; at
        once if it comes from the place of the earlier one, since there only one process at a time has the
        node's kit.
        """
        if request.public_key != header(context.invocation_metadata(), PUBLIC_KEY_HEADER, bytes):
            raise RefusedCallError(
                "expected the public key that signed this call; got another", grpc.StatusCode.UNAUTHENTICATED
            )
        node = self._records.state.get_node_id_by_public_key(request.public_key)
        if node is not None:
            self._check_app(node, header(context.invocation_metadata(), APP_HEADER, str) or "")
            known = self._limiter.sender(node, request.public_key)
            place = header(context.invocation_metadata(), PLACE_HEADER, str)
            if time.monotonic() - known.heard > timing.DEAD_NODE_S or (place and place == known.place):
                self._records.state.deactivate_node(node)
        response = super().ActivateNode(request, context)
        logger.info("%s is online", self._limiter.sender(response.node_id, request.public_key))
        return response

    def SendNodeHeartbeat(  # noqa: N802
        self, request: Protobuf, context: grpc.ServicerContext
    ) -> Any:
        """Take a heartbeat, but refuse one of a node that runs another app.

        An earlier SuperLink let that node in, before the link was upgraded. A node whose heartbeat is refused
        activates itself again, and the answer to that says why it is refused.
        """
        if differs(self._apps.of(str(request.node.node_id)), self._code):
            return FLEET.answer("SendNodeHeartbeat", success=False)
        return super().SendNodeHeartbeat(request, context)

    def _check_app(self, node: int, said: str) -> None:
        """Note which app a node runs; refuse it if it is not the app of the runs here.

        Admitted, it would refuse every message, and a round that needs its reply fails. So the round waits.

        Raises:
            RefusedCallError: It is another.
        """
        if (said := said[:HEADER_LETTERS]) != self._apps.of(str(node)):
            self._apps.keep(str(node), said)
        if differs(said, self._code):
            raise RefusedCallError(
                f"this node runs app {read_app(said)}, the runs here have the code {self._code}. "
                "Install the same version on both machines; then the node joins automatically",
                grpc.StatusCode.PERMISSION_DENIED,
            )

    def GetFab(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Give a node a run's app: no more than its list of files if it runs the installed app only."""
        response = super().GetFab(request, context)
        if header(context.invocation_metadata(), APP_HEADER, str):
            with suppress(KeyError, BadZipFile, RefusedError):  # the node says what is wrong with it
                response.fab.content = listing(response.fab.content)
        return response

    def PushMessages(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Receive the head of a node's reply in its own name."""
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
                "%s: reply refused: expected a reply of its own; got one of node %d",
                self._limiter.sender(node), metadata.src_node_id,
            )  # fmt: skip
            raise RefusedCallError(
                f"expected a reply of node {node}, whose key signed this call; got one of node "
                f"{metadata.src_node_id}",
                grpc.StatusCode.PERMISSION_DENIED,
            )
        addressee, is_answered = self._records.addressee(metadata.reply_to_message_id)
        if addressee not in (node, None):
            self._limiter.say(node, f"reply refused: it answers a message to node {addressee}")
            raise RefusedCallError(
                "expected a reply to a message to this node; got one to a message to another",
                grpc.StatusCode.PERMISSION_DENIED,
            )
        if _more_than(MAX_OBJECTS, request.message_object_trees):
            text = f"expected at most {MAX_OBJECTS} objects in a reply; got more"
            logger.warning("%s: reply refused: %s", self._limiter.sender(node), text)
            self._records.answer(metadata.reply_to_message_id, node, text)
            raise RefusedCallError(text)
        response = super().PushMessages(request, context)
        self._uploads[node] = response.session_id
        if not is_answered and response.objects_to_push:  # not for a repeated head
            self._limiter.begin_reply(node)
        return response

    def PushObject(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Receive a part of this node's reply."""
        node, session = request.node.node_id, request.session_id
        # In Flower's own delivery the records of a reply end when a ServerApp fetches its head.
        if self._uploads.get(node) != session and not self._records.owns(node, session):
            # It may be complete: the answer was lost, and the node sends the last part again.
            return FLEET.answer("PushObject", stored=self._records.has(request.object_id))
        try:
            return super().PushObject(request, context)
        except ValueError as err:  # of several that cannot be taken apart
            raise RefusedCallError(f"PushObject: {err}", grpc.StatusCode.INVALID_ARGUMENT) from None

    def PullObject(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Send a node a part of a message that it must answer; any other part counts as missing.

        Flower tells a node that fetches a message of a run that has just ended that the run does not run. Its
        SuperNode then leaves the message with an executor that waits for the rest of it, and the node stops
        working. If the part is reported missing, it gives the message up.
        """
        node = request.node.node_id
        if not self.may_fetch(node, request.object_id):
            self._limiter.say(node, "PullObject refused: the object is not part of a message to this node")
            return FLEET.answer("PullObject", object_found=False, object_available=False)
        try:
            return super().PullObject(request, context)
        except FlowerError as err:
            if err.code != ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                raise
            return FLEET.answer("PullObject", object_found=False, object_available=False)

    def may_fetch(self, node: int, object_id: str) -> bool:
        """Return whether an object belongs to a message that the node has fetched but not answered."""
        if object_id not in self._fetched.get(node, ()):
            self._fetched[node] = frozenset[str]().union(*self._records.unanswered(node).values())
        return object_id in self._fetched[node]

    def ConfirmMessageReceived(  # noqa: N802
        self, request: Protobuf, context: grpc.ServicerContext
    ) -> Any:
        """Take a node's confirmation that it has a message to it: Flower then deletes the objects of that."""
        if not self.may_fetch(request.node.node_id, request.message_object_id):
            return FLEET.answer("ConfirmMessageReceived")
        try:
            return super().ConfirmMessageReceived(request, context)
        except FlowerError as err:
            if err.code != ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
                raise
            raise RefusedCallError(str(err), grpc.StatusCode.FAILED_PRECONDITION) from err  # see PullObject


def _more_than(most: int, trees: Iterable[Protobuf]) -> bool:
    """Return whether trees hold more objects; reads no more than that many."""
    seen, waiting = 0, list(trees)
    while waiting:
        tree = waiting.pop()
        seen += 1
        if seen > most:
            return True
        waiting.extend(tree.children)
    return False
