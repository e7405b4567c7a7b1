"""Arithmetic of the robust rules over a stack of the clients' models [K, ...], block by block.

The rows may be larger than the memory (`task.numerics.collect.Collect`), and one layer may be most of it. So
no function here holds more than a block of columns of all clients; pages that were read are given back.
Sums and distances are float64 whatever the model's dtype. Each function reads the stack once, on all cores.

Legend: K clients, P parameters, b columns of a block.
"""

import math
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, lru_cache, partial
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from task.numerics.arrays import Arrays, NamedArrays, blocks, rounded
from task.numerics.collect import release

COLUMNS = 1 << 12  # 50 clients' float64 block: 1.6 MB
WIDE = 1 << 14  # 50 clients' float32 block: 3.3 MB; for many small steps on each
PORTIONS = 8  # ranges of a layer that may be worked on at once
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
RELEASE = 1 << 25  # bytes of pages that may pile up
# Squared distances from the Gram matrix lose what the two norms exceed them by. Below this share of the norms
# a pair is measured again by its differences: what stays is right to 1e-8.
CLOSE = 1e-6

Columns = Callable[[np.ndarray], np.ndarray]


_controller = cache(ThreadpoolController)


def one_thread() -> AbstractContextManager[object]:
    """Keep each of NumPy's matrix products on the thread that asks for it.

    They are small and many, and the clients may be training on the other cores: a BLAS that waits for its
    threads after each product has taken fifty times as long on a busy machine.
    """
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit


T = TypeVar("T")


def size_of(stacked: np.ndarray) -> int:
    """Return the elements of one client, b of all columns."""
    return math.prod(stacked.shape[1:])


