"""SecureBoost: boosted trees over parties with other columns of the same people, server half.

Cheng et al. 2019, arXiv 1901.08755. The party L with the labels has the derivatives g and h of each row's
loss and searches the splits. The others sum these numbers up by their columns' bins, encrypted under L's
Paillier key, and never see one; L never sees another party's values or cuts. All numbers are integers of one
grid (`task.trees.objectives`), so that each split is that of the columns in one table (`task.trees.splits`).

A round is a tree. It grows in steps, a level each or, leaf-wise, a split:

1  party L                E(g, h) of each row, in the first step only                   up, then down to k
2  every party k but L    E(sums of g, h, 1) by column and bin of the nodes asked for   up, then down to L
3  party L                the nodes that are split, and to each k which of its columns
                          and cuts split which; the nodes to ask for next               up, then down to k
4  every party            which rows go left in nodes that its columns split            up, then down to all

and step 4 goes down with steps 2 and 3 of the next step; L sends its own directions with step 3. Of two
children the smaller one is asked for, which L subtracts from their parent. Test rows are sent along.

=========  =====================  =======================================================  =============
symbol     variable               meaning                                                  where
=========  =====================  =======================================================  =============
E(g, h)    ``ciphers``            a row's numbers as one ciphertext (`vertical.gradients`)  wire
n_L        ``moduli``             L's public key                                           wire
-          ``histograms``         ciphertexts of the sums, several in each                 wire
-          ``splits``             node, column, cut and default by number; -1 = another's  wire
-          ``sides``              1 = left, 2 = right, 0 = none of the party's nodes       wire
-          ``proofs``             whose each record is (`task.vertical.proofs`)            wire
-          -                      trees at L; columns and cuts of its own splits at k      parties
-          ``digest``             SHA-256 of a part, which is all the server keeps         wire, state
m          `Parties.train`        common rows that trees are grown from                    server
=========  =====================  =======================================================  =============
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strategies.engine.rule import EVALUATE, TRAIN, Phase, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, Number, ServerState
from strategies.rules.parties import ROWS, Numbers, Parties, Questions, by_party, take_digests
from task.config.knobs import Config
from task.errors import NodesError
from task.trees.boosting import growth_of
from task.vertical import psi
from task.vertical.gradients import Packing
from task.vertical.paillier import widths
from task.vertical.proofs import PROOF_BYTES

Sizes = dict[str, tuple[int, ...]]  # rows and width, by record
SPLIT = 4  # numbers of a split: node, column, cut, default


@dataclass(frozen=True)
class TreesState(ServerState):
    """The digests of the parts, and whether further trees no longer help."""

    ended: bool = False


class SecureBoost(Parties, algorithm="secureboost", update=take_digests, state=TreesState):
    """Boosted trees over parties; see `strategies.rules.secureboost`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        growth_of(config.gbdt, 1.0)  # which raises what is wrong
        self.bins: dict[str, np.ndarray] = {}  # by party without labels, the number of cuts of each column

    @property
    def rows(self) -> int:
        """The common rows, those of the test counted."""
        return self.tests + self.train

    def warn(self, context: RoundContext) -> None:
        """Say what is not private."""
        if self.others and self.config.vertical.key_bits == 0:
            context.remark(
                "warning: vertical.key-bits = 0: gradients of rows, and so labels, are sent unencrypted; "
                "set it to 2048"
            )

    def opening(self, context: RoundContext) -> Phases:
        """Find the common rows, and how many bins the columns have."""
        yield from super().opening(context)
        if self.others:
            most = max(self.columns[party] for party in self.others)
            found = yield from Questions(context, {})("bins", self.others, rows={"bins": (most, 1)}, step=0)
            self.bins = by_party(found, "bins")

    def round(self, state: Any, context: RoundContext) -> Round:
        """Grow a tree."""
        ask = Questions(context, {"label": float(self.parties.index(self.label))}, self.parties)
        cipher, plain = widths(self.config.vertical.key_bits)
        sizes: Sizes = {"ciphers": (self.train if self.others else 0, cipher), "moduli": (1, plain)}
        begun = yield from ask("gradients", (self.label,), rows={**sizes, "proof": (1, PROOF_BYTES)}, step=0)
        numbers = {name: begun.arrays[name][ROWS][0] for name in ("moduli", "ciphers", "proof")}
        sides: Numbers = {}  # directions of the last step, by party, and their proofs
        proofs: Numbers = {}
        step, leaves, asked = 0, 1, 1
        while asked:
            sums = yield from self._sums(ask, step, asked, numbers, sides, proofs)
            given = sums | self._last(sides, proofs, self.label, sums["proofs"])
            rows: Sizes = {"splits": (len(self.others) * leaves, SPLIT), "asked": (leaves, 1)}
            rows |= {"sides": (1, self.rows), "proof": (len(self.others) + 1, PROOF_BYTES)}
            found = yield from ask(
                "search", (self.label,), self._for_label(given), rows=rows | _sizes(given), step=step
            )
            split, asked = (int(found.scalars[name][0]) for name in ("splits", "asked"))
            if not asked <= split <= leaves:
                raise NodesError(
                    f"round {context.round}: client {self.label}: expected at most {leaves} nodes to be "
                    f"split, and no more to be asked for; got {split} and {asked}. Correct the cause and "
                    "resume the run."
                )
            if not split:
                break
            sides, proofs = yield from self._divided(ask, step, leaves, found)
            step, leaves = step + 1, leaves + split
        given = self._last(sides, proofs, self.label) | {"bins": self._layouts}
        rows = _sizes(given) | {"digest": (1, psi.BYTES)}
        last = yield from ask(
            TRAIN, (self.label,), self._for_label(given), rows=rows, log_as=TRAIN, step=step
        )
        state, _ = type(self).update(state, last, self.config)
        metrics: dict[str, Number] = {"leaves": leaves, "rows": self.train}
        if "held-out-loss" in last.scalars:
            metrics["held-out-loss"] = float(last.scalars["held-out-loss"][0])
            state = replace(state, ended=bool(last.scalars["ended"][0]))
        if self.others:
            digest = {"digest": (1, psi.BYTES)}
            done = yield from ask("close", self.others, rows=digest, log_as=TRAIN, step=step)
            state, _ = type(self).update(state, done, self.config)
        return state, metrics

    def finished(self, state: Any) -> bool:
        """Return whether further trees no longer help."""
        return bool(state.ended)

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Let the party with the labels measure the trees on the common test rows."""
        yield from Questions(context, {})(EVALUATE, (self.label,), step=0)

    @property
    def _layouts(self) -> np.ndarray:
        """The numbers of cuts of the columns of all parties without labels, one below the other."""
        return np.concatenate([np.zeros((0, 1), np.int32), *(self.bins[k] for k in self.others)])

    def _sums(
        self, ask: Questions, step: int, asked: int, numbers: Numbers, sides: Numbers, proofs: Numbers
    ) -> Generator[Phase, AggregatedReplies, dict[str, np.ndarray]]:
        """Return what the parties without labels add up of the nodes that are asked for."""
        cipher, _ = widths(self.config.vertical.key_bits)
        if not self.others:
            none = {
                "histograms": np.zeros((0, cipher), np.uint8),
                "proofs": np.zeros((0, PROOF_BYTES), np.uint8),
            }
            return none | {"bins": self._layouts}
        begin = {name: a if step == 0 else a[:0] for name, a in numbers.items()}
        given = {
            k: {"moduli": begin["moduli"], "ciphers": begin["ciphers"]}
            | self._last(sides, proofs, k, begin["proof"])
            for k in self.others
        }
        packing = Packing(self.train)
        cells = max(int(n[n >= 0].sum() + 2 * (n >= 0).sum()) for n in self.bins.values())
        packs = -(-asked * cells // packing.slots(self.config.vertical.key_bits))
        rows = _sizes(given[self.others[0]]) | {"histograms": (packs, cipher), "proof": (1, PROOF_BYTES)}
        found = yield from ask("histograms", self.others, _by_record(given), rows=rows, step=step)
        sums = {name: np.concatenate(list(found.arrays[name][ROWS])) for name in ("histograms", "proof")}
        return {"histograms": sums["histograms"], "proofs": sums["proof"], "bins": self._layouts}

    def _divided(
        self, ask: Questions, step: int, leaves: int, found: AggregatedReplies
    ) -> Generator[Phase, AggregatedReplies, tuple[Numbers, Numbers]]:
        """Return all parties' directions of rows in the nodes that are split, and the proofs of these."""
        splits, asked, own, proof = (found.arrays[n][ROWS][0] for n in ("splits", "asked", "sides", "proof"))
        sides, proofs = {self.label: own}, {self.label: proof[-1:]}
        if self.others:
            given = {
                k: {
                    "splits": splits[i * leaves : (i + 1) * leaves],
                    "asked": asked,
                    "proofs": proof[i : i + 1],
                }
                for i, k in enumerate(self.others)
            }
            rows = _sizes(given[self.others[0]]) | {"sides": (1, self.rows), "proof": (1, PROOF_BYTES)}
            done = yield from ask("divide", self.others, _by_record(given), rows=rows, step=step)
            sides |= by_party(done, "sides")
            proofs |= by_party(done, "proof")
        return sides, proofs

    def _last(
        self, sides: Numbers, proofs: Numbers, party: str, before: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return what a party gets of the others' last directions; `before` are proofs of other records."""
        none = np.zeros((0, self.rows), np.uint8)
        first = np.zeros((0, PROOF_BYTES), np.uint8) if before is None else before
        return {
            "directions": np.concatenate([none, *(a for k, a in sorted(sides.items()) if k != party)]),
            "proofs": np.concatenate([first, *(a for k, a in sorted(proofs.items()) if k != party)]),
        }

    def _for_label(self, given: Mapping[str, np.ndarray]) -> dict[str, Numbers]:
        return {name: {self.label: a} for name, a in given.items()}


def _by_record(given: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """Return by record and party what is given by party and record."""
    names = next(iter(given.values()))
    return {name: {party: records[name] for party, records in given.items()} for name in names}


def _sizes(given: Mapping[str, np.ndarray]) -> Sizes:
    return {name: a.shape for name, a in given.items()}
