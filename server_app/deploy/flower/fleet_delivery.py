"""The Fleet API with delivery: orders are redelivered, calls held, objects sent several at a time."""

import time
from typing import Any

import grpc

from server_app.deploy.calls.inbox import Inbox
from server_app.deploy.calls.protocol import header
from server_app.deploy.flower.delivery import Delivery
from server_app.deploy.flower.fleet import CheckedFleet
from server_app.deploy.flower.replies import KeepingStore
from server_app.deploy.host.host import HOLD_HEADER
from task import timing
from task.flower.services import FLEET, Protobuf
from task.wire.parts import MOST, PARTS_HEADER, pack


class Fleet(CheckedFleet):
    """Serves the nodes; the arguments are those of `CheckedFleet`, with a `Delivery` for the records."""

    def __init__(self, *, records: Delivery, **more: Any) -> None:
        super().__init__(records=records, **more | {"objectstore_factory": KeepingStore(records)})
        self._delivery = records

    def SendNodeHeartbeat(  # noqa: N802
        self, request: Protobuf, context: grpc.ServicerContext
    ) -> Any:
        """Take a heartbeat; the node's uploads stay alive with it."""
        response = super().SendNodeHeartbeat(request, context)
        if response.success:
            self._delivery.keep_uploads(request.node.node_id)
        return response

    def PullMessages(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Send a node its orders, including those that it fetched before but has not answered.

        Not before the message is complete: the node would poll for the rest only once a second. A long poll
        (`HOLD_HEADER`) is answered when there is something; a newer call of the node ends it.
        """
        node, arrivals = request.node.node_id, self._delivery.arrivals
        inbox = arrivals.inbox(node)
        turn = inbox.enter()
        response = self._look(request, context, inbox, turn)
        hold_s = _hold(context)
        if response.messages_list or not hold_s:
            return response
        with arrivals.holding() as may_wait:
            if may_wait and context.add_callback(lambda: inbox.leave(turn)):
                until = time.monotonic() + hold_s
                while not response.messages_list and inbox.wait(turn, until):
                    response = self._look(request, context, inbox, turn)
        return response

    def _look(self, request: Protobuf, context: grpc.ServicerContext, inbox: Inbox, turn: int) -> Protobuf:
        """Ask the database for a message, if there may be one."""
        node = request.node.node_id
        with inbox.looking:
            if not inbox.worth_a_look(turn):
                return FLEET.answer("PullMessages")
            before, sure = inbox.whole(), inbox.known
            if not sure or inbox.unanswered:
                self._delivery.reopen_orders(node)
            if not sure and self._delivery.comes(node):
                inbox.incomplete(before)
                return FLEET.answer("PullMessages")
            response = super().PullMessages(request, context)
            inbox.looked(before, response)
            return response

    def may_fetch(self, node: int, object_id: str) -> bool:
        """As `CheckedFleet.may_fetch`, without the database if this process delivered the message."""
        inbox = self._delivery.arrivals.inbox(node)
        if not inbox.has(object_id):
            self._delivery.recall(node)
        return inbox.has(object_id)

    def PullObject(self, request: Protobuf, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Send a node a part of a message that it must answer, and whatever fits after it."""
        response = super().PullObject(request, context)
        inbox = self._delivery.arrivals.inbox(request.node.node_id)
        if response.object_available and _in_parts(context) and (names := inbox.parts(request.object_id)):
            rest = sorted(names - {request.object_id})
            contents = self._delivery.contents((request.object_id, *rest), MOST)
            response.object_content = pack(contents.items())
        return response


def _in_parts(context: grpc.ServicerContext) -> bool:
    """Return whether a call is for several objects."""
    return bool(header(context.invocation_metadata(), PARTS_HEADER, str))


def _hold(context: grpc.ServicerContext) -> float:
    """Return for how many seconds to hold a call."""
    try:
        wanted = float(header(context.invocation_metadata(), HOLD_HEADER, str) or 0)
    except ValueError:
        return 0.0
    return min(wanted, timing.HELD_S) if wanted > 0 else 0.0
