"""Build the folders that ``bouquet provision`` makes, whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from server_app.deploy.kits import certificates, templates
from server_app.deploy.kits.kit import SECRET_BYTES
from server_app.deploy.kits.kitfiles import making, write_new
from server_app.deploy.kits.parsing import read_address
from task.errors import ConfigError
from task.storage.files import make_folder


def build_authority(folder: Path, days: int) -> None:
    """Make the folder of the authority.

    Args:
        folder: Where; it must not be there.
        days: For how long the first certificate that it signs is to be good.
    """
    with making(folder) as temp:
        key, certificate = certificates.make_authority(days)
        write_new(temp / "ca.key", key)
        write_new(temp / "ca.crt", certificate)


def build_link(folder: Path, authority: Path, link: str, days: int) -> None:
    """Make the SuperLink's kit, with no nodes.

    Args:
        folder: Where; it must not be there.
        authority: Folder of the authority.
        link: HOST:PORT by which nodes reach the SuperLink.
        days: For how long its certificate is to be good.

    Raises:
        ConfigError: The authority cannot sign.
    """
    with making(folder) as temp:
        for name, text in templates.link_texts(link).items():
            write_new(temp / name, text.encode())
        key = certificates.private_pem(certificates.make_key())
        write_new(temp / "ca.crt", (authority / "ca.crt").read_bytes())
        write_new(temp / "server.key", key)
        write_new(temp / "server.crt", sign(authority, authority / "ca.crt", key, link, days))
        write_new(temp / "superexec.secret", secrets.token_bytes(SECRET_BYTES))
        for sub in ("nodes", "revoked"):
            make_folder(temp / sub)


def build_node(folder: Path, link: str, authority_certificate: bytes) -> None:
    """Make a node's kit, with a new key.

    Args:
        folder: Where; it must not be there, and its name is the node's.
        link: HOST:PORT of the SuperLink.
        authority_certificate: PEM.
    """
    with making(folder) as temp:
        private, public = certificates.make_node_keys(folder.name)
        for name, text in templates.node_texts(folder.name, link).items():
            write_new(temp / name, text.encode())
        write_new(temp / "ca.crt", authority_certificate)
        write_new(temp / "node.key", private)
        write_new(temp / "node.pub", public)
        write_new(temp / "superexec.secret", secrets.token_bytes(SECRET_BYTES))


def sign(authority: Path, authority_certificate: Path, server_key: bytes, link: str, days: int) -> bytes:
    """Return a certificate of the SuperLink.

    Args:
        authority: Folder of the authority, for its key.
        authority_certificate: The certificate that the nodes trust.
        server_key: The SuperLink's private key, PEM.
        link: HOST:PORT by which nodes reach it.
        days: For how long the certificate is to be good.

    Raises:
        ConfigError: The authority's key is not there or not that of its certificate, or its certificate
            ends sooner.
    """
    signer = authority / "ca.key"
    if not signer.is_file():
        raise ConfigError(
            f"{signer}: expected the authority's key, to sign; got none. Bring back the folder ca"
        )
    host, _ = read_address(link, "--link")
    return certificates.make_server_certificate(
        signer.read_bytes(), authority_certificate.read_bytes(), server_key, host, days
    )
