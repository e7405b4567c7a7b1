"""What parties that send each other ciphertexts have in common: keys, and proofs of who sent what."""

from collections.abc import Sequence

import numpy as np

from client_app.data.node import Node
from client_app.vertical.party import PartyWork
from task.catalogue.entry import Algorithm
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.secagg.primitives import derive
from task.vertical.paillier import PublicKey, SecretKey, widths
from task.vertical.proofs import Prover, from_row, message
from task.wire import messages as wire
from task.wire.layouts import ROWS


def to_rows(numbers: list[int], width: int) -> np.ndarray:
    """Return numbers as rows of bytes."""
    raw = b"".join(n.to_bytes(width, "big") for n in numbers)
    return np.frombuffer(raw, np.uint8).reshape(len(numbers), width)


def from_rows(rows: np.ndarray) -> list[int]:
    """Return the numbers that rows of bytes stand for."""
    return [int.from_bytes(row.tobytes(), "big") for row in rows]


def secret_key(kept: Arrays) -> SecretKey:
    """Return the key that `EncryptedWork.new_key` made."""
    p, q = (int.from_bytes(kept[name].tobytes(), "big") for name in ("p", "q"))
    return SecretKey((p, q) if p else None)


class EncryptedWork(PartyWork):
    """What the parties among an order's clients do in one phase, a step of a round."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder, step: str = "window") -> None:
        super().__init__(node, entry, order)
        self.step = int(order.scalars[step])
        self.key_bits = node.config.vertical.key_bits
        self.cipher_bytes, self.plain_bytes = widths(self.key_bits)

    def others(self, client: str) -> list[str]:
        """Return the other parties, in the order of their numbers in a message."""
        return [party for party in self.parties if party != client]

    # ------------------------------------------------------------------ proofs

    @property
    def prover(self) -> Prover | None:
        """The prover of this node; None if nothing is encrypted, or all nodes have all columns."""
        return super().prover if self.key_bits > 0 else None

    def proofs(
        self, what: str, client: str, to: Sequence[str], arrays: Sequence[Sequence[np.ndarray]]
    ) -> Arrays:
        """Return proofs of what goes to each of some parties, or to all ("")."""
        at = self.order.run, self.order.round, self.step
        signed = [message(what, *at, client, k, arrays=a) for k, a in zip(to, arrays, strict=True)]
        return {ROWS: np.stack([self.proof(m) for m in signed])}

    def check(
        self,
        what: str,
        client: str,
        of: Sequence[str],
        to: Sequence[str],
        arrays: Sequence[Sequence[np.ndarray]],
        step: int,
        first: int = 0,
    ) -> None:
        """Refuse numbers that are not of the parties of these names.

        Args:
            what: What the numbers are, as in `proofs`.
            client: The party that got them.
            of: Who is to have sent them.
            to: Whom they are to be for; "" = all.
            arrays: What each of them sent.
            step: In which step.
            first: Place of their first proof among those that came.

        Raises:
            FieldError: Naming record and party.
        """
        if (prover := self.prover) is None:
            return
        at = self.order.run, self.order.round, step
        proofs = self.given(client, "proofs")[first : first + len(of)]
        for k, j, a, row in zip(of, to, arrays, proofs, strict=True):
            prover.check(k, what, message(what, *at, k, j, arrays=a), from_row(row))

    # -------------------------------------------------------------------- keys

    def publics(self, moduli: list[int]) -> list[PublicKey]:
        """Return others' keys.

        Raises:
            FieldError: One is not as long as the run says.
        """
        if self.key_bits == 0:
            return [SecretKey(None).public for _ in moduli]
        if any(n.bit_length() != self.key_bits for n in moduli):
            raise FieldError("moduli", f"moduli of {self.key_bits} bits (vertical.key-bits)", "others")
        return [PublicKey(n) for n in moduli]

    def modulus(self, secret: SecretKey) -> np.ndarray:
        """Return what others need of a key, [1, bytes]; 0 where nothing is encrypted."""
        return to_rows([0 if secret.primes is None else secret.public.modulus], self.plain_bytes)

    def new_key(self) -> Arrays:
        """Return a new key, and a seed of masks, to be kept."""
        primes = SecretKey.new(self.key_bits).primes or (0, 0)
        raw = [np.frombuffer(n.to_bytes(self.plain_bytes, "big"), np.uint8) for n in primes]
        # Of a run without encryption nothing is secret, and nothing is drawn.
        seed = derive(b"".join(r.tobytes() for r in raw), b"vertical-logistic", "masks")
        return {"p": raw[0], "q": raw[1], "masks": np.frombuffer(seed, np.uint8)}
