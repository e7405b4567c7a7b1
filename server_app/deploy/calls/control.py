"""What a link asks its SuperLink: nodes and runs. Each call has the proof of the link's secret."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from server_app.deploy.calls.control_calls import Calls, LinkError, start
from server_app.deploy.kits.kit import LinkKit, proof
from task import timing
from task.errors import ConfigError

UNREGISTERED = "unregistered"
RECENT = 50  # runs to search


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


class Control:
    """The Control API of one SuperLink, for its own link.

    Args:
        kit: The SuperLink's.
        timeout_s: How long to wait for an answer.
    """

    def __init__(self, kit: LinkKit, timeout_s: float = timing.CONTROL_S) -> None:
        self.calls = Calls(kit.control, kit.ca_certificate, proof(kit.secret.read_bytes()), timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self.calls.close()

    def nodes(self) -> list[NodeState]:
        """Return all nodes that were ever registered.

        Raises:
            LinkError: The SuperLink does not answer.
        """
        return [
            NodeState(
                node.node_id, node.name, node.public_key, node.status != UNREGISTERED,
                node.status == "online",
                node.online_until - 2 * node.heartbeat_interval if node.HasField("online_until") else None,
            )
            for node in self.calls("ListNodes").nodes_info
        ]  # fmt: skip

    def register(self, name: str, key: bytes) -> int:
        """Let a node join; return its number.

        Args:
            name: Its name.
            key: Its public key, PEM.

        Raises:
            LinkError: The key was registered before, or the SuperLink does not answer.
        """
        return int(self.calls("RegisterNode", public_key=key, name=name).node_id)

    def unregister(self, node: int) -> None:
        """Unregister a node: it may no longer join.

        Raises:
            LinkError: There is no such node, or the SuperLink does not answer.
        """
        self.calls("UnregisterNode", node_id=node)

    def start(self, fab: bytes, keys: Mapping[str, bool | int | float | str]) -> int:
        """Start a run of the app; return its number.

        Args:
            fab: The app's bundle.
            keys: Run-config keys.

        Raises:
            ConfigError: A key is not one of the app's.
            LinkError: The SuperLink does not answer.
        """
        try:
            return start(self.calls, fab, keys)
        except LinkError as err:
            if err.answered:
                raise ConfigError(f"the SuperLink did not accept the run: {err}") from None
            raise

    def run(self, run: int) -> RunState | None:
        """Return the state of a run; None if the SuperLink does not know it.

        Raises:
            LinkError: The SuperLink does not answer.
        """
        try:
            response = self.calls("ListRuns", run_id=run)
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
        response = self.calls("ListRuns", limit=RECENT)
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
            self.calls("StopRun", run_id=run)


def public_key(path: Path) -> bytes:
    """Return the public key of a file, one line of OpenSSH, as PEM: as the SuperLink knows it.

    Raises:
        ConfigError: It holds none.
    """
    try:
        key = load_ssh_public_key(path.read_bytes())
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except (OSError, ValueError, AttributeError, UnsupportedAlgorithm) as err:
        raise ConfigError(
            f"{path}: expected a node's public key, one line of OpenSSH; got {type(err).__name__}: {err}"
        ) from None
