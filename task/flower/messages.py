"""What messages, and the errors of the grid that carries them, say beyond Flower's public names."""

from flwr.app import Message
from flwr.common.constant import ErrorCode

__all__ = ["ErrorCode", "set_reply_to"]


def set_reply_to(reply: Message, message_id: str) -> None:
    """Let a reply answer another message than the one that it was made for."""
    reply.metadata.__dict__["_reply_to_message_id"] = message_id


def is_superlink_error(err: Exception) -> bool:
    """Return whether an error is the SuperLink's own (HTTP 5xx) and may pass."""
    status = getattr(getattr(err, "response", None), "status_code", 0)
    return isinstance(status, int) and status >= 500


def ends_the_run(err: Exception) -> bool:
    """Return whether an error says that the SuperLink cannot be asked any more; else it is one message's.

    Errors go by name: which classes there are depends on the grid.
    """
    return type(err).__module__.split(".")[0] == "httpx" or type(err).__name__ == "RunNotRunningException"