def in_portions(size: int, work: Callable[[slice], T]) -> list[T]:
    """Do `work` for each of `PORTIONS` ranges of columns, on as many threads as there are cores.

    The ranges depend on `size` alone, so a sum over them does not depend on the machine.
    """
    length = max(-(-size // PORTIONS), COLUMNS)
    parts = list(blocks(size, length))
    if len(parts) < 2 or CORES == 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(min(CORES, len(parts)), "rule") as pool:
        return list(pool.map(work, parts))


def columns(
    stacked: np.ndarray, width: int = COLUMNS, within: slice | None = None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the columns of one stacked array, or a range of them, in blocks [K, b] in its own dtype."""
    K, read = len(stacked), 0
    flat = stacked.reshape(K, size_of(stacked))
    within = within or slice(0, size_of(stacked))
    for offset in blocks(within.stop - within.start, width):
        part = slice(within.start + offset.start, within.start + offset.stop)
        yield part, flat[:, part]
        read += K * (part.stop - part.start) * stacked.itemsize
        if read > RELEASE:
            release(stacked)
            read = 0
    release(stacked)


def by_column(stack: NamedArrays, reduce: Columns, width: int = WIDE) -> Arrays:
    """Apply a function [K, b] -> [b] to every block of every array; dtypes are kept.

    The function gives float64, or the array's own dtype; integers are rounded to the nearest, halves up.
    """
    out: Arrays = {}
    for name, stacked in stack.items():
        into = np.empty(size_of(stacked), stacked.dtype)

        def fill(within: slice, stacked: np.ndarray = stacked, into: np.ndarray = into) -> None:
            for part, block in columns(stacked, width, within):
                into[part] = rounded(reduce(block), into.dtype)

        in_portions(into.size, fill)
        out[name] = into.reshape(stacked.shape[1:])
    return out


def combine(stack: NamedArrays, weights: np.ndarray) -> Arrays:
    """Return sum_k weights_k w_k in float64. Clients of weight 0 are not read.

    The weights [K] are real numbers, which follow from the replies; an exact sum (`task.numerics.reduce`)
    takes integers.
    """
    (rows,) = np.nonzero(weights)
    if len(rows) == 1 and weights[rows[0]] == 1.0:
        return {name: a[rows[0], ...].copy() for name, a in stack.items()}
    used = weights[rows]

    def weighted(block: np.ndarray) -> np.ndarray:
        return np.asarray(used @ block[rows].astype(np.float64))

    with one_thread():
        return by_column(stack, weighted, COLUMNS)


def trimmed_mean(stack: NamedArrays, b: int) -> Arrays:
    """Return the mean of each number without its b smallest and b largest values; 2 b < K."""
    return by_column(stack, lambda block: mean_rows(sort_clients(block)[b : len(block) - b]))


def combine_robustly(stack: NamedArrays, weights: np.ndarray, trainable: Collection[str], f: int) -> Arrays:
    """Return sum_k weights_k w_k of the parameters, and of the buffers the mean without f at each end.

    The weights come from distances between parameters and say nothing of buffers: who is close to the others
    could send running statistics as it likes.
    """
    parameters = combine({name: a for name, a in stack.items() if name in trainable}, weights)
    buffers = trimmed_mean({name: a for name, a in stack.items() if name not in trainable}, f)
    return {name: parameters[name] if name in parameters else buffers[name] for name in stack}


# ------------------------------------------------------------------------------------- distances


def gram(stack: NamedArrays, centre: Arrays, names: Collection[str]) -> np.ndarray:
    """Return the inner products of the clients' differences from the centre, float64 [K, K].

    They are over the `names`, the parameters, of arrays [K, ...]. The centre is the received model w^t.
    Only the server chooses it: a client that sends huge numbers spoils its own row and leaves the
    others' exact.
    """
    K = len(next(iter(stack.values())))

    def of_part(name: str, within: slice) -> np.ndarray:
        total, space = np.zeros((K, K)), np.empty((K, COLUMNS))
        origin = centre[name].reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            for part, block in columns(stack[name], within=within):
                x = space[:, : block.shape[1]]
                x[...] = block
                x -= origin[part].astype(np.float64)
                total += x @ x.T
        return total

    with one_thread():
        sums = [s for n in names for s in in_portions(size_of(stack[n]), partial(of_part, n))]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(sum(sums, np.zeros((K, K))))


def squared_distances(stack: NamedArrays, centre: Arrays, names: Collection[str]) -> np.ndarray:
    """Return |w_i - w_j|^2 of all pairs of clients over the named arrays, float64 [K, K]; see `gram`.

    Clients that nearly agree are compared by their differences, never by those of large norms: equal
    clients are at distance 0, and their rows are equal to the last bit. What overflows a float64 is
    infinitely far.
    """
    G = gram(stack, centre, names)
    norms = np.diag(G)
    with np.errstate(over="ignore", invalid="ignore"):
        both = norms[:, None] + norms
        D: np.ndarray = both - 2 * G
        close = np.argwhere(np.triu(np.isfinite(both) & (CLOSE * both >= D), 1))
    D[~np.isfinite(D)] = np.inf
    if len(close):
        again = np.zeros(len(close))
        for name in names:
            for _, block in columns(stack[name]):
                x = block.astype(np.float64)
                for p, (i, j) in enumerate(close):
                    d = x[i] - x[j]
                    again[p] += d @ d
        D[close[:, 0], close[:, 1]] = D[close[:, 1], close[:, 0]] = again
    np.fill_diagonal(D, 0.0)
    # Equal rows of the stack need not have equal products with a third one: a BLAS works by position.
    first = (D == 0).argmax(1)
    return D[np.ix_(first, first)]


# ----------------------------------------------------------------------------------------- sorting


def sort_clients(block: np.ndarray) -> list[np.ndarray]:
    """Return the K values of each column in ascending order, as K rows [b] in the block's dtype.

    A sorting network over whole rows: some 400 vector minima and maxima for 50 clients, many times faster
    than sorting columns one by one.
    """
    rows = [np.array(row) for row in block]
    spare = np.empty_like(rows[0]) if rows else np.empty(0)
    for i, j in network(len(rows)):
        low, high = rows[i], rows[j]
        np.minimum(low, high, out=spare)
        np.maximum(low, high, out=high)
        rows[i], spare = spare, low
    return rows


@lru_cache(maxsize=32)
def network(size: int) -> tuple[tuple[int, int], ...]:
    """Return the comparisons (i, j), i < j, of Batcher's odd-even merge sort (Knuth, 5.2.2, algorithm M)."""
    pairs = []
    top = 1 << max(size - 1, 0).bit_length() >> 1
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(pairs)


def mean_rows(rows: list[np.ndarray]) -> np.ndarray:
    """Return the mean of rows [b] in float64."""
    total = rows[0].astype(np.float64)
    for row in rows[1:]:
        total += row
    return total / len(rows)


def middle(rows: list[np.ndarray]) -> np.ndarray:
    """Return the median of sorted rows: the middle one, or the mean of the two, [b]."""
    half = len(rows) // 2
    return rows[half] if len(rows) % 2 else mean_rows(rows[half - 1 : half + 1])
