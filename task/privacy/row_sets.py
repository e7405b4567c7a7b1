"""Whether sums over sets of rows, taken together, say something of fewer persons than an owner allows.

Two answers whose rows differ by a person give that person away, and so may three: with A = B + C + one
person, A - B - C is that person, though each two of them differ by many. What linear combinations of the
answers can be is the span of the sets' indicator vectors. Rows that are in the same sets are an *atom*, on
which each such vector has one value, so that the matrix is small: sets x atoms.

Checked is every combination, with any coefficients: is one other than zero on 1 to m - 1 rows alone? It is on
no atom of m rows or more, so that these are eliminated first. Of what is left the combinations on fewest rows
vanish on as many other atoms as they can, and are found by letting each choice of atoms vanish. Where there
are more than `MOST` choices, it is not known.

Arithmetic is modulo a random prime of 31 bits: exact, and nobody can choose sets that only look independent.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.uint64]  # digests of rows, each once
Matrix = npt.NDArray[np.int64]
MOST = 2000  # choices that are tried


def single_out(sets: Sequence[Rows], least: int, *, unsure: bool = True) -> bool:
    """Return whether a combination of sums over these sets is one over 1 to `least` - 1 rows.

    `unsure` is what it returns where that is not known.

    >>> b, c = np.arange(100, 120, dtype=np.uint64), np.arange(200, 220, dtype=np.uint64)
    >>> a = np.concatenate([b, c, np.array([7], np.uint64)])
    >>> single_out([a, b, c], 5), single_out([a, b], 5)
    (True, False)
    """
    every = np.unique(np.concatenate(sets))
    members = np.stack([np.isin(every, rows) for rows in sets])
    atoms, sizes = np.unique(members, axis=1, return_counts=True)
    order = np.argsort(sizes < least, kind="stable")
    large, prime = int((sizes >= least).sum()), _prime()
    rest = _reduced(atoms[:, order].astype(np.int64), prime)
    rest = rest[~rest[:, :large].any(axis=1), large:]
    used = rest.any(axis=0)
    return _fewest(rest[:, used], sizes[order][large:][used], prime, least, unsure)


def _fewest(rest: Matrix, sizes: npt.NDArray[np.int64], prime: int, least: int, unsure: bool) -> bool:
    """Return whether a combination of independent lines is on fewer than `least` rows."""
    rank, atoms = rest.shape
    if rank == 0:
        return False
    if comb(atoms, rank - 1) > MOST:
        return unsure
    for gone in combinations(range(atoms), rank - 1):
        order = [*gone, *(i for i in range(atoms) if i not in gone)]
        found = _reduced(rest[:, order], prime)
        alone = found[~found[:, : rank - 1].any(axis=1)]  # several, where these atoms depend on each other
        if len(alone) == 1 and sizes[order][alone[0] != 0].sum() < least:
            return True
    return False


def _reduced(matrix: Matrix, prime: int) -> Matrix:
    """Return the reduced echelon form modulo a prime, without lines of zeros."""
    found, done = matrix % prime, 0
    for column in range(found.shape[1]):
        pivots = np.flatnonzero(found[done:, column])
        if not len(pivots):
            continue
        found[[done, done + pivots[0]]] = found[[done + pivots[0], done]]
        found[done] = found[done] * pow(int(found[done, column]), -1, prime) % prime
        factors = found[:, column].copy()
        factors[done] = 0
        found = (found - factors[:, None] * found[done]) % prime
        done += 1
        if done == len(found):
            break
    return found[:done]


def _prime() -> int:
    """Return a random prime of 31 bits, whose squares fit an int64."""
    while True:
        found = (1 << 30) + secrets.randbits(30) | 1
        # Miller and Rabin's test with these bases is exact below 4,759,123,141 (Jaeschke 1993).
        if all(_passes(found, base) for base in (2, 7, 61)):
            return found


def _passes(number: int, base: int) -> bool:
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
