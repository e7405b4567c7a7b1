"""Paillier's cryptosystem, to add and scale encrypted numbers; and the same without encryption.

Paillier, EUROCRYPT 1999, scheme 1 with g = n + 1. With n = p q of two primes,

    E(m) = (1 + m n) r^n  mod n^2,    E(a) E(b) = E(a + b),    E(a)^x = E(a x)    (of numbers modulo n)

and r^n is a random n-th residue. The owner of p and q draws it as a^p mod p^2 and b^q mod q^2 with random a
and b, which is the same distribution at an eighth of the price, since r^n mod p^2 depends on r^q mod p alone
and r -> r^q permutes the units modulo p. Decryption is modulo p^2 and q^2 as well (section 7).

A ciphertext that is made of others is multiplied by a fresh E(mask): it is then a uniform encryption of a
uniform number, whatever it was made of, so that neither shows what others were multiplied by.

The primes are those of an RSA key of the package `cryptography`. There is no package for the rest: phe is
under the GPL and of 2022, and lightphe draws keys and r from Python's `random`.

=========  =================  ==================================================================
symbol     variable           meaning
=========  =================  ==================================================================
n          ``modulus``        of the plain numbers
p, q       ``primes``         the secret
m          -                  a plain number; one below 0 stands as n + m
=========  =================  ==================================================================

>>> key = SecretKey(primes=(47, 59))
>>> public = key.public
>>> key.decrypt(public.combined([key.encrypt(3), key.encrypt(5)], [[2, 10]], masks=[100]))
[156]
"""

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from cryptography.hazmat.primitives.asymmetric import rsa

from task.errors import FieldError

SLOT_BITS = 96  # of a sum in a plain number, with its sign; several sums share one
CLEAR_BITS = 2048  # of the modulus where nothing is encrypted


