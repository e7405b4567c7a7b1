"""The reductions of an encrypted record: a node encrypts its clients' weighted sum, the server adds those up.

Both replace a `Mean`. The result of the server's one is the encrypted record of the mean: the rule
passes it on, and the next round's messages carry it down.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from task.encryption import ckks
from task.encryption.ckks import CIPHERTEXT, MOST, Key
from task.errors import FieldError, WireError
from task.numerics.arrays import Arrays, NamedArrays
from task.numerics.held import Foldable
from task.numerics.reduce import Mean
from task.numerics.terms import FINITE

TOTAL = "he-total"  # entry of an order: n, the weight of all clients that are asked


class Sealing(Mean):
    """A node's reduction: the exact sum over its clients, which goes up encrypted.

    `like` are arrays of the form that a client's have; `total` is n.
    """

    def __init__(self, like: NamedArrays, key: Key, total: int) -> None:
        super().__init__({n: np.broadcast_to(np.zeros((), np.float64), a.shape) for n, a in like.items()})
        self.key, self.total = key, total

    def check(
        self, arrays: Foldable, weight: int, client: str, peaks: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the largest |value| by name.

        Raises:
            FieldError: A number is beyond the range of a ciphertext, or more clients come than were asked.
        """
        found = super().check(arrays, weight, client, peaks)
        for name, largest in found.items():
            if not largest <= MOST:
                expected = f"{FINITE}s of at most {MOST:g} in size, which sums of ciphertexts hold"
                raise FieldError(name, f'{expected} (run-config key "he")', f"{largest:g}")
        if self.weight + weight > self.total:
            raise FieldError(TOTAL, f"a weight of at most {self.total}", f"{self.weight + weight}")
        return found

    def partial(self, *, last: bool = False) -> dict[str, Arrays]:
        """Return the ciphertext of the sum, by n."""
        parts = [self._value(name, self.total).reshape(-1) for name in sorted(self._names)]
        ciphertext = self.key.seal(np.concatenate([*parts, [self.weight / self.total]]))
        return {CIPHERTEXT: {CIPHERTEXT: ciphertext}}


class Ciphertexts:
    """The server's reduction: adds ciphertexts that it cannot decrypt.

    `like` are arrays of the form that a client's have.
    """

    name: ClassVar[str] = "mean"

    def __init__(self, like: NamedArrays) -> None:
        self._like, self._sum = like, None

    def check(self, arrays: Foldable, weight: int, client: str, peaks: object = None) -> Any:
        """Refuse numbers in clear.

        Raises:
            FieldError: In any case.
        """
        raise FieldError(CIPHERTEXT, 'a ciphertext (run-config key "he")', "numbers in clear")

    add = check

    def check_merge(self, records: Mapping[str, NamedArrays], count: int) -> dict[str, Any]:
        """Return the ciphertext of a node's answer.

        Raises:
            FieldError: It has none, or one of other parameters or size.
        """
        got = records.get(CIPHERTEXT, {})
        if records.keys() != {CIPHERTEXT} or got.keys() != {CIPHERTEXT} or got[CIPHERTEXT].dtype != np.uint8:
            raise FieldError(CIPHERTEXT, "one ciphertext, and nothing else", f"{sorted(records)[:9]}")
        try:
            found = ckks.load(got[CIPHERTEXT], ckks.size_of(self._like), ckks.public_context())
        except WireError as err:
            raise FieldError(CIPHERTEXT, "a ciphertext of the run's model", str(err)[:200]) from None
        return {CIPHERTEXT: found}

    def merge(self, records: object, weight: int, count: int, checked: Mapping[str, Any]) -> None:
        """Add a node's ciphertext, as `check_merge` returned it."""
        found = checked[CIPHERTEXT]
        self._sum = found if self._sum is None else self._sum.add_(found)

    def result(self) -> Arrays:
        """Return the encrypted record of the mean.

        Raises:
            WireError: Nothing was added.
        """
        if self._sum is None:
            raise WireError("an encrypted mean needs at least one ciphertext; got none")
        return ckks.record_of(np.frombuffer(self._sum.serialize(), np.uint8), self._like)

    def partial(self) -> dict[str, Arrays]:
        """Return the sum so far as a node's answer has it."""
        return {CIPHERTEXT: {CIPHERTEXT: self.result()[CIPHERTEXT]}}
