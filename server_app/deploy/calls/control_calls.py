"""The calls of Flower's Control API as protobufs over HTTP, as Flower's own commands make them."""

import hashlib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from google.protobuf.message import DecodeError

from server_app.deploy.calls.fleet_transport import TYPE
from server_app.deploy.calls.protocol import read_keys
from task import timing
from task.errors import ConfigError, UnreachableError
from task.flower.services import CONTROL

STREAM = "application/flower-protobuf-stream"
MOST_OF_A_FRAME = 16 * 1024**2  # bytes
UNAUTHORIZED = 401  # the link and its SuperLink read different secrets: a restart repairs it


class LinkError(UnreachableError):
    """The SuperLink does not answer, or refuses a call.

    Args:
        message: The whole sentence.
        answered: Whether it answered.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


def read_request(name: str, body: bytes) -> Any:
    """Return a request that was received.

    Raises:
        ConfigError: It is none of this call.
    """
    try:
        return CONTROL.request_type(name).FromString(body)
    except DecodeError as err:
        raise ConfigError(f"expected the request of {name}; got {err}") from None


def read_start(body: bytes) -> tuple[bytes, dict[str, bool | int | float | str]]:
    """Return an app's bundle and the run-config keys of a request to start a run.

    Raises:
        ConfigError: It is none, or asks for more than a run of this bundle with these keys.
    """
    request = read_request("StartRun", body)
    more = {field.name for field, _ in request.ListFields()} - {"fab", "override_config"}
    if more:
        raise ConfigError(
            f"expected an app's folder and -c KEYS, which is all that a link starts a run from; got "
            f"{', '.join(sorted(more)).replace('_', '-')} too"
        )
    try:
        return bytes(request.fab.content), read_keys(request.override_config)
    except ValueError as err:
        raise ConfigError(str(err)) from None


def scalar(value: bool | int | float | str) -> dict[str, Any]:
    """Return the field of a protobuf that has a run-config key's value."""
    kinds = {bool: "bool", int: "sint64", float: "double", str: "string"}
    return {kinds[type(value)]: value}


def framed(message: bytes) -> bytes:
    """Return a message of a stream as it is sent: its length in four bytes, then itself."""
    return len(message).to_bytes(4, "big") + message


class Frames:
    """Takes a stream apart into its messages."""

    def __init__(self) -> None:
        self._left = bytearray()

    def read(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the messages that end in a chunk.

        Raises:
            DecodeError: A message is longer than any of a log.
        """
        self._left += chunk
        while len(self._left) >= 4:
            size = int.from_bytes(self._left[:4], "big")
            if size > MOST_OF_A_FRAME:
                raise DecodeError(f"expected messages of {MOST_OF_A_FRAME} bytes at most; got one of {size}")
            if len(self._left) < 4 + size:
                return
            yield bytes(self._left[4 : 4 + size])
            del self._left[: 4 + size]


class Calls:
    """Calls of one Control API, over TLS.

    Args:
        address: HOST:PORT.
        authority: File of the certificate of the authority that vouches for the server, PEM.
        token: What the caller shows.
        timeout_s: How long to wait for an answer.
    """

    def __init__(self, address: str, authority: Path, token: str, timeout_s: float) -> None:
        self.url = f"https://{address}"
        self._client = httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=timeout_s,
            limits=httpx.Limits(keepalive_expiry=timing.KEPT_S),
            headers={"authorization": f"Bearer {token}", "content-type": TYPE, "accept": TYPE},
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __call__(self, name: str, /, **fields: Any) -> Any:
        """Make one call with these fields of its request; return the answer.

        Raises:
            LinkError: The server does not answer, or refuses the call.
        """
        content = CONTROL.request(name, **fields).SerializeToString()
        with self._named():
            got = self._client.post(CONTROL.http_path(name), content=content).raise_for_status()
            return CONTROL.answer_type(name).FromString(got.content)

    def stream(self, name: str, /, **fields: Any) -> Iterator[Any]:
        """Make one call; yield its answers as they come, until the server ends them.

        Raises:
            LinkError: The server does not answer, refuses the call, or breaks off.
        """
        content = CONTROL.request(name, **fields).SerializeToString()
        waits = httpx.Timeout(self._client.timeout.connect, read=None)
        with (
            self._named(),
            self._client.stream(
                "POST", CONTROL.http_path(name), content=content, timeout=waits, headers={"accept": STREAM}
            ) as got,
        ):
            if got.is_error:
                got.read()
            got.raise_for_status()
            frames = Frames()
            for chunk in got.iter_bytes():
                for frame in frames.read(chunk):
                    yield CONTROL.answer_type(name).FromString(frame)

    def fetch(self, path: str) -> Iterator[bytes]:
        """Yield what is at another path of the server, in pieces.

        Raises:
            LinkError: The server does not answer, or has nothing there.
        """
        with self._named(), self._client.stream("GET", path, headers={"accept": "*/*"}) as got:
            if got.is_error:
                got.read()
            yield from got.raise_for_status().iter_bytes()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn errors of a call into `LinkError`."""
        try:
            yield
        except httpx.HTTPStatusError as err:
            text = err.response.text.strip()[:500]
            raise LinkError(
                f"the SuperLink at {self.url} answered {err.response.status_code}: {text or 'no details'}",
                answered=err.response.status_code < 500 and err.response.status_code != UNAUTHORIZED,
            ) from None
        except (httpx.HTTPError, DecodeError, OSError) as err:
            raise LinkError(
                f"the SuperLink at {self.url}: expected an answer; got {type(err).__name__}: {err}. "
                "Is `bouquet link` running?"
            ) from None


def start(calls: Calls, fab: bytes, keys: Mapping[str, bool | int | float | str]) -> int:
    """Start a run of an app; return its number.

    Raises:
        ConfigError: The app's bundle is too large.
        LinkError: The SuperLink does not answer, or refuses the run.
    """
    bundle = {"hash_str": hashlib.sha256(fab).hexdigest(), "content": fab}
    answer = calls("StartRun", fab=bundle, override_config={k: scalar(v) for k, v in keys.items()})
    if not answer.HasField("run_id"):
        raise ConfigError(f"the SuperLink did not accept the run: its app is too large, {len(fab)} bytes")
    return int(answer.run_id)
