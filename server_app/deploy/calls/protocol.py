"""Facts of Flower's protocols between machines, and of its database; tests hold them to the installed Flower.

A header, a tolerance or how a number is stored is the same on both ends of a connection and in every
version, so that the code needs no name of Flower for it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from task.flower.services import Protobuf

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

NODE_ONLINE, NODE_UNREGISTERED = "online", "unregistered"  # states of a node
TASK_FAILED = "failed"  # how a task ended
# Keys of the tokens in Flower's credentials, with the address of the server that takes the token.
ACCESS_TOKEN_KEY = "flower.account-auth.%s.oidc-access-token"  # the name of a key
REFRESH_TOKEN_KEY = "flower.account-auth.%s.oidc-refresh-token"  # the name of a key
LOGIN_KIND_KEY = "flower.account-auth.%s.authn-type"

V = TypeVar("V", str, bytes)


def objects_of(tree: Protobuf) -> Iterator[Protobuf]:
    """Yield the nodes of a tree of objects, each after those below it."""
    waiting, found = [tree], []
    while waiting:
        found.append(node := waiting.pop())
        waiting.extend(node.children)
    return reversed(found)


def object_ids(tree: Protobuf) -> list[str]:
    """Return the ids of a message and of all its parts, each once and after those of its own parts."""
    return list(dict.fromkeys(node.object_id for node in objects_of(tree)))


def object_id(content: bytes) -> str:
    """Return the id of an object: that of its content."""
    return hashlib.sha256(content).hexdigest()


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


def read_keys(fields: Mapping[str, Protobuf]) -> dict[str, bool | int | float | str]:
    """Return the run-config keys that a protobuf has.

    Raises:
        ValueError: The value of one is of another kind than those of run-config keys.
    """
    keys = {}
    for key, value in fields.items():
        kind = value.WhichOneof("scalar")
        if kind not in ("bool", "sint64", "double", "string"):
            raise ValueError(f'run-config key "{key}": expected a bool, number or text; got {kind}')
        keys[key] = getattr(value, kind)
    return keys


def signed(number: int) -> int:
    """Return an id of 64 bits as the database stores it, with a sign."""
    return number - 2**64 if number >= 2**63 else number


def unsigned(number: int) -> int:
    """Return an id of 64 bits that the database stores with a sign."""
    return number + 2**64 if number < 0 else number


def now() -> datetime:
    """Return the time, in UTC, as the database stores times."""
    return datetime.now(UTC)
