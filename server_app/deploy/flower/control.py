"""A client of the SuperLink's Control API: runs and nodes. Each call proves the secret of the link's kit."""

import hashlib
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from server_app.deploy.flower.retries import keep_connection
from server_app.deploy.kits.kit import LinkKit, proof
from task import timing
from task.errors import ConfigError, UnreachableError

UNAUTHORIZED = 401  # the link and its SuperLink read different secrets: a restart repairs it
UNREGISTERED = "unregistered"
RECENT = 50  # runs to look through
T = TypeVar("T")


class LinkError(UnreachableError):
    """The SuperLink does not answer, or refuses a call.

    Args:
        message: The whole sentence.
        answered: Whether it answered.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


@dataclass(frozen=True)
class NodeState:
    """What the SuperLink knows of a node.

    Attributes:
        id: Its number at the SuperLink.
        name: As it was registered.
        key: Its public key, PEM.
        registered: Whether it may join; a key that no longer may can never be registered again.
        online: Whether it is online.
        last_seen: When its last heartbeat came, seconds since 1970; None if none did.
    """

    id: int
    name: str
    key: bytes
    registered: bool
    online: bool
    last_seen: float | None


@dataclass(frozen=True)
class RunState:
    """The state of a run of Flower's.

    Attributes:
        status: "pending", "starting", "running" or "finished".
        how: Of a finished one: "completed", "failed" or "stopped".
        details: Why it failed.
    """

    status: str
    how: str = ""
    details: str = ""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.status == "finished"


class _Proof:
    """Adds the proof of the kit's secret to each call."""

    def __init__(self, secret: bytes) -> None:
        self._header = {"Authorization": f"Bearer {proof(secret)}"}

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self._header)
        return call_next(context)


class Control:
    """The Control API of one SuperLink, over TLS.

    Args:
        kit: The SuperLink's.
        timeout_s: How long to wait for an answer.
    """

    def __init__(self, kit: LinkKit, timeout_s: float = timing.CONTROL_S) -> None:
        context = ssl.create_default_context(cafile=str(kit.ca_certificate))
        self._url = f"https://{kit.control}"
        proofs = [_Proof(kit.secret.read_bytes())]
        self._client = ControlHttpClient(self._url, interceptors=proofs)
        keep_connection(self._client, context, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def nodes(self) -> list[NodeState]:
        """Return all nodes that were ever registered.

        Raises:
            LinkError: The SuperLink does not answer.
        """
        response = self._ask(lambda: self._client.ListNodes(ListNodesRequest()))
        return [
            NodeState(
                node.node_id, node.name, node.public_key, node.status != UNREGISTERED,
                node.status == "online",
                node.online_until - 2 * node.heartbeat_interval if node.HasField("online_until") else None,
            )
            for node in response.nodes_info
        ]  # fmt: skip

    def register(self, name: str, key: bytes) -> int:
        """Let a node join; return its number.

        Args:
            name: Its name.
            key: Its public key, PEM.

        Raises:
            LinkError: The key was registered before, or the SuperLink does not answer.
        """
        request = RegisterNodeRequest(public_key=key, name=name)
        return int(self._ask(lambda: self._client.RegisterNode(request)).node_id)

    def unregister(self, node: int) -> None:
        """Unregister a node: it may no longer join.

        Raises:
            LinkError: There is no such node, or the SuperLink does not answer.
        """
        self._ask(lambda: self._client.UnregisterNode(UnregisterNodeRequest(node_id=node)))

    def start(self, fab: bytes, keys: Mapping[str, bool | int | float | str]) -> int:
        """Start a run of the app; return its number.

        Args:
            fab: The app's bundle.
            keys: Run-config keys.

        Raises:
            ConfigError: A key is not one of the app's.
            LinkError: The SuperLink does not answer.
        """
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})),
            override_config=user_config_to_proto(dict(keys)),
        )
        try:
            response = self._ask(lambda: self._client.StartRun(request))
        except LinkError as err:
            if err.answered:
                raise ConfigError(f"the SuperLink did not accept the run: {err}") from None
            raise
        if not response.HasField("run_id"):
            raise ConfigError(f"the SuperLink did not accept the run: its app is too large, {len(fab)} bytes")
        return int(response.run_id)

    def run(self, run: int) -> RunState | None:
        """Return the state of a run; None if the SuperLink does not know it.

        Raises:
            LinkError: The SuperLink does not answer.
        """
        try:
            response = self._ask(lambda: self._client.ListRuns(ListRunsRequest(run_id=run)))
        except LinkError as err:
            if err.answered and "404" in str(err):
                return None
            raise
        if run not in response.run_dict:
            return None
        status = response.run_dict[run].status
        return RunState(status.status, status.sub_status, status.details)

    def unfinished(self, name: str, runs_dir: str) -> list[int]:
        """Return the unfinished runs of one result folder.

        Raises:
            LinkError: The SuperLink does not answer.
        """
        response = self._ask(lambda: self._client.ListRuns(ListRunsRequest(limit=RECENT)))
        wanted = {"run-name": name, "runs-dir": runs_dir}
        return [
            number
            for number, run in response.run_dict.items()
            if run.status.status != "finished"
            and all(run.override_config[k].string == v for k, v in wanted.items() if k in run.override_config)
            and wanted.keys() <= run.override_config.keys()
        ]

    def stop(self, run: int) -> None:
        """Stop a run, if it has not ended."""
        with suppress(LinkError):
            self._ask(lambda: self._client.StopRun(StopRunRequest(run_id=run)))

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except httpx.HTTPStatusError as err:
            text = err.response.text.strip()[:500]
            raise LinkError(
                f"the SuperLink at {self._url} answered {err.response.status_code}: {text or 'no details'}",
                answered=err.response.status_code < 500 and err.response.status_code != UNAUTHORIZED,
            ) from None
        except (httpx.HTTPError, ValueError, OSError) as err:
            raise LinkError(
                f"the SuperLink at {self._url}: expected an answer; got {type(err).__name__}: {err}. "
                "Is `bouquet link` running?"
            ) from None


def public_key(path: Path) -> bytes:
    """Return the public key of a file, one line of OpenSSH, as PEM: as the SuperLink knows it.

    Raises:
        ConfigError: It holds none.
    """
    try:
        key = load_ssh_public_key(path.read_bytes())
        return public_key_to_bytes(key)  # type: ignore[arg-type]
    except (OSError, ValueError, AttributeError) as err:
        raise ConfigError(
            f"{path}: expected a node's public key, one line of OpenSSH; got {type(err).__name__}: {err}"
        ) from None
