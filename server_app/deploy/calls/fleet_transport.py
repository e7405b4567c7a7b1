"""The Fleet API's calls over gRPC, or over HTTP as Flower 1.40 and later have them: the same protobufs."""

import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Protocol

import grpc
import httpx
from google.protobuf.message import DecodeError

from task import timing
from task.flower.services import FLEET

LARGEST = 2**31 - 1  # bytes of a frame
TYPE = "application/protobuf"
S = grpc.StatusCode
STATUSES = {  # of HTTP; another one is a refusal
    400: S.INVALID_ARGUMENT, 401: S.UNAUTHENTICATED, 403: S.PERMISSION_DENIED, 404: S.NOT_FOUND,
    408: S.UNAVAILABLE, 412: S.FAILED_PRECONDITION, 413: S.RESOURCE_EXHAUSTED, 429: S.RESOURCE_EXHAUSTED,
    500: S.INTERNAL, 502: S.UNAVAILABLE, 503: S.UNAVAILABLE, 504: S.UNAVAILABLE,
}  # fmt: skip
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.max_receive_message_length", LARGEST),
    # Where gRPC waits for up to two minutes, look for a lost SuperLink every few seconds.
    ("grpc.max_reconnect_backoff_ms", int(1000 * timing.RECONNECT_S)),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
]
NAME = "grpc.ssl_target_name_override"

Headers = Mapping[str, str | bytes]


class CallError(Exception):
    """A call failed.

    Args:
        status: Why, in gRPC's terms.
        text: What the SuperLink said, or what is wrong with the way to it.
    """

    def __init__(self, status: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status


class Transport(Protocol):
    """A connection to the Fleet API of one SuperLink."""

    def call(self, name: str, request: Any, headers: Headers, timeout_s: float | None) -> Any:
        """Make one call, once; names that end with ``-bin`` are of headers that hold bytes.

        Raises:
            CallError: It failed.
        """

    def close(self) -> None:
        """Close it; calls that wait fail with `CANCELLED` or `UNAVAILABLE`."""


class GrpcTransport:
    """A gRPC channel.

    Args:
        address: HOST:PORT.
        authority: Certificate of the authority that vouches for the SuperLink, PEM.
        name: That the SuperLink's certificate must have; "" = the address.
    """

    def __init__(self, address: str, authority: bytes, name: str = "") -> None:
        # With another name the address is a relay on this machine, to which no proxy leads.
        options = [*OPTIONS, (NAME, name), ("grpc.enable_http_proxy", 0)] if name else OPTIONS
        credentials = grpc.ssl_channel_credentials(authority)
        self._channel = grpc.secure_channel(address, credentials, options=options)
        self._calls = {
            name: self._channel.unary_unary(
                FLEET.grpc_path(name),
                FLEET.request_type(name).SerializeToString,
                FLEET.answer_type(name).FromString,
            )
            for name in FLEET.calls
        }

    def call(self, name: str, request: Any, headers: Headers, timeout_s: float | None) -> Any:
        """As `Transport.call`."""
        try:
            return self._calls[name](request, timeout=timeout_s, metadata=list(headers.items()))
        except grpc.RpcError as err:
            raise CallError(err.code(), str(err.details())) from err
        except ValueError as err:  # the channel is closed
            raise CallError(S.CANCELLED, str(err)) from err

    def close(self) -> None:
        """As `Transport.close`."""
        self._channel.close()


class HttpTransport:
    """Protobufs over HTTP; the arguments are those of `GrpcTransport`."""

    def __init__(self, address: str, authority: bytes, name: str = "") -> None:
        context = ssl.create_default_context(cadata=authority.decode("ascii"))
        self._client = httpx.Client(base_url=f"https://{address}", verify=context, trust_env=False)
        self._extensions = {"sni_hostname": name} if name else {}

    def call(self, name: str, request: Any, headers: Headers, timeout_s: float | None) -> Any:
        """As `Transport.call`."""
        given = {
            key.removesuffix("-bin"): b64encode(value).decode("ascii") if isinstance(value, bytes) else value
            for key, value in headers.items()
        }
        answer = FLEET.answer(name)
        try:
            got = self._client.post(
                FLEET.http_path(name),
                content=request.SerializeToString(),
                headers=given | {"content-type": TYPE, "accept": TYPE},
                timeout=timeout_s,
                extensions=self._extensions,
            )
        except httpx.TimeoutException as err:
            raise CallError(S.DEADLINE_EXCEEDED, str(err)) from err
        except (httpx.TransportError, RuntimeError) as err:  # RuntimeError: it is closed
            raise CallError(S.UNAVAILABLE, str(err)) from err
        if not got.is_success:
            raise CallError(STATUSES.get(got.status_code, S.UNIMPLEMENTED), got.text[:1000])
        try:
            answer.ParseFromString(got.content)
        except DecodeError as err:
            raise CallError(S.INTERNAL, f"the answer to {name} cannot be read: {err}") from err
        return answer

    def close(self) -> None:
        """As `Transport.close`."""
        self._client.close()


TRANSPORTS: dict[str, type[GrpcTransport] | type[HttpTransport]] = {
    "grpc": GrpcTransport,
    "http": HttpTransport,
}
