"""Shamir's secret sharing of 32 bytes: any t shares give the secret, fewer reveal nothing.

A. Shamir, How to share a secret, CACM 1979. The field is that of the integers modulo p = 2^256 + 297, the
smallest prime above 2^256, so that every 32 bytes are an element of it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from task.errors import SecureAggregationError

PRIME = 2**256 + 297
SHARE_BYTES = 33  # of an element of the field


def share(secret: bytes, coefficients: Sequence[int], members: int) -> list[int]:
    """Return the shares of members 1 ... n: the values of secret + sum_j coefficients_j x^j there.

    `secret` is 32 bytes; t - 1 `coefficients` are uniform modulo `PRIME`, and used for nothing else.
    """
    polynomial = [*reversed(coefficients), int.from_bytes(secret, "big")]
    out = []
    for x in range(1, members + 1):
        value = 0
        for c in polynomial:
            value = (value * x + c) % PRIME
        out.append(value)
    return out


def coefficient(uniform: bytes) -> int:
    """Return a field element of 64 uniform bytes; it is off a uniform one by less than 2^-255."""
    return int.from_bytes(uniform, "big") % PRIME


def combine(shares: Mapping[int, int], threshold: int) -> bytes:
    """Return the secret of `threshold` shares by member.

    Raises:
        SecureAggregationError: They are too few, no field elements, or those of no 32 bytes.
    """
    if len(shares) < threshold:
        raise SecureAggregationError(f"expected at least {threshold} shares of a secret; got {len(shares)}")
    members = tuple(sorted(shares)[:threshold])
    if not all(0 <= shares[m] < PRIME for m in members):
        raise SecureAggregationError("expected shares that are elements of the field")
    weights = _at_zero(members)
    secret = sum(w * shares[m] for w, m in zip(weights, members, strict=True)) % PRIME
    if secret >= 2**256:
        raise SecureAggregationError("expected the shares of one secret; got some that do not fit together")
    return secret.to_bytes(32, "big")


@lru_cache(maxsize=64)
def _at_zero(members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights by which values at `members` give that at 0 (Lagrange)."""
    out = []
    for i in members:
        above, below = 1, 1
        for j in members:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        out.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(out)
