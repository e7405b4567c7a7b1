"""Build the folders that ``bouquet provision`` makes, whole or not at all."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from server_app.deploy.kits import certificates, templates
from server_app.deploy.kits.kit import SECRET_BYTES
from server_app.deploy.kits.kitfiles import MAKING
from server_app.deploy.kits.parsing import read_address
from task.errors import ConfigError
from task.storage.files import building, make_folder, synced


def build_authority(folder: Path, days: int) -> None:
    """Make the folder of the authority, which must not exist.

    `days` is for how long the first certificate that it signs is to be valid.
    """
    key, certificate = certificates.make_authority(days)
    _build(folder, {"ca.key": key, "ca.crt": certificate})


def build_link(folder: Path, authority: Path, link: str, days: int) -> None:
    """Make the SuperLink's kit, with no nodes, in a folder that must not exist.

    `link` is HOST:PORT by which nodes reach it, and its certificate is valid for `days`.

    Raises:
        ConfigError: The authority cannot sign.
    """
    key = certificates.private_pem(certificates.make_key())
    files = {
        "ca.crt": (authority / "ca.crt").read_bytes(),
        "server.key": key,
        "server.crt": sign(authority, authority / "ca.crt", key, link, days),
    }
    files["superexec.secret"] = secrets.token_bytes(SECRET_BYTES)
    _build(folder, {**templates.link_texts(link), **files}, "nodes", "submitters", "revoked")


def build_node(folder: Path, link: str, authority_certificate: bytes) -> None:
    """Make a node's kit, with a new key, in a folder that must not exist and has the node's name.

    `link` is HOST:PORT of the SuperLink, the certificate PEM.
    """
    private, public = certificates.make_node_keys(folder.name)
    files = {"ca.crt": authority_certificate, "node.key": private, "node.pub": public}
    _build(folder, {**templates.node_texts(folder.name, link), **files})


def build_submitter(folder: Path, link: str, authority_certificate: bytes) -> None:
    """Make a submitter's kit, with a new secret, in a folder that must not exist and has that name.

    `link` is HOST:PORT of the link's port for submitters, the certificate PEM.
    """
    files = {"ca.crt": authority_certificate, "submitter.secret": secrets.token_bytes(SECRET_BYTES)}
    _build(folder, {**templates.submitter_texts(folder.name, link), **files})


def sign(authority: Path, authority_certificate: Path, server_key: bytes, link: str, days: int) -> bytes:
    """Return a certificate of the SuperLink.

    `link` is HOST:PORT by which nodes reach it, `server_key` its private key, PEM.

    Raises:
        ConfigError: The authority's key is missing or not that of its certificate, or its certificate ends
            sooner.
    """
    signer = authority / "ca.key"
    if not signer.is_file():
        raise ConfigError(f"{signer}: expected the authority's key, to sign; got none. Restore the folder ca")
    host, _ = read_address(link, "--address")
    return certificates.make_server_certificate(
        signer.read_bytes(), authority_certificate.read_bytes(), server_key, host, days
    )


def _build(folder: Path, files: Mapping[str, str | bytes], *folders: str) -> None:
    with building(folder, MAKING) as temp:
        for name, data in files.items():
            with synced(temp / name) as file:
                file.write(data.encode() if isinstance(data, str) else data)
        for name in folders:
            make_folder(temp / name)
