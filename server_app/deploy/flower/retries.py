"""How often a call is tried again whose server is away: Flower waits up to 20 s more after each try."""

from flwr.supercore.retry import grpc_retry, http_retry

from task import timing


def retry_soon() -> None:
    """Limit the waits of this process's calls."""
    for module in (grpc_retry, http_retry):
        if hasattr(module, "MAX_RETRY_DELAY"):  # read at each call
            vars(module)["MAX_RETRY_DELAY"] = timing.RETRY_LONGEST_S
