"""What the errors of Flower's grid mean. They go by name: which classes there are depends on the grid."""

from __future__ import annotations


def is_superlink_error(err: Exception) -> bool:
    """Return whether an error is the SuperLink's own (HTTP 5xx) and may pass."""
    status = getattr(getattr(err, "response", None), "status_code", 0)
    return isinstance(status, int) and status >= 500


def ends_the_run(err: Exception) -> bool:
    """Return whether an error says that the SuperLink cannot be asked any more; else it is one message's."""
    return type(err).__module__.split(".")[0] == "httpx" or type(err).__name__ == "RunNotRunningException"
