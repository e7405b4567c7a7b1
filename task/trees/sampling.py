"""Which rows are held out, and which rows and columns a tree is grown from: by seed and a row's key alone.

A row is in if a hash of (seed, tree, key) is below a fraction of 2^64. The key is a number of the row's own,
or the client's name with the row's place in its file; only the first one survives that rows move between
clients.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from task.numerics import seeds

Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_GOLDEN, _FIRST, _SECOND = (
    np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _mixed(x: Keys) -> Keys:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit depends on every other."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    found: Keys = x ^ (x >> np.uint64(31))
    return found


def keys_of(client: str, rows: npt.NDArray[np.int64], column: npt.NDArray[np.float64] | None = None) -> Keys:
    """Return the keys of rows, uint64 [rows]: a column's numbers, or the client's name with their places."""
    if column is not None:
        return _mixed((column + 0.0).view(np.uint64))  # -0 is 0
    name = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=8).digest(), "big")
    return _mixed(_mixed(rows.astype(np.uint64)) ^ np.uint64(name))


def drawn(keys: Keys, fraction: float, seed: int, role: str, tree: int = 0) -> Flags:
    """Return which rows are in a fraction of 0 to 1, bool [rows]."""
    if fraction >= 1.0:
        return np.ones(len(keys), np.bool_)
    found = _mixed(keys ^ np.uint64(seeds.seed_for(seed, role, tree)))
    return found < np.uint64(int(fraction * 2.0**53) << 11)


def columns_drawn(columns: int, fraction: float, seed: int, tree: int) -> list[int]:
    """Return the columns that a tree may split, ascending: the whole part of the fraction, at least one."""
    if fraction >= 1.0:
        return list(range(columns))
    rng = seeds.rng_for(seed, seeds.TREE_COLUMNS, tree)
    many = max(int(fraction * columns), 1)
    return sorted(rng.permutation(columns)[:many].tolist())
