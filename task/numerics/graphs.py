"""The graphs of peer-to-peer training, and their mixing weights as exact integers.

A graph is a tuple of out-neighbours by node 0 .. n - 1, sorted, without the node itself. Nothing here knows a
client: callers number the clients by their sorted names, so that no weight depends on where a client runs.

===================  ======================================================================  ============
route                node i sends to                                                          sizes
===================  ======================================================================  ============
complete             all others                                                               all
ring                 i - 1 and i + 1                                                          all
star                 node 0, and node 0 to all others                                         all
torus                its four neighbours on an a x b grid, b / a as small as possible, a >= 2  not a prime
hypercube            the nodes whose number differs from i in one bit                          powers of 2
regular              `degree` others, drawn by seed until the graph is connected              n d even
directed-ring        i + 1                                                                    all
exponential          i + 2^k for all 2^k < n (Assran et al. 2019)                              all
one-peer             i + 2^k, k = t mod ceil(log2 n), another in each round t                   all
===================  ======================================================================  ============

All numbers are modulo n. The last three are directed.

>>> links("ring", 4)
((1, 3), (0, 2), (1, 3), (0, 2))
>>> mixing(links("ring", 4), range(4), directed=False)[0]
({0: 1, 1: 1, 3: 1}, {0: 1, 1: 1, 2: 1}, {1: 1, 2: 1, 3: 1}, {0: 1, 2: 1, 3: 1})
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce

import numpy as np

Graph = tuple[tuple[int, ...], ...]
Rows = tuple[dict[int, int], ...]

ROUTES = (
    "complete",
    "directed-ring",
    "exponential",
    "hypercube",
    "one-peer",
    "regular",
    "ring",
    "star",
    "torus",
)
DIRECTED = ("directed-ring", "exponential", "one-peer")
MOST_PARTS = 1 << 20  # a weight is a whole number of these


def links(route: str, n: int, degree: int = 0, t: int = 1, rng: np.random.Generator | None = None) -> Graph:
    """Return the graph of a route over n nodes that it fits (`why_not`).

    `degree` and `rng` are those of a regular graph; `t` is the round, from 1.
    """
    bits = max((n - 1).bit_length(), 1)
    a = _width(n)
    b = n // a
    to: dict[str, Callable[[int], Collection[int]]] = {
        "complete": lambda i: range(n),
        "ring": lambda i: (i - 1, i + 1),
        "star": lambda i: (0,) if i else range(n),
        "torus": lambda i: (
            i // b * b + (i + 1) % b, i // b * b + (i - 1) % b, i + b, i - b,
        ),
        "hypercube": lambda i: [i ^ 1 << k for k in range(bits)],
        "directed-ring": lambda i: (i + 1,),
        "exponential": lambda i: [i + (1 << k) for k in range(bits)],
        "one-peer": lambda i: (i + (1 << (t - 1) % bits),),
    }  # fmt: skip
    if route == "regular":
        assert rng is not None
        return _regular(n, degree, rng)
    return tuple(tuple(sorted({j % n for j in to[route](i)} - {i})) for i in range(n))


def why_not(route: str, n: int, degree: int = 0) -> str:
    """Return why a route has no connected graph of n nodes, and the nearest n that have; "" = it has."""
    if _fits(route, n, degree):
        return ""
    if route == "regular" and degree < 2:
        return "a regular graph of one neighbour each is connected among 2 clients only; expected 2 or more"
    below = next((m for m in range(n - 1, 0, -1) if _fits(route, m, degree)), None)
    above = next(m for m in range(n + 1, 2 * n + 2 * degree + 4) if _fits(route, m, degree))
    sizes = f"{above}" if below is None else f"{below} or {above}"
    needs = {
        "torus": "a torus needs a number of clients that is a product of two numbers above 1",
        "hypercube": "a hypercube needs a power of two",
        "regular": f"a graph in which each client has {degree} neighbours needs more than {degree} clients, "
        "and an even number of clients times neighbours",
    }[route]
    return f"{needs}; nearest to {n}: {sizes}"


def _fits(route: str, n: int, degree: int) -> bool:
    if route == "torus":
        return _width(n) > 1
    if route == "hypercube":
        return n & (n - 1) == 0
    if route == "regular":
        return degree < n and n * degree % 2 == 0 and (degree > 1 or (degree, n) == (1, 2))
    return True


def _width(n: int) -> int:
    """Return the largest divisor of n that is at most its root."""
    return next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)


def _regular(n: int, degree: int, rng: np.random.Generator) -> Graph:
    """Join free ends of links at random (Steger and Wormald 1999) until the graph is simple and connected."""
    while True:
        free, sets = [i for i in range(n) for _ in range(degree)], [set[int]() for _ in range(n)]
        while free:
            ends = rng.permutation(len(free)).tolist()
            i, more = free[ends[0]], [e for e in ends[1:] if free[e] != free[ends[0]]]
            other = next((e for e in more if free[e] not in sets[i]), None)
            if other is None:
                break  # stuck: from the beginning
            j = free[other]
            sets[i].add(j)
            sets[j].add(i)
            for end in sorted((ends[0], other), reverse=True):
                del free[end]
        graph = tuple(tuple(sorted(s)) for s in sets)
        if not free and connected(graph):
            return graph


def connected(graph: Graph) -> bool:
    """Return whether node 0 reaches every node, of an undirected graph."""
    seen, left = {0}, [0]
    while left:
        more = set(graph[left.pop()]) - seen
        seen |= more
        left += more
    return len(seen) == len(graph)


def mixing(graph: Graph, present: Collection[int], *, directed: bool) -> tuple[Rows, int]:
    """Return the mixing weights of a round in which only the nodes of `present` take part.

    Returns:
        By node i the whole numbers c_ij > 0, by j, and D: node i takes the share c_ij / D of what j has. An
        absent node keeps all of its own and gives nothing. Of an undirected graph these are Metropolis
        weights on what is left of it, W_ij = 1 / (1 + max(d_i, d_j)) and W_ii what is missing to one:
        symmetric, and each row and column sums to D. Of a directed one each node gives equal shares to those
        that it sends to and to itself: each column sums to D, and a row need not.

    D is the least common multiple of the denominators, or `MOST_PARTS` if that is less; weights are rounded
    down then, and what is missing stays at the node.
    """
    there = set(present)
    out = [[j for j in to if j in there] if i in there else [] for i, to in enumerate(graph)]
    parts = [
        {j: 1 + (len(to) if directed else max(len(to), len(out[j]))) for j in to} for i, to in enumerate(out)
    ]
    D = reduce(math.lcm, {p for row in parts for p in row.values()}, 1)
    D = min(D, MOST_PARTS)
    rows: list[dict[int, int]] = [{} for _ in graph]
    for i, row in enumerate(parts):
        for j, p in row.items():
            rows[j][i] = D // p
        rows[i][i] = D - sum(D // p for p in row.values())
    return tuple({j: row[j] for j in sorted(row) if row[j]} for row in rows), D


def matrix(rows: Sequence[Mapping[int, int]], D: int) -> np.ndarray:
    """Return W, float64 [n, n], of `mixing`."""
    W = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        W[i, list(row)] = list(row.values())
    return W / D
