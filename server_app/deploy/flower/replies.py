"""The Runtime API's calls that deliver a reply: it is stored until the ServerApp has all of it."""

from collections.abc import Callable
from typing import Any

from server_app.deploy.flower.delivery import Delivery


class KeepingState:
    """A link state from which only unanswered messages are deleted; for Flower's own handlers."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.object_store = KeepingStore(delivery)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery.state, name)

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int) -> list[Any]:
        """Return the messages to the SuperLink itself: a ServerApp of ours has none."""
        return []

    def delete_messages(self, message_ins_ids: set[str]) -> None:
        """Delete the messages to which there is no reply from a node."""
        self._delivery.forget(message_ins_ids - self._delivery.answered(message_ins_ids))


class KeepingStore:
    """An object store that keeps what it has, and its own factory; for Flower's own handlers."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery.state.object_store, name)

    def store(self) -> "KeepingStore":
        """Return the store."""
        return self

    def delete(self, object_id: str) -> None:
        """Keep it."""


Handler = Callable[[Any, Any, Any], Any]


def pull_replies(delivery: Delivery, theirs: Handler) -> Handler:
    """Return the Runtime API's PullMessages that gives a reply until it is confirmed, and only when whole."""

    def pull(request: Any, state: Any, task: Any) -> Any:
        whole = delivery.whole(request.message_ids)
        del request.message_ids[:]
        request.message_ids.extend(whole)
        delivery.reopen_replies(whole)
        return theirs(request, KeepingState(delivery), task)

    return pull


def confirm_reply(delivery: Delivery, theirs: Handler) -> Handler:
    """Return the Runtime API's ConfirmMessageReceived that deletes the message and its reply, with others."""

    def confirm(request: Any, state: Any, task: Any) -> Any:
        response = theirs(request, KeepingState(delivery), task)
        delivery.confirmed(request.message_object_id)
        return response

    return confirm
