"""An answer of a node itself, in the place of a ClientApp's."""

from flwr.app import Error, Message
from flwr.common.serde import message_from_proto, message_to_proto

from task.flower.services import FLEET, Protobuf
from task.wire.error_codes import ErrorCode


def error_reply(order: Protobuf, why: str) -> tuple[Protobuf, dict[str, bytes], Protobuf]:
    """Return head, single object and tree of an answer to an order that reports an error."""
    reply = Message(Error(ErrorCode.CLIENT_APP_CRASHED, why), reply_to=message_from_proto(order))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    tree = FLEET.request("PushMessages").message_object_trees.add(object_id=reply.object_id)
    return message_to_proto(reply), {reply.object_id: reply.deflate()}, tree
