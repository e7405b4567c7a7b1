"""What Flower's grid does not say: what its errors mean, and which messages are answered.

Errors go by name: which classes there are depends on the grid.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from flwr.serverapp import Grid

from task.flower.names import HELD, changes

ANSWERED = "/v1/runtime/bouquet-answered"  # served by our link only; see server_app.deploy.flower.replies


def is_superlink_error(err: Exception) -> bool:
    """Return whether an error is the SuperLink's own (HTTP 5xx) and may pass."""
    status = getattr(getattr(err, "response", None), "status_code", 0)
    return isinstance(status, int) and status >= 500


def ends_the_run(err: Exception) -> bool:
    """Return whether an error says that the SuperLink cannot be asked any more; else it is one message's."""
    return type(err).__module__.split(".")[0] == "httpx" or type(err).__name__ == "RunNotRunningException"


@cache
def _can_ask() -> bool:
    return not changes(HELD)


def answered(grid: Grid, message_ids: Iterable[str], hold_s: float) -> set[str] | None:
    """Return which messages have a reply to be pulled, or an error; None if the SuperLink cannot say it.

    Args:
        grid: A deployed run's.
        message_ids: Ids of the messages.
        hold_s: How long the SuperLink may wait for the first, if there is none.
    """
    client: Any = getattr(grid, "_runtime_client", None)
    if client is None or not _can_ask():
        return None
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    try:
        found = client._unary_unary(
            path=f"{ANSWERED}?hold={hold_s:g}",
            rpc_method="",
            request=PullAppMessagesRequest(message_ids=message_ids),
            response_type=PullAppMessagesRequest,  # has the same field
        )
    except Exception as err:
        if getattr(getattr(err, "response", None), "status_code", 0) in (404, 405):
            return None  # another's SuperLink
        raise
    return set(found.message_ids)
