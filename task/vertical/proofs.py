"""Signatures of what parties send each other, so that the server can swap neither keys nor numbers.

Before round 1 each party signs its ids' points, and what it makes of the others'
(`client_app.vertical.align`): otherwise the server could make a party mask chosen points, and find out which
ids it has.

In vertical logistic regression a party proves three things to each other party, with the certificate in its
kit (`task.secagg.identity`): its public key and its encrypted residuals, what it made of the other's, and
what it decrypted for the other. Each proof says run, round, step, who sends and who receives, and each answer
says what it is an answer to; so nothing can be given to another party, or in another step. What a malicious
server could do without proofs:

* With a public key of its own that is no product of two large primes a sum of products is not hidden by what
  it is multiplied with: columns leak.
* A party that decrypts whatever it is sent decrypts its own residuals, and so labels.
* A party whose sums were changed takes steps that the server chose, and sends scores of test rows afterwards.

Where no party has data of its own, as in a simulation, nothing is proved or checked, and nothing promised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from task.errors import FieldError, SecureAggregationError, StateError
from task.secagg.identity import AUTHORITY, UNVERIFIED, Identity, check_proof, identity_in
from task.secagg.primitives import encode

PROOF_BYTES = 2048  # of a proof's row: its length in 4 bytes, the proof, and zeros


@dataclass(frozen=True)
class Prover:
    """Signs what a party's node sends in one run, and checks what others send."""

    run: int  # Flower's id
    mine: Identity | None = None  # None = it has no credentials
    authority: bytes = b""  # certificate of the federation's authority, PEM
    unverified: bool = False  # whether the owner allows runs without proofs

    @classmethod
    def of(cls, node_config: Mapping[str, Any], run: int) -> "Prover":
        """Return what a node config says."""
        authority = str(node_config.get(AUTHORITY, "")).encode()
        return cls(run, identity_in(node_config), authority, node_config.get(UNVERIFIED) is True)

    def prove(self, message: bytes) -> bytes:
        """Return the proof of a message; nothing if there is nothing to prove it with."""
        return self.mine.proof(message) if self.mine else b""

    def check(self, party: str, what: str, message: bytes, proof: bytes) -> None:
        """Refuse what is not of the party of that name.

        Raises:
            FieldError: Naming the record and the party.
            SecureAggregationError: This node cannot check anything.
        """
        if self.unverified:
            return
        if not self.authority:
            raise SecureAggregationError(
                "expected the certificate of the federation's authority, to tell what parties send from what "
                "the server makes up; got none. Run the node from a kit (bouquet node KIT), or let its owner "
                "do without: "
                f"{UNVERIFIED} = true in its --node-config"
            )
        try:
            check_proof(self.authority, self.run, party, message, proof)
        except SecureAggregationError as err:
            raise FieldError(what, f"those that party {party} has signed in this step", str(err)) from None


def message(what: str, *about: str | int, arrays: Sequence[np.ndarray]) -> bytes:
    """Return the signed content: kind, run, round, step, sender, receiver, and the numbers."""
    return encode("vertical", what, *(str(a) for a in about), *(a.tobytes() for a in arrays))


def to_row(proof: bytes) -> np.ndarray:
    """Return a proof as a row of bytes, [PROOF_BYTES].

    Raises:
        StateError: A certificate is too long.
    """
    if len(proof) > PROOF_BYTES - 4:
        raise StateError(f"node.crt: expected a proof of at most {PROOF_BYTES - 4} bytes; got {len(proof)}")
    raw = len(proof).to_bytes(4, "big") + proof
    return np.frombuffer(raw.ljust(PROOF_BYTES, b"\0"), np.uint8)


def from_row(row: np.ndarray) -> bytes:
    """Return the proof in a row of bytes."""
    raw = row.tobytes()
    return raw[4 : 4 + int.from_bytes(raw[:4], "big")]
