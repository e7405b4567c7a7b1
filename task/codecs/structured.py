"""Structured updates as they travel, Konečný et al. 2016, arXiv 1610.05492, section 2.

A client's steps stay in a random space (`client_app.training.restriction` has the formulas), and what it
sends are the numbers in it. The space itself is not sent: client and server draw it from the seed in the
header, which is fresh in each round and for each client. What lies outside is left out, and of a client whose
steps were restricted nothing does. Vectors are sent whole.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from task.codecs.codec import HEADER, Codec, Left, Reader, finite
from task.codecs.draws import Draws
from task.numerics.arrays import Arrays
from task.numerics.held import Base, Held
from task.numerics.seeds import CODEC, seed_for

SINGULAR = 1e-9  # eigenvalues below this share of the largest count as zero


def inputs(shape: Sequence[int]) -> int:
    """Return d1, by how many numbers an output of a layer is weighted; 0 of a vector, such as a bias."""
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def rank(shape: Sequence[int], keep: float) -> int:
    """Return r = keep d1, so that `keep` of a matrix's numbers are sent; 0 = it is trained and sent whole."""
    d1 = inputs(shape)
    r = max(1, round(keep * d1))
    return r if r < d1 else 0


def count(shape: Sequence[int], keep: float) -> int:
    """Return k = keep d1 d2, how many numbers of a matrix a mask leaves; of a vector all."""
    n = math.prod(shape)
    return max(1, round(keep * n)) if inputs(shape) and n else n


def positions(seed: int, name: str, shape: Sequence[int], keep: float) -> np.ndarray:
    """Return the positions [k] under a tensor's mask, ascending in the flat tensor; of a vector all."""
    return _draws(seed, name).places(math.prod(shape), count(shape, keep))


def factor(seed: int, name: str, shape: Sequence[int], keep: float) -> np.ndarray:
    """Return A [d1, r] of a matrix, float32: fair signs over the root of d1; [d1, 0] if it is whole."""
    d1, r = inputs(shape), rank(shape, keep)
    signs = _draws(seed, name).bits(d1 * r).reshape(d1, r) * np.float32(2) - np.float32(1)
    return signs / np.float32(math.sqrt(max(d1, 1)))


def _draws(seed: int, name: str) -> Draws:
    return Draws(seed_for(seed, CODEC, client=name))


class _InSpace(Codec):
    """No table. Plane: float32 numbers, tensor after tensor."""

    seeded = True

    @abstractmethod
    def numbers(self, shape: Sequence[int]) -> int:
        """Return how many numbers of a tensor travel."""

    def most_bytes(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the length of every code."""
        return HEADER.size + 4 * sum(map(self.numbers, shapes))

    def _encode(self, x: Arrays, values: Arrays, seed: int) -> tuple[int, bytes, dict[str, Left]]:
        sent = [self._sent(seed, name, np.ascontiguousarray(a), values[name]) for name, a in x.items()]
        return 0, b"".join(a.astype("<f4").tobytes() for a in sent), {}

    def _decode(
        self, reader: Reader, bits: int, seed: int, bases: Mapping[str, Base]
    ) -> dict[str, np.ndarray | Held]:
        self._check_length(reader, bits, bases)
        out: dict[str, np.ndarray | Held] = {}
        for name, start in bases.items():
            sent = reader.take("<f4", self.numbers(start.array.shape), "entries").astype(np.float32)
            out[name] = finite(reader, name, self._made(seed, name, start, sent))
        return out

    @abstractmethod
    def _sent(self, seed: int, name: str, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the numbers of a tensor that travel, given its update `x`."""

    @abstractmethod
    def _made(self, seed: int, name: str, start: Base, sent: np.ndarray) -> np.ndarray | Held:
        """Return the new tensor."""


class MaskCode(_InSpace):
    """The new values under a random mask of `keep` of each matrix: p = 1 gives the arrays bit for bit."""

    name, number = "mask", 8

    @property
    def sparse(self) -> bool:
        """Whether only some entries travel: yes."""
        return True

    def numbers(self, shape: Sequence[int]) -> int:
        """Return k."""
        return count(shape, self.keep)

    def _sent(self, seed: int, name: str, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        sent: np.ndarray = values.reshape(-1)[positions(seed, name, x.shape, self.keep)]
        return sent

    def _made(self, seed: int, name: str, start: Base, sent: np.ndarray) -> Held:
        return Held(start, positions(seed, name, start.array.shape, self.keep), sent)


class LowRankCode(_InSpace):
    """B of each matrix's update H = A B by least squares, exact for an update in the range of A.

    Products are taken in float64 and rounded once. Vectors, and matrices where it would save nothing, are
    sent as their new values.
    """

    name, number = "low-rank", 9

    def numbers(self, shape: Sequence[int]) -> int:
        """Return r d2."""
        return rank(shape, self.keep) * shape[0] if rank(shape, self.keep) else math.prod(shape)

    def _sent(self, seed: int, name: str, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        if not rank(x.shape, self.keep):
            return values.reshape(-1)
        A = factor(seed, name, x.shape, self.keep).astype(np.float64)
        H = x.reshape(len(x), -1).T.astype(np.float64)
        B: np.ndarray = np.linalg.pinv(A.T @ A, rcond=SINGULAR, hermitian=True) @ (A.T @ H)
        return B

    def _made(self, seed: int, name: str, start: Base, sent: np.ndarray) -> np.ndarray:
        shape = start.array.shape
        if not rank(shape, self.keep):
            return sent.reshape(shape)
        A = factor(seed, name, shape, self.keep).astype(np.float64)
        H = A @ sent.reshape(A.shape[1], shape[0]).astype(np.float64)
        return (start.array + H.T.reshape(shape)).astype(np.float32)
