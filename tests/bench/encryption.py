"""``he``: what an encrypted round costs its nodes and its server, beside secure aggregation's, by nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from task.encryption import ckks
from task.encryption.sums import Ciphertexts
from task.numerics.reduce import Mean
from task.secagg.vector import as_words
from tests.bench.readings import Row, paired
from tests.bench.rounds import Bench
from tests.bench.secagg import PARAMETERS, PARTIAL_BYTES, one_round

CASES = (3, 10, 50)
ROWS = tuple(f"he-{side}-{n}" for n in CASES for side in ("node", "server"))


def encryption(bench: Bench) -> Iterator[Row]:
    """Compare a node's encryption and decryption with its masks, and the server's sums of both."""
    size, passes = (1000, 2) if bench.quick else (PARAMETERS, max(5, bench.repeat))
    rng = np.random.default_rng(0)
    like = {"w": np.zeros(size, np.float32)}
    plain = Mean(like)
    plain.add({"w": rng.normal(size=size).astype(np.float32)}, 7, "anna")
    limbs = plain.partial()
    words = as_words(limbs["high"]["w"].astype(np.int64), limbs["low"]["w"].astype(np.int64))
    key = ckks.Key(ckks.new_key())
    values = np.append(rng.normal(size=size), 0.25)
    ciphertext = key.seal(values)
    partial = {ckks.CIPHERTEXT: {ckks.CIPHERTEXT: ciphertext}}
    for n in CASES:
        times: dict[str, list[float]] = {"node": [], "masks": [], "server": [], "sums": []}
        for turn in range(passes + 1):
            masks, sums, _ = one_round(n, 0, words, str(turn))
            sealed, ours = _spent(lambda: key.seal(values)), Ciphertexts(like)
            added = _spent(lambda server=ours, nodes=n: _add(server, partial, nodes))
            opened = _spent(lambda server=ours: key.unseal(server.result()[ckks.CIPHERTEXT], size + 1))
            if turn:  # the first is not counted
                for name, spent in zip(times, (sealed + opened, masks, added, sums), strict=True):
                    times[name].append(spent * 1e3)
        share = ciphertext.size / (size * PARTIAL_BYTES)
        detail = f"{ciphertext.size:,} bytes up a node, {share:.2f} times those of a plain merged reply"
        what = f"{n} nodes: encryption and decryption : masks, a node's round"
        yield paired(f"he-node-{n}", what, times["node"], times["masks"], None, "ms", detail)
        what = f"{n} nodes: the server's round : that of secure aggregation"
        yield paired(f"he-server-{n}", what, times["server"], times["sums"], None, "ms", "")


def _add(server: Ciphertexts, partial: Any, nodes: int) -> None:
    for _ in range(nodes):
        server.merge(partial, 1, 1, server.check_merge(partial, 1))
    server.result()


def _spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
