"""Facts of Flower's protocols between machines, and of its database; tests hold them to the installed Flower.

A header, a tolerance or how a number is stored is the same on both ends of a connection and in every
version, so that the code needs no name of Flower for it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

# Headers of a call of the Fleet API: gRPC's names; those with bytes end with "-bin".
PUBLIC_KEY_HEADER = "flwr-public-key-bin"
SIGNATURE_HEADER = "flwr-signature-bin"
TIMESTAMP_HEADER = "flwr-timestamp"
TASK_TOKEN_HEADER = "flwr-task-token"  # of the Runtime API; not a secret, but the name of one

TIMESTAMP_TOLERANCE = 300  # seconds that a call may be old
SYSTEM_TIME_TOLERANCE = 5  # seconds by which two clocks may differ
HEARTBEAT_PATIENCE = 2  # intervals without a heartbeat after which a node counts as offline
PUSH_SESSION_S = 180  # for which an upload may stand still
SUPERLINK_NODE_ID = 1  # the sender of all orders

V = TypeVar("V", str, bytes)


def header(metadata: Sequence[tuple[str, str | bytes]] | None, name: str, kind: type[V]) -> V | None:
    """Return the value of a header that occurs exactly once and is of a kind, not empty; None otherwise."""
    found = [value for key, value in metadata or () if key == name]
    return found[0] if len(found) == 1 and isinstance(found[0], kind) and found[0] else None


def read_public_key(pem: bytes) -> EllipticCurvePublicKey:
    """Return a node's public key from the PEM that its calls carry.

    Raises:
        ValueError: It holds no key of an elliptic curve.
    """
    try:
        key = load_pem_public_key(pem)
    except UnsupportedAlgorithm as err:
        raise ValueError(str(err)) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError(f"expected a key of an elliptic curve; got {type(key).__name__}")
    return key


def write_public_key(key: EllipticCurvePublicKey) -> bytes:
    """Return a node's public key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def is_signed(key: EllipticCurvePublicKey, message: bytes, signature: bytes) -> bool:
    """Return whether the owner of a key signed a message."""
    try:
        key.verify(signature, message, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def signed(number: int) -> int:
    """Return an id of 64 bits as the database stores it, with a sign."""
    return number - 2**64 if number >= 2**63 else number


def unsigned(number: int) -> int:
    """Return an id of 64 bits that the database stores with a sign."""
    return number + 2**64 if number < 0 else number


def now() -> datetime:
    """Return the time, in UTC, as the database stores times."""
    return datetime.now(UTC)