def widths(key_bits: int) -> tuple[int, int]:
    """Return how many bytes a ciphertext and a plain number take; `key_bits` 0 = nothing is encrypted."""
    return (key_bits // 4, key_bits // 8) if key_bits else (CLEAR_BITS // 8, CLEAR_BITS // 8)


def room(key_bits: int) -> int:
    """Return the bits of a plain number that sums may fill; two stay free for the sign of the whole."""
    return (key_bits or CLEAR_BITS) - 2


def slots(key_bits: int) -> int:
    """Return how many sums of `SLOT_BITS` one plain number has room for."""
    return max(room(key_bits) // SLOT_BITS, 1)


@dataclass(frozen=True)
class PublicKey:
    """The public key that others compute with.

    If `clear`, numbers are their own ciphertexts, to compare with: sums modulo n take the place of products.
    """

    modulus: int
    clear: bool = False

    @property
    def bits(self) -> int:
        """Bits of the modulus."""
        return (self.modulus - 1).bit_length()

    @property
    def slots(self) -> int:
        """How many sums one plain number has room for."""
        return slots(self.bits)

    def encrypt(self, number: int) -> int:
        """Return E(m) for a whole number m of any sign."""
        n = self.modulus
        if self.clear:
            return number % n
        return (1 + number % n * n) * pow(secrets.randbelow(n - 1) + 1, n, n * n) % (n * n)

    def combined(
        self, ciphers: Sequence[int], factors: Sequence[Sequence[int]], masks: Sequence[int]
    ) -> list[int]:
        """Return E(sum_j S_j 2^(j SLOT_BITS) + mask) of `slots` sums S_j = sum_i m_i x_ij, freshly drawn.

        Args:
            ciphers: E(m_i).
            factors: x_j by sum: whole numbers of any sign, one for each m_i.
            masks: What is added to each number that is returned.
        """
        sums = [self._weighted(ciphers, column) for column in factors]
        return self._packs(sums, self.slots, SLOT_BITS, masks)

    def grouped(
        self, ciphers: Sequence[int], groups: Iterable[Sequence[int]], slots: int, bits: int, packs: int
    ) -> list[int]:
        """Return E(sum_j S_j 2^(j bits)) of `slots` sums S_j of the numbers of a group, freshly drawn.

        Args:
            ciphers: E(m_i), 0 <= m_i.
            groups: By sum, the places i of its numbers.
            slots: Sums in a plain number.
            bits: Bits of a sum: each is below 2^bits.
            packs: How many ciphertexts are returned; the last ones hold sums of nothing.
        """
        sums = [reduce(self._add, (ciphers[i] for i in group), self._nothing) for group in groups]
        sums += [self._nothing] * (packs * slots - len(sums))
        return self._packs(sums, slots, bits, [0] * packs)

    @property
    def _nothing(self) -> int:
        """A ciphertext of 0, which adds nothing."""
        return 0 if self.clear else 1

    def _packs(self, sums: Sequence[int], slots: int, bits: int, masks: Sequence[int]) -> list[int]:
        packs = [sums[at : at + slots] for at in range(0, len(sums), slots)]
        masked = zip(packs, masks, strict=True)
        return [self._add(self._packed(pack, bits), self.encrypt(mask)) for pack, mask in masked]

    def _add(self, a: int, b: int) -> int:
        return (a + b) % self.modulus if self.clear else a * b % self.modulus**2

    def _double(self, a: int, times: int) -> int:
        if self.clear:
            return (a << times) % self.modulus
        square = self.modulus**2
        for _ in range(times):
            a = a * a % square
        return a

    def _weighted(self, ciphers: Sequence[int], factors: Sequence[int]) -> int:
        """Return E(sum_i m_i x_i): bit by bit, for all i at once; numbers below 0 are subtracted as one."""
        found = [self._nothing] * 2
        for below in (False, True):
            chosen = [(c, abs(x)) for c, x in zip(ciphers, factors, strict=True) if x and (x < 0) == below]
            for bit in reversed(range(max((x.bit_length() for _, x in chosen), default=0))):
                found[below] = self._double(found[below], 1)
                for c, x in chosen:
                    if x >> bit & 1:
                        found[below] = self._add(found[below], c)
        up, down = found
        return (
            (up - down) % self.modulus
            if self.clear
            else up * pow(down, -1, self.modulus**2) % self.modulus**2
        )

    def _packed(self, sums: Sequence[int], bits: int) -> int:
        made = sums[-1]
        for c in reversed(sums[:-1]):
            made = self._add(self._double(made, bits), c)
        return made

    def unpacked(self, number: int, count: int) -> list[int]:
        """Unpack this number of sums, each less than 2^(SLOT_BITS - 1) in size, from an unmasked number.

        Raises:
            FieldError: It does not have that number of sums.
        """
        n, found = self.modulus, []
        left = (number + n // 2) % n - n // 2
        for _ in range(count):
            low = (left + (1 << SLOT_BITS - 1)) % (1 << SLOT_BITS) - (1 << SLOT_BITS - 1)
            found.append(low)
            left = (left - low) >> SLOT_BITS
        if left:
            raise FieldError("opened", "sums of the products that this party sent", "another number")
        return found


@dataclass(frozen=True)
class SecretKey:
    """The secret key of its owner; without primes nothing is encrypted."""

    primes: tuple[int, int] | None

    @classmethod
    def new(cls, bits: int) -> "SecretKey":
        """Return a new key with a modulus of this number of bits; 0 = no encryption."""
        if not bits:
            return cls(None)
        numbers = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers()
        return cls((numbers.p, numbers.q))

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return PublicKey(math.prod(self.primes)) if self.primes else PublicKey(1 << CLEAR_BITS, clear=True)

    def encrypt(self, number: int) -> int:
        """Return E(m) for a whole number m of any sign."""
        if self.primes is None:
            return self.public.encrypt(number)
        (p, q), n = self.primes, math.prod(self.primes)
        a, b = (pow(secrets.randbelow(prime - 1) + 1, prime, prime**2) for prime in (p, q))
        residue = a + p * p * ((b - a) * self._inverse % (q * q))
        return (1 + number % n * n) * residue % (n * n)

    @cached_property
    def _inverse(self) -> int:
        assert self.primes is not None
        p, q = self.primes
        return pow(p * p, -1, q * q)

    def decrypt(self, ciphers: Sequence[int]) -> list[int]:
        """Return the plain numbers, from 0 up to n."""
        if self.primes is None:
            return [c % self.public.modulus for c in ciphers]
        (p, q), n = self.primes, math.prod(self.primes)
        found = []
        for c in ciphers:
            # L(c^(p-1) mod p^2) = m (p-1) q mod p, with L(u) = (u - 1) / p; likewise modulo q
            mp = (pow(c, p - 1, p * p) - 1) // p * pow((p - 1) * q, -1, p) % p
            mq = (pow(c, q - 1, q * q) - 1) // q * pow((q - 1) * p, -1, q) % q
            found.append((mp + p * ((mq - mp) * pow(p, -1, q) % q)) % n)
        return found
