"""Identities of a node's tasks in secure aggregation (`task.secagg.identity`).

A task gets a key of its run alone: the node's long-term key stays in the process that keeps the connection.
"""

from collections import OrderedDict

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from server_app.deploy.kits.kit import NodeKit
from task.secagg.identity import AUTHORITY, CERTIFICATE, RUN_KEY, SIGNATURE, Identity

RUNS = 16  # whose keys are held


class Identities:
    """The node's identity in each run."""

    def __init__(self, kit: NodeKit) -> None:
        self._kit = kit
        self._runs: OrderedDict[int, Identity] = OrderedDict()

    def of(self, run: int) -> dict[str, str]:
        """Return what is added to the node config of a run's tasks; nothing if the kit has no certificate."""
        if not self._kit.certificate.is_file():
            return {}
        if run not in self._runs:
            key = load_ssh_private_key(self._kit.key.read_bytes(), password=None)
            assert isinstance(key, EllipticCurvePrivateKey)  # else the node would not be connected
            self._runs[run] = Identity.of(self._kit.certificate.read_bytes(), key, run)
            while len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        mine = self._runs[run]
        return {
            AUTHORITY: self._kit.ca_certificate.read_text("ascii"),
            CERTIFICATE: mine.certificate.decode("ascii"),
            RUN_KEY: mine.key.hex(),
            SIGNATURE: mine.signature.hex(),
        }
