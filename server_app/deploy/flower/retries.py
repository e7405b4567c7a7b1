"""Retries of the calls that a ServerApp makes to the SuperLink's HTTP port."""

from task import timing
from task.flower.names import find


def retry_soon() -> None:
    """Limit the waits of this process's calls; Flower's are up to 20 s after each try."""
    for name in ("grpc_retry", "http_retry"):
        module = find(f"flwr.supercore.retry.{name}")
        if hasattr(module, "MAX_RETRY_DELAY"):  # read at each call
            vars(module)["MAX_RETRY_DELAY"] = timing.RETRY_LONGEST_S
