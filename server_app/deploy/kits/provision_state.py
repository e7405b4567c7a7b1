"""``provision.json``: the record of a folder of kits."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.deploy.kits import certificates
from server_app.deploy.kits.kit import read_link_kit
from task.errors import ConfigError
from task.storage.files import write_json

RECORD = "provision.json"


@dataclass
class ProvisionState:
    """What a folder of kits holds."""

    out: Path
    link: str  # HOST:PORT of the SuperLink
    # By name: ``fingerprint`` of the public key, ``created``, ``revoked`` (a time or none), and ``earlier``,
    # the same for the name's earlier keys.
    nodes: dict[str, dict[str, Any]]
    submitters: dict[str, dict[str, Any]]  # the same of submitters

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """Nodes and submitters, whose names differ."""
        return self.nodes | self.submitters

    def revoked(self, name: str) -> bool:
        """Return whether the newest key of a node or submitter is revoked."""
        return bool(self.members[name]["revoked"])

    def save(self) -> None:
        """Write the record, unless the file is equal already."""
        link = self.out / "link"
        table = {
            "link": self.link,
            "ca": certificates.certificate_facts((link / "ca.crt").read_bytes()),
            "server": certificates.certificate_facts((link / "server.crt").read_bytes()),
            "nodes": self.nodes,
            **({"submitters": self.submitters} if self.submitters else {}),
        }
        path = self.out / RECORD
        if not path.exists() or json.loads(path.read_text(encoding="utf-8")) != table:
            write_json(path, table)


def read_state(out: Path, link: str) -> ProvisionState:
    """Read the record of a folder.

    `link` is HOST:PORT, for a folder without a record.

    Raises:
        ConfigError: The record is damaged, the SuperLink's kit is missing, or there is neither a record nor
            an address.
    """
    path, kit = out / RECORD, out / "link"
    if not path.exists():
        # A command that was killed early can leave the kit without its record.
        link = read_link_kit(kit).address if kit.exists() else link
        if not link:
            raise ConfigError(
                "--address: expected HOST:PORT, where nodes reach the SuperLink; got none, and no "
                f"earlier command made kits in --out {out}"
            )
        return ProvisionState(out, link, {}, {})
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        record = ProvisionState(out, table["link"], table["nodes"], table.get("submitters", {}))
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path}: expected a file of `bouquet provision`; got a damaged one. Restore a copy, or "
            "provision into another folder"
        ) from None
    if not kit.exists():
        raise ConfigError(
            f"{kit}: expected the SuperLink's kit; got none. A copy must stay here, as the public keys of "
            "the nodes are added to it"
        )
    return record
