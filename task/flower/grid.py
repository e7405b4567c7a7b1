"""Additions to Flower's grid: meaning of errors, which messages are answered, several parts per call.

Errors are identified by name, as their classes depend on the grid.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.serverapp import Grid

from task.flower.names import HELD, PACKED, fits
from task.flower.services import runtime_message
from task.wire.parts import batches, pack, unpack

__all__ = [
    "answered",
    "ends_the_run",
    "is_superlink_error",
    "pack_pushes",
    "parts",
]

# Served by our link only; see server_app.deploy.flower.runtime_api.
ANSWERED = "/v1/runtime/bouquet-answered"
PARTS = "/v1/runtime/bouquet-parts"
MESSAGE_IDS = runtime_message("PullAppMessagesRequest")


def is_superlink_error(err: Exception) -> bool:
    """Return whether an error is the SuperLink's own (HTTP 5xx) and may be transient."""
    status = getattr(getattr(err, "response", None), "status_code", 0)
    return isinstance(status, int) and status >= 500


def ends_the_run(err: Exception) -> bool:
    """Return whether an error means that the SuperLink is gone; otherwise it concerns one message."""
    return type(err).__module__.split(".")[0] == "httpx" or type(err).__name__ == "RunNotRunningException"


def answered(grid: Grid, message_ids: Iterable[str], hold_s: float) -> set[str] | None:
    """Return which messages have a reply to be pulled, or an error; None if the SuperLink cannot say it.

    Args:
        grid: A deployed run's.
        message_ids: Ids of the messages.
        hold_s: How long the SuperLink may wait for the first, if there is none.
    """
    # The answer has the same field as the request.
    found = _ask(grid, f"{ANSWERED}?hold={hold_s:g}", message_ids, MESSAGE_IDS)
    return None if found is None else set(found.message_ids)


def parts(grid: Grid, object_ids: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of those objects that the SuperLink gives at once; it may be none."""
    found = _ask(grid, PARTS, object_ids, _Contents)
    return found.contents if found else {}


def pack_pushes(grid: Grid) -> None:
    """Let Flower's grid push several small objects per call, if its SuperLink takes them."""
    http_grid = sys.modules.get("flwr.superlink.grid.http_grid")  # loaded only if used
    if http_grid is None or not fits(PACKED) or hasattr(http_grid.push_objects, "packs"):
        return
    theirs = http_grid.push_objects

    def push_objects(
        objects: dict[str, Any], push_object_fn: Callable[[str, bytes], None], **more: Any
    ) -> None:
        ids = more.pop("object_ids_to_push")
        if more:  # it may mean something
            theirs(objects, push_object_fn, object_ids_to_push=ids, **more)
            return
        contents = ((i, objects.pop(i).deflate()) for i in list(objects) if i in ids)
        for batch in batches(contents):
            push_object_fn(batch[0][0], batch[0][1] if len(batch) == 1 else pack(batch))

    if _ask(grid, PARTS, (), _Contents) is not None:
        push_objects.packs = True  # type: ignore[attr-defined]
        vars(http_grid)["push_objects"] = push_objects


class _Contents:
    """An answer with contents, in the place of a protobuf message."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def ParseFromString(self, raw: bytes) -> None:  # noqa: N802
        """Read an answer."""
        self.contents = unpack(raw) or {}


def _ask(grid: Grid, path: str, ids: Iterable[str], kind: Any) -> Any:
    client: Any = getattr(grid, "_runtime_client", None)
    if client is None or not fits(HELD):
        return None
    request = MESSAGE_IDS(message_ids=ids)
    try:
        return client._unary_unary(path=path, rpc_method="", request=request, response_type=kind)
    except Exception as err:  # of a SuperLink without that call; any other is raised
        if getattr(getattr(err, "response", None), "status_code", 0) in (404, 405):
            return None  # another's SuperLink
        raise
