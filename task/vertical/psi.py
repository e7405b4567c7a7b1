"""Private set intersection by X25519: K parties find the ids that all of them have, through a relay.

Each id is hashed to a point H(id) of Curve25519. A party draws a secret exponent a_k and multiplies points by
it; the order in which several parties do so does not matter,

(H(id)^a)^b = (H(id)^b)^a,

so that after all K parties have masked a set, equal ids are equal points and nothing else is known of them.
Every set passes through all parties, K - 1 hops, and the party that compares the fully masked sets learns
which rows coincide, but no id. A set is shuffled by its owner, and filled up to the size of the largest by
points of no id.

The hash is by trial: a digest is taken for a u-coordinate if it lies on the curve, else the next one is tried
(2.1 tries on average). A digest taken as it comes lies on the curve's twist half of the time, and masking
keeps it there: one bit of each id would show.
"""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from task.errors import WireError

Points = npt.NDArray[np.uint8]  # [N, 32]
P = 2**255 - 19
A = 486662  # of the curve v^2 = u^3 + A u^2 + u
BYTES = 32
_DOMAIN = b"bouquet psi 1"


def on_curve(u: int) -> bool:
    """Return whether a number is the u-coordinate of a point of the curve, and not of its twist."""
    return pow(u * (u * u + A * u + 1), (P - 1) // 2, P) in (0, 1)


def point_of(value: bytes, salt: bytes) -> bytes:
    """Return H(value), the u-coordinate of a point, little-endian."""
    head = b"\x1f".join((_DOMAIN, salt, value))
    for tries in count():
        digest = hashlib.sha512(head + b"\x1f%d" % tries).digest()[:BYTES]
        u = int.from_bytes(digest, "little") % 2**255
        if u > 1 and u < P and on_curve(u):
            return u.to_bytes(BYTES, "little")
    raise AssertionError


# u of the points whose order divides 8, which any exponent takes to 0.
_LOW_ORDER = frozenset(
    {0, 1, P - 1}
    | {
        int.from_bytes(bytes.fromhex(text), "little")
        for text in (
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        )
    }
)


def has_low_order(points: np.ndarray) -> bool:
    """Return whether one of some points, [N, 32], is of low order, as no honest party's is."""
    return any(int.from_bytes(p.tobytes(), "little") % 2**255 % P in _LOW_ORDER for p in points)


def new_secret() -> bytes:
    """Return a secret exponent."""
    return secrets.token_bytes(BYTES)


def masked(points: Iterable[bytes], secret: bytes) -> Points:
    """Return points multiplied by a secret exponent, in their order.

    Raises:
        WireError: One of them is of low order, which no honest party sends.
    """
    key = X25519PrivateKey.from_private_bytes(secret)
    try:
        made = [key.exchange(X25519PublicKey.from_public_bytes(point)) for point in points]
    except ValueError:
        raise WireError("points: expected points of Curve25519; got one of low order", "points") from None
    return np.frombuffer(b"".join(made), np.uint8).reshape(len(made), BYTES)


def own_points(
    ids: Sequence[str], size: int, salt: bytes, secret: bytes
) -> tuple[Points, npt.NDArray[np.int64]]:
    """Return a party's ids as masked points in a random order, filled up to `size`.

    Returns:
        The points [size, 32], and by place the number of the id, -1 of a point of none.
    """
    fill = [secrets.token_bytes(BYTES) for _ in range(size - len(ids))]
    found = [point_of(value.encode(), salt) for value in ids]
    found += [point_of(value, salt + b"\x1ffill") for value in fill]
    order = list(range(size))
    secrets.SystemRandom().shuffle(order)
    numbers = np.array([i if i < len(ids) else -1 for i in order], np.int64)
    return masked((found[i] for i in order), secret), numbers


def common_places(sets: Sequence[Points]) -> list[npt.NDArray[np.int32]]:
    """Return, for each fully masked set, the places of the points that all sets have, ascending."""
    as_bytes = [[row.tobytes() for row in np.ascontiguousarray(points)] for points in sets]
    shared = set(as_bytes[0]).intersection(*as_bytes[1:]) if as_bytes else set()
    return [np.array([i for i, row in enumerate(rows) if row in shared], np.int32) for rows in as_bytes]
