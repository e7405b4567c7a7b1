"""Retries and connection reuse of calls to the SuperLink's HTTP port."""

import ssl

import httpx
from flwr.supercore.runtime import RuntimeHttpClient

from task import timing
from task.flower.names import find


def retry_soon() -> None:
    """Limit the waits of this process's calls; Flower's are up to 20 s after each try."""
    for name in ("grpc_retry", "http_retry"):
        module = find(f"flwr.supercore.retry.{name}")
        if hasattr(module, "MAX_RETRY_DELAY"):  # read at each call
            vars(module)["MAX_RETRY_DELAY"] = timing.RETRY_LONGEST_S


def keep_connection(client: RuntimeHttpClient, verify: ssl.SSLContext | bool, timeout_s: float) -> None:
    """Let a client, not yet used, keep its connection: a TLS handshake is most of what a call costs.

    One that is made otherwise by this version of Flower stays as it is.

    Args:
        client: The client.
        verify: What it trusts, as httpx has it.
        timeout_s: How long to wait for an answer.
    """
    if not hasattr(client, "_client"):
        return
    client._client.close()
    limits = httpx.Limits(keepalive_expiry=timing.KEPT_S)
    client._client = httpx.Client(verify=verify, timeout=timeout_s, follow_redirects=True, limits=limits)
