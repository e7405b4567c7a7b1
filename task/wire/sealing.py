"""Records of which a node sends the sum over its clients as a ciphertext (`task.encryption`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from task.catalogue.record import Record
from task.encryption import ckks
from task.encryption.sums import Ciphertexts, Sealing
from task.numerics.arrays import NamedArrays
from task.wire.encoding import Encoding


@dataclass(frozen=True)
class Sealed(Encoding):
    """Sums are ciphertexts; `sums` makes their reduction: a node's own, which has a key, or the server's."""

    opaque: ClassVar[bool] = True
    sums: Callable[[NamedArrays], Sealing | Ciphertexts] = Ciphertexts

    def reduction(self, record: Record, like: NamedArrays) -> Sealing | Ciphertexts:
        """Return the reduction to a ciphertext."""
        return self.sums(like)

    def most_bytes(self, record: Record, like: NamedArrays) -> int:
        """Return the bytes of a ciphertext at most."""
        return ckks.most_bytes(like)

    def most_sum_bytes(self, record: Record, like: NamedArrays) -> int:
        """Return the bytes of a ciphertext at most, of how many clients it may be."""
        return ckks.most_bytes(like)
