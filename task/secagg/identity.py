"""Proofs that a round's keys belong to nodes of the federation, so that a server cannot invent nodes.

The federation's authority signs a certificate of each node's long-term key; the node signs a key of its own
for each run; that signs the keys of each round, or what parties with different columns send each other. A
node shows all three as the proof of its public keys, and every other node checks it with the authority's
certificate, which all kits have. The authority's key stays with the person who provisions: neither the server
nor a node has it.

It does not guarantee that a node was not revoked, as nodes are not informed: a server that works with the
holder of a revoked kit has one node more on its side.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from task.errors import SecureAggregationError
from task.secagg.primitives import encode
from task.secagg.protocol import PROTOCOL, PublicKeys, Roster, Session

# Keys of the node config: the certificates of the federation's authority and of this node, PEM; this node's
# key of the run and the long-term key's signature of it, hexadecimal; whether the owner allows runs without
# proofs, or no run without secure aggregation.
AUTHORITY, CERTIFICATE, RUN_KEY, SIGNATURE = (
    f"secagg-{name}" for name in ("authority", "certificate", "key", "signature")
)
UNVERIFIED, REQUIRED = "secagg-unverified", "secagg-required"

_PARTS = 4  # of a proof: certificate, key of the run, the node's signature of it, its signature of the keys
_SIZE = 4  # bytes of a part's length


@dataclass(frozen=True)
class Endorsement:
    """A proof that a key of one run belongs to a node of the federation."""

    certificate: bytes  # of the node's long-term key, PEM
    signature: bytes  # of the run's public key, by the long-term key
    run: int  # Flower's id

    def fields(self) -> dict[str, str]:
        """Return it as texts."""
        certificate = self.certificate.decode("ascii")
        return {"certificate": certificate, "endorsement": self.signature.hex(), "session": str(self.run)}

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> "Endorsement | None":
        """Return that of `fields`, None if there is none; raises KeyError or ValueError for half of one."""
        if "certificate" not in fields:
            return None
        signature = bytes.fromhex(fields["endorsement"])
        return cls(fields["certificate"].encode("ascii"), signature, int(fields["session"]))

    @property
    def name(self) -> str:
        """Name of the node that the certificate says; raises ValueError if it is none."""
        return ", ".join(_names(x509.load_pem_x509_certificate(self.certificate)))

    def check(self, authority: bytes, name: str, public: bytes) -> None:
        """Refuse a key that is not of the node of that name; `authority` is as of `check_proofs`.

        Raises:
            SecureAggregationError: Naming the node.
        """
        with _of_node(name):
            signer = x509.load_pem_x509_certificate(authority)
            _check_key(signer, self.run, name, self.certificate, public, self.signature)


@dataclass(frozen=True)
class Identity:
    """A node's credentials for proving its keys in one run."""

    certificate: bytes  # of its long-term key, PEM
    key: bytes = field(repr=False)  # private Ed25519 key of the run
    signature: bytes = b""  # of that key's public half, by the long-term key

    @classmethod
    def of(cls, certificate: bytes, key: EllipticCurvePrivateKey, run: int) -> "Identity":
        """Return a new one for a run, by Flower's id; `key` is the node's long-term key."""
        made = Ed25519PrivateKey.generate()
        public = made.public_key().public_bytes_raw()
        return cls(certificate, made.private_bytes_raw(), key.sign(_run_key(run, public), ECDSA(SHA384())))

    def prove(self, session: Session, keys: PublicKeys) -> PublicKeys:
        """Return a round's keys with their proof."""
        return PublicKeys(keys.sealing, keys.masking, self.proof(_round_keys(session, keys)))

    def proof(self, message: bytes) -> bytes:
        """Return what proves that a message is of this node."""
        key = Ed25519PrivateKey.from_private_bytes(self.key)
        public = key.public_key().public_bytes_raw()
        parts = (self.certificate, public, self.signature, key.sign(message))
        return b"".join(len(part).to_bytes(_SIZE, "big") + part for part in parts)


def identity_in(node_config: Mapping[str, object]) -> Identity | None:
    """Return what a node config says that the node proves itself with; None if it cannot."""
    certificate, key, signature = (str(node_config.get(k, "")) for k in (CERTIFICATE, RUN_KEY, SIGNATURE))
    if not (certificate and key and signature):
        return None
    return Identity(certificate.encode(), bytes.fromhex(key), bytes.fromhex(signature))


def check_proofs(authority: bytes, run: int, session: Session, roster: Roster) -> None:
    """Refuse a roster in which one node's keys are not of the node of that name.

    `authority` is the certificate of the federation's authority, PEM.

    Raises:
        SecureAggregationError: Naming the node.
    """
    for name in roster.names:
        keys = roster.keys[name]
        check_proof(authority, run, name, _round_keys(session, keys), keys.proof)


def check_proof(authority: bytes, run: int, name: str, message: bytes, proof: bytes) -> None:
    """Refuse a message that is not of the node of that name; see `Identity.proof` and `check_proofs`.

    Raises:
        SecureAggregationError: Naming the node.
    """
    with _of_node(name):
        certificate, public, signature, signed = _parts(proof)
        _check_key(x509.load_pem_x509_certificate(authority), run, name, certificate, public, signature)
        Ed25519PublicKey.from_public_bytes(public).verify(signed, message)


@contextmanager
def _of_node(name: str) -> Iterator[None]:
    """Name the node whose proof is not valid in the block."""
    try:
        yield
    except (
        InvalidSignature,
        UnsupportedAlgorithm,
        ValueError,
        TypeError,
        x509.ExtensionNotFound,
    ) as err:
        why = str(err) or "a signature that is not valid"
        raise SecureAggregationError(
            f"node {name}: expected keys that the node of that name has signed, with the certificate "
            f"in its kit (node.crt); got {why}"
        ) from None


def _names(certificate: x509.Certificate) -> list[str]:
    return [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _check_key(
    signer: x509.Certificate, run: int, name: str, pem: bytes, public: bytes, signature: bytes
) -> None:
    """Check a node's certificate, and its signature of a key of the run."""
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(signer)
    # The SuperLink has a certificate of the authority, too.
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if list(usage) != [ExtendedKeyUsageOID.CLIENT_AUTH]:
        raise ValueError("a certificate that is not one of a node")
    names = _names(certificate)
    if names != [name]:
        raise ValueError(f"a certificate of {', '.join(names)[:80]}")
    key = certificate.public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("a certificate of a key of another kind")
    key.verify(signature, _run_key(run, public), ECDSA(SHA384()))


def _parts(proof: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    while at < len(proof) and len(parts) < _PARTS:
        size = int.from_bytes(proof[at : at + _SIZE], "big")
        parts.append(proof[at + _SIZE : at + _SIZE + size])
        at += _SIZE + size
    if len(parts) != _PARTS or at != len(proof):
        raise ValueError("none" if not proof else "something else")
    return parts


def _run_key(run: int, public: bytes) -> bytes:
    return encode(PROTOCOL, "key of the run", str(run), public)


def _round_keys(session: Session, keys: PublicKeys) -> bytes:
    return encode(PROTOCOL, "keys of the round", session.id, keys.sealing, keys.masking)
