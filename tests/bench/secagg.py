"""``secagg``: what a secure round costs its nodes and its server, beside training, by nodes and drop-outs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from task.secagg import node as steps
from task.secagg.fixed_point import EXACT
from task.secagg.node import RoundMemory
from task.secagg.protocol import Rules, Session
from task.secagg.server import Aggregation
from task.secagg.shamir import SHARE_BYTES
from task.secagg.vector import NUMBER_BYTES, Vector, as_residues, as_words
from tests.bench.readings import Row, paired
from tests.bench.rounds import Bench

PARAMETERS = 199_210  # of 2nn
NUMBERS = 28  # scalars' sums of FedAvg
PARTIAL_BYTES = 8  # of a number in a plain merged reply
# Nodes, those of them that are lost after they sent their shares, bits. Of three nodes all are needed.
CASES = ((3, 0, 96), (10, 0, 96), (10, 0, 64), (10, 0, 32), (10, 2, 96), (50, 0, 96), (50, 10, 96))


def _name(n: int, lost: int, bits: int) -> str:
    return f"{n}{f'-lost-{lost}' if lost else ''}{f'-bits-{bits}' if bits < EXACT else ''}"


ROWS = tuple(f"secagg-{side}-{_name(*case)}" for case in CASES for side in ("node", "server"))


def secagg(bench: Bench) -> Iterator[Row]:
    """Compare a node's masks with passes over its limbs, the server's round with adding plain partials."""
    size, passes = (1000, 2) if bench.quick else (PARAMETERS, max(5, bench.repeat))
    rng = np.random.default_rng(0)
    high, low = rng.integers(-(2**30), 2**30, size), rng.integers(0, 2**31, size)
    for n, lost, bits in CASES:
        words = as_words(high, low) if bits == EXACT else as_residues(high, bits)
        whole: list[float] = []
        node: list[float] = []
        one_pass: list[float] = []
        server: list[float] = []
        plain: list[float] = []
        total_high, total_low = high.copy(), low.copy()  # memory that was written to: no page faults below
        for turn in range(passes + 1):
            spent = one_round(n, lost, words, str(turn))
            total_high[:], total_low[:] = 0, 0
            began = time.process_time()
            for _ in range(n - lost):
                total_high += high
                total_low += low
            added = time.process_time() - began
            if turn:  # the first is not counted
                whole.append(spent[0] * 1e3)
                node.append(spent[2] * 1e3 / n)  # n - 1 neighbours and its own mask
                one_pass.append(added * 1e3 / (n - lost))
                server.append(spent[1] * 1e3)
                plain.append(added * 1e3)
        up = (
            64
            + (n - 1) * (2 * SHARE_BYTES + 16)
            + n * SHARE_BYTES
            + size * bits // 8
            + NUMBERS * NUMBER_BYTES
        )
        times = up / (size * PARTIAL_BYTES)
        detail = f"{up:,} bytes up a node, {times:.2f} times those of a plain merged reply; "
        detail += f"{np.median(whole):.1f} ms a node's round, its keys and shares with it"
        what = f"{n} nodes, {lost} lost, {bits} bits: "
        one = f"{what}a mask : adding a partial that is in the cache"
        yield paired(f"secagg-node-{_name(n, lost, bits)}", one, node, one_pass, 2.0, "ms", detail)
        what += "the server's round : adding the partials"
        yield paired(f"secagg-server-{_name(n, lost, bits)}", what, server, plain, None, "ms", "")


def one_round(
    n: int, lost: int, words: tuple[np.ndarray, np.ndarray], attempt: str
) -> tuple[float, float, float]:
    """Run a round; return the seconds of one node, of the server, and of the node's masking."""
    session, rules = Session("bench", 1, "train", attempt), Rules()
    server = Aggregation(session, rules)
    names = [f"node-{i:02}" for i in range(n)]
    states, keys = {}, {}
    of_node = of_server = masking = 0.0

    def lap(began: float) -> float:
        return time.process_time() - began

    for name in names:
        began = time.process_time()
        states[name], keys[name] = steps.give_keys(RoundMemory(), session)
        of_node += lap(began) / n
    began = time.process_time()
    roster = server.take_keys(keys)
    of_server += lap(began)
    sealed = {}
    for name in names:
        began = time.process_time()
        states[name], sealed[name] = steps.give_shares(states[name], session, rules, roster)
        of_node += lap(began) / n
    senders = server.take_shares(sealed)
    alive = names[lost:]
    for name in alive:
        vector = Vector(words[0].copy(), words[1].copy(), [0] * NUMBERS)
        began = time.process_time()
        states[name] = steps.mask(states[name], session, rules, roster, senders, vector)
        masking += lap(began) / len(alive)
        began = time.process_time()
        server.add(name, vector)
        of_server += lap(began)
    shares = {}
    for name in alive:
        inbox = server.shares_for(name)
        began = time.process_time()
        _, shares[name] = steps.unmask(states[name], session, rules, roster, senders, alive, inbox)
        of_node += lap(began) / len(alive)
    began = time.process_time()
    server.take_unmask(shares)
    return of_node + masking, of_server + lap(began), masking
