"""Random numbers that are unpredictable without a secret of 32 bytes.

What protects privacy never comes from a run's seed, which every node reads. It is derived from a secret that
the operating system drew, by HMAC-SHA256 of what it is for. So a run that is killed and goes on derives the
same numbers for the same use, and others for any other.
"""

import hmac
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from task.numerics.arrays import BLOCK, blocks

SECRET_BYTES = 32
_WORD = 8  # bytes of keystream for a number


def draw_secret() -> bytes:
    """Return a new secret of the operating system's."""
    return os.urandom(SECRET_BYTES)


def derived(secret: bytes, *purpose: str | int | float | bytes) -> bytes:
    """Return 32 bytes for one purpose; each other purpose, or secret, gives independent ones."""
    parts = [p if isinstance(p, bytes) else repr(p).encode() for p in purpose]
    # Lengths make the encoding one-to-one.
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(secret, text, "sha256")


def coins(secret: bytes, server_round: int, names: Sequence[str], probability: float) -> list[str]:
    """Return the names whose own coin says yes, each independently of the others."""
    if probability >= 1:
        return list(names)
    key = derived(secret, "cohort", server_round)
    most = int(probability * 2.0**64)
    draws = (int.from_bytes(hmac.digest(key, name.encode(), "sha256")[:8], "big") for name in names)
    return [name for name, draw in zip(names, draws, strict=True) if draw < most]


class Stream:
    """Independent random numbers from the keystream of ChaCha20 under one key, in the order of the calls."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def uniform(self, size: int) -> npt.NDArray[np.float64]:
        """Return numbers of [0, 1), with 53 random bits each."""
        words = np.frombuffer(self._stream.update(bytes(_WORD * size)), "<u8")
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, size: int) -> npt.NDArray[np.float64]:
        """Return numbers of N(0, 1), by Box and Muller's transform, two of two uniform ones."""
        out = np.empty(size)
        for block in blocks(size, BLOCK):
            part = out[block]
            pairs = (part.size + 1) // 2
            first, second = self.uniform(2 * pairs).reshape(2, pairs)
            # In (0, 1], where the logarithm is finite.
            radius, angle = np.sqrt(-2.0 * np.log(first + 2.0**-53)), 2.0 * np.pi * second
            part[:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: part.size]
        return out

    def integers(self, size: int, std: float) -> npt.NDArray[np.int64]:
        """Return numbers of N(0, std^2), each rounded to the nearest integer."""
        return np.rint(self.normal(size) * std).astype(np.int64)
