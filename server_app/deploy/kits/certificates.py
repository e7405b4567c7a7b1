"""Keys and certificates of a federation: its authority, the SuperLink's certificate, the nodes' key pairs.

Keys are ECDSA P-384, but a node's is P-256: it signs each call, and a link checks that seven times faster.
"""

import base64
import datetime as dt
import hashlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from task.errors import ConfigError

AUTHORITY_DAYS = 3650  # at least; always a year more than the first certificate of the SuperLink
SKEW = dt.timedelta(days=1)  # tolerance for slow clocks of nodes: small boards often have no battery
WARN_DAYS = 30  # warn of a certificate that expires sooner
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Finding:
    """A certificate that has expired or soon will."""

    fatal: bool  # whether the certificate can no longer be used
    text: str


def now() -> dt.datetime:
    """Return the time in UTC and whole seconds, as in certificates."""
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def make_authority(days: int) -> tuple[bytes, bytes]:
    """Make a certificate authority; return its private key and its certificate, PEM.

    `days` is for how long the first certificate that it signs is to be valid.
    """
    key = make_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bouquet federation authority")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = _signed(
        subject, subject, key.public_key(), key, max(AUTHORITY_DAYS, days + 365),
        x509.BasicConstraints(ca=True, path_length=0),
        _usage(sign_certificates=True),
        identifier,
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
    )  # fmt: skip
    return private_pem(key), certificate


def make_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key."""
    return ec.generate_private_key(ec.SECP384R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM (PKCS 8), as TLS servers read it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_server_certificate(
    authority_key: bytes, authority: bytes, server_key: bytes, host: str, days: int
) -> bytes:
    """Sign a certificate for a server that clients reach as `host`, and as localhost on its own machine.

    All keys and certificates are PEM; `host` is a name or an IP address, and what is returned is valid for
    `days`.

    Raises:
        ConfigError: The authority's key does not match its certificate, or the new certificate would outlive
            it.
    """
    issuer, signer = _authority(authority_key, authority)
    key = serialization.load_pem_private_key(server_key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("server.key: expected an elliptic curve key, as `bouquet provision` makes it")
    left = (issuer.not_valid_after_utc - now()).days
    if days > left:
        raise ConfigError(
            f"--days: expected at most {max(left, 0)}, as the authority's certificate expires then; "
            f"got {days}. For longer, provision into another folder"
        )
    names = [_general_name(name) for name in dict.fromkeys((host, *LOCAL_NAMES))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bouquet SuperLink")])
    return _signed(
        subject, issuer.subject, key.public_key(), signer, days,
        x509.SubjectAlternativeName(names),
        x509.BasicConstraints(ca=False, path_length=None),
        _usage(sign_certificates=False),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )  # fmt: skip


def make_node_keys(name: str) -> tuple[bytes, bytes]:
    """Make the key pair of a node, as Flower's SuperNode and its ``supernode register`` read them.

    The private key is OpenSSH's PEM, the public one a line of OpenSSH with the node's name as its comment.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {name}\n".encode()


def make_node_certificate(authority_key: bytes, authority: bytes, public: bytes, name: str) -> bytes:
    """Sign a certificate of a node's key, by which other nodes know it; it ends with the authority's.

    `authority` is the authority's certificate, PEM, `public` the node's key as `make_node_keys` returns it.

    Raises:
        ConfigError: The authority's key does not match its certificate.
    """
    issuer, signer = _authority(authority_key, authority)
    key = serialization.load_ssh_public_key(public)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return _signed(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), issuer.subject, key, signer,
        max((issuer.not_valid_after_utc - now()).days, 0),
        x509.BasicConstraints(ca=False, path_length=None),
        _usage(sign_certificates=False),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    )  # fmt: skip


def node_fingerprint(public: bytes) -> str:
    """Return the fingerprint of a node's public key, as ``ssh-keygen -lf node.pub`` shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def certificate_facts(pem: bytes) -> dict[str, str]:
    """Return a certificate's fingerprint and its last moment.

    The fingerprint is what ``openssl x509 -noout -fingerprint -sha256 -in FILE`` shows.
    """
    certificate = x509.load_pem_x509_certificate(pem)
    return {
        "fingerprint": certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        "expires": certificate.not_valid_after_utc.isoformat(),
    }


def ends_when(what: str, pem: bytes) -> tuple[Finding, ...]:
    """Report a certificate that has expired or will within `WARN_DAYS`."""
    ends = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    left = ends - now()
    if left >= dt.timedelta(days=WARN_DAYS):
        return ()
    day = f"{ends:%Y-%m-%d %H:%M} UTC"
    if left <= dt.timedelta():
        return (Finding(True, f"{what} expired on {day}"),)
    return (Finding(False, f"{what} expires on {day}, in {left.days} days"),)


def kit_findings(kit: Path) -> tuple[Finding, ...]:
    """Report the certificates of a kit that have expired or soon will, and what to do."""
    cures = {
        "server.crt": "Run bouquet provision --out DIR --renew, copy server.crt to the link, restart it",
        "ca.crt": "Provision into another folder, and give the link and all nodes their new kits",
    }
    found = []
    for name, cure in cures.items():
        path = kit / name
        try:
            ends = ends_when(str(path), path.read_bytes())
        except FileNotFoundError:  # only a link has a certificate of its own
            continue
        except ValueError:
            ends = (Finding(True, f"{path}: expected a certificate; got a damaged file"),)
        found += [Finding(finding.fatal, f"{finding.text}. {cure}") for finding in ends]
    return tuple(found)


def check_kit(kit: Path) -> tuple[str, ...]:
    """Return warnings about certificates that soon expire.

    Raises:
        ConfigError: One has expired.
    """
    found = kit_findings(kit)
    if ended := [finding.text for finding in found if finding.fatal]:
        raise ConfigError("; ".join(ended))
    return tuple(finding.text for finding in found)


def _authority(key: bytes, certificate: bytes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority's certificate and the key that signs for it, both given as PEM.

    Raises:
        ConfigError: They do not match.
    """
    issuer = x509.load_pem_x509_certificate(certificate)
    signer = serialization.load_pem_private_key(key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise ConfigError(
            "ca.key: expected the private key of ca.crt; got another one. Restore the folder ca"
        )
    return issuer, signer


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: x509.ExtensionType,
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - SKEW)
        .not_valid_after(now() + dt.timedelta(days=days))
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
