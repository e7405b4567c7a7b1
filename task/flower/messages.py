"""What a message says of itself beyond Flower's public names."""

from flwr.app import Message
from flwr.common.constant import ErrorCode

__all__ = ["ErrorCode", "set_reply_to"]


def set_reply_to(reply: Message, message_id: str) -> None:
    """Let a reply answer another message than the one that it was made for."""
    reply.metadata.__dict__["_reply_to_message_id"] = message_id
