"""Gradient-boosted trees over sites by exact sums: every split is the one of the pooled rows.

Chen and Guestrin 2016, with histograms. A round is a tree, or one a class. The server asks all sites for sums
of g and h by node, column and bin, whole numbers of a declared grid, and finds the pooled rows' best splits.

base      n, sum of y or n by class      before round 1; the margins before the first tree
counts    values up to candidates        in round 1, by bisection: the cuts (`task.trees.cuts`)
train     histograms of nodes            a level of the trees, or a split (`task.trees.grow`)
losses    sums of losses                 after the tree, of the rows that trees grow from and of others

=========  ========================  ========================================================  ===========
symbol     variable                  meaning                                                   where
=========  ========================  ========================================================  ===========
-          state.grown               all trees (`task.trees.ensemble`)                         state
-          the arrays of `TreeEnsemble`  those up to the best one, with ``gbdt.patience``          result
-          ``losses``                by round: loss, loss and errors of the rows held out      result
-          ``sums-sha256``           of the integers of all questions, one after the other     state
G, H, n    histograms                sums of derivatives and rows, by node, column and bin     wire
=========  ========================  ========================================================  ===========

Where noise protects each row (`task.trees.noised`), only the question ``train`` is asked: of histograms, and
once more a tree of the sums of its leaves. Cuts are declared, and the first margins tell nothing.

Every site must answer each question (`strategies.rules.exact_sums`), and the sites must stay the same from
the first round to the last: a tree of other rows would not continue these ones.

With a patience of 2, the third round without a lower loss of rows held out ends the run:

>>> keys = {"gbdt.columns": "x(0..1)", "gbdt.target": "y(0..1)", "gbdt.held-out": 0.5, "gbdt.patience": 2}
>>> config = read_config({"algorithm": "gbdt", "dataset": "csv", **keys})
>>> improved([0.5, 0.4, 0.45, 0.41]), waits([0.5, 0.4, 0.45, 0.41], config.gbdt.patience)
(2, False)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from strategies.engine.rule import TRAIN, Phase, Phases, Round, RoundContext
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.exact_sums import ROWS, ExactSums, hashed, hashed_bytes, no_sums, totals_in
from strategies.rules.xgb import asked_to_test
from task.catalogue.trees import BASE, COUNTS, HISTOGRAMS, LOSSES, PIVOTS
from task.config.knobs import Config
from task.errors import DataError
from task.numerics.arrays import Arrays
from task.numerics.row_sums import DIGITS, to_wire, value
from task.trees.boosting import Boosting, boosting_of, improved, waits
from task.trees.cuts import RANGES, Cuts, CutSearch, below, merged
from task.trees.ensemble import LEAF, TreeEnsemble
from task.trees.grow import GrowingTree
from task.trees.histograms import CellLayout
from task.trees.noised import ENDS, agreeing, careful, derivatives_in, deviation, first_margins
from task.trees.objectives import SQUARED
from task.trees.orders import TreeOrder, chained, start_digest
from task.trees.rows import BoostedRows
from task.trees.sampling import columns_drawn
from task.trees.splits import expanded

Asking = Generator[Phase, AggregatedReplies, AggregatedReplies]
_PATIENT = 2  # of three first questions that sites lack trees for, the next has all


@dataclass(frozen=True)
class BoostingState(ServerState):
    """The result so far, and what trees grow from."""

    grown: Arrays = field(default_factory=dict)  # all trees
    cuts: Arrays = field(default_factory=dict)  # of the numbers' columns, and where each column's begin
    cohort: Arrays = field(default_factory=dict)  # names of the sites, and sums of their rows before round 1
    ended: bool = False


def nothing(boosting: Boosting) -> Arrays:
    """Return the arrays of a result without trees."""
    empty = TreeEnsemble.empty(np.zeros(boosting.objective.classes))
    found = {**empty.to_arrays(), **no_sums()}
    return found if boosting.noised else {**found, "losses": np.zeros((0, 3)), "figures": np.zeros(2)}


def server_update(state: BoostingState, reduced: AggregatedReplies, config: Config) -> Updated[BoostingState]:
    """Take the losses after a round's trees in, and choose how many of all trees are the result."""
    boosting, totals = boosting_of(config), totals_in(reduced, LOSSES)
    objective = boosting.objective
    _, rows, loss, _, held, held_loss, wrong = totals
    counts = [int(value(n)) for n in (rows, held)]
    found = [
        objective.mean_loss(value(total), n) if n else 0.0
        for total, n in zip((loss, held_loss), counts, strict=True)
    ]
    errors = float(value(wrong) / counts[1]) if counts[1] else 0.0
    losses = np.concatenate([state.arrays["losses"], [[*found, errors]]])
    trees = TreeEnsemble.from_arrays(state.grown, len(boosting.variables))
    rounds, patience = len(losses), boosting.patience if counts[1] else 0
    best = improved(losses[:, 1].tolist()) if patience else rounds
    state = replace(
        state,
        arrays={
            **hashed(state.arrays, totals),
            **trees.prefix(best * objective.classes).to_arrays(),
            "losses": losses,
            "figures": np.array([counts[0], counts[1]], np.float64),
        },
        ended=bool(patience) and not waits(losses[:, 1].tolist(), patience),
    )
    metrics: dict[str, Number] = {"pooled-loss": found[0]}
    if counts[1]:
        metrics["held-out-loss"] = found[1]
        if objective.name != SQUARED:
            metrics["held-out-error"] = errors
    return state, metrics


class GBDT(ExactSums, algorithm="gbdt", update=server_update, state=BoostingState):
    """Gradient-boosted trees by exact sums; see `strategies.rules.gbdt`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.opened: list[int] = []  # as found before round 1, like `sites`
        self.informed = False  # whether the sites have had all trees from this process
        # Questions with a round's trees alone, and those for which a site lacked others: a node may run each
        # message in a process of its own.
        self.tried = self.lacked = 0

    @cached_property
    def boosting(self) -> Boosting:
        """What is asked for; a strategy may be made before its columns are declared."""
        return boosting_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return BoostingState(nothing(self.boosting))

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Have clients measure the trees on rows that they have set aside, by ``fraction-evaluate``."""
        yield asked_to_test(state, self.boosting, context)

    def opening(self, context: RoundContext) -> Phases:
        """Find the sites, and what the base margins follow from.

        Raises:
            DataError: There are no rows, or all are of one class.
        """
        self.sites = tuple(context.names)
        if self.boosting.noised:
            return
        replies = yield from self.ask("base", context, BoostedRows.base_size(self.boosting))
        self.opened = totals_in(replies, BASE)
        self._base()
        rows, held = (int(value(self.opened[i])) for i in (0, -1))
        apart = f", {held} more held out" if held else ""
        context.remark(f"rows: {rows} of {len(self.sites)} clients{apart}")

    def _base(self) -> npt.NDArray[np.float64]:
        b = self.boosting
        if b.noised:
            return first_margins(b.objective, b.target)
        rows, *sums = self.opened[: 1 + b.objective.classes]
        return b.objective.base(sums, int(value(rows)), b.target.scale, b.target.levels)

    def round(self, state: Any, context: RoundContext) -> Round:
        """Grow the round's trees, and ask for the losses.

        Raises:
            NodesError: The sites are not those of the first round.
            DataError: A site's rows have changed, or sums do not add up.
        """
        cohort = {"names": self.names, "base": to_wire(self.opened)}
        if state.grown:
            self.check_sites(state.cohort["names"], context)
        if not state.grown:
            state = yield from self._begun(replace(state, cohort=cohort), context)
        elif (state.cohort["base"] != cohort["base"]).any():
            raise DataError(
                f"round {context.round}: expected the rows of round 1; a site has others now. Put its data "
                "back and resume the run, or begin another"
            )
        if self.boosting.noised:
            state = yield from NoisedQuestions(self, state, context).grow()
            return replace(state, arrays={**state.arrays, **state.grown}), {}
        questions = TreeQuestions(self, state, context)
        state = yield from questions.grow()
        replies = yield from questions.losses()
        return type(self).update(state, replies, self.config)

    def finished(self, state: Any) -> bool:
        """Return whether further trees no longer help."""
        return bool(state.ended)

    def _begun(
        self, state: BoostingState, context: RoundContext
    ) -> Generator[Phase, AggregatedReplies, BoostingState]:
        """Find the cuts."""
        b, arrays = self.boosting, hashed(state.arrays, self.opened)
        first = 1 + b.objective.classes
        present = [int(value(n)) for n in self.opened[first : first + len(b.numbers)]]
        cuts = b.declared_cuts()
        if b.cuts != RANGES and b.numbers:
            search = CutSearch.begin(b.candidates, present, b.bins)
            while not search.ended:
                counts = yield from self._counts(context, search.asked())
                arrays, search = hashed(arrays, counts.tolist()), search.after(counts)
            cuts = search.found()
        if b.least > 1:
            counts = yield from self._counts(context, below(cuts))
            arrays, at = hashed(arrays, counts.tolist()), np.cumsum([0, *map(len, cuts)])
            parts = [counts[i:k] for i, k in pairwise(at)]
            cuts = [merged(*part, b.least) for part in zip(cuts, parts, present, strict=True)]
        starts = np.cumsum([0, *map(len, cuts)])
        found = {"cuts": np.concatenate([np.zeros(0, np.float32), *cuts]), "starts": starts.astype(np.int64)}
        empty = TreeEnsemble.empty(self._base()).to_arrays()
        return replace(state, arrays={**arrays, **empty}, grown=empty, cuts=found)

    def _counts(
        self, context: RoundContext, pivots: npt.NDArray[np.float64]
    ) -> Generator[Phase, AggregatedReplies, npt.NDArray[np.int64]]:
        if not len(pivots):
            return np.zeros(0, np.int64)
        replies = yield from self.ask("counts", context, len(pivots), {PIVOTS: pivots}, width=1)
        return replies.arrays[COUNTS][ROWS][:, 0]


class TreeQuestions:
    """The questions of one round."""

    ends = 0  # further numbers of a histogram's answer

    def __init__(self, rule: GBDT, state: BoostingState, context: RoundContext) -> None:
        self.rule, self.state, self.context, b = rule, state, context, rule.boosting
        self.trees = TreeEnsemble.from_arrays(state.grown, len(b.variables))
        starts = state.cuts["starts"]
        self.cuts: list[Cuts] = [state.cuts["cuts"][i:k] for i, k in pairwise(starts)]
        self.round = self.trees.trees // b.objective.classes + 1
        self.columns = columns_drawn(len(b.variables), b.colsample, b.seed, self.round)
        self.layout: CellLayout = b.layout(self.cuts).chosen(self.columns)

    def grow(self) -> Generator[Phase, AggregatedReplies, BoostingState]:
        """Grow the round's trees; return the state with them."""
        b = self.rule.boosting
        trees = [
            GrowingTree(self.layout, self.columns, b.penalties, b.shape, b.noised)
            for _ in range(b.objective.classes)
        ]
        while any(tree.asked for tree in trees):
            found = iter((yield from self._histograms(trees)))
            for tree in trees:
                histograms = {number: next(found) for number in tree.asked}
                try:
                    tree.take(histograms)
                except ValueError:
                    raise DataError(
                        f"round {self.context.round}: expected each column's sums to add up to those of its "
                        "node; those of the sites do not. Do all run the same app on unchanged data?"
                    ) from None
        return (yield from self._grown(trees))

    def _histograms(
        self, trees: Sequence[GrowingTree]
    ) -> Generator[Phase, AggregatedReplies, npt.NDArray[np.int64]]:
        """Ask for the histograms that trees need; return them, int64 [nodes, cells, 3]."""
        objective, cells = self.rule.boosting.objective, self.layout.cells
        h = 1 << objective.unit_bits if objective.name == SQUARED else 0
        totals = yield from self._totals(trees, [tree.asked for tree in trees], cells * (2 if h else 3))
        return expanded(totals[1:], cells, h)

    def _totals(
        self, trees: Sequence[GrowingTree], nodes: Sequence[Sequence[int]], size: int
    ) -> Generator[Phase, AggregatedReplies, npt.NDArray[np.int64]]:
        """Ask for so many numbers of each of some nodes, given by tree; return what comes."""
        asked = [(k, tree.order().index(number)) for k, tree in enumerate(trees) for number in nodes[k]]
        growing = reduce(TreeEnsemble.joined, [tree.tree(k) for k, tree in enumerate(trees)])
        replies = yield from self._ask(TRAIN, HISTOGRAMS, growing, len(asked) * size, 1, asked)
        totals = replies.arrays[HISTOGRAMS][ROWS][:, 0]
        arrays = hashed_bytes(self.state.arrays, totals.astype("<i8").tobytes())
        self.state = replace(self.state, arrays=arrays)
        return totals

    def _grown(self, trees: Sequence[GrowingTree]) -> Generator[Phase, AggregatedReplies, BoostingState]:
        """Return the state with trees that are grown."""
        grown = [tree.tree(k) for k, tree in enumerate(trees)]
        self.trees = reduce(TreeEnsemble.joined, grown, self.trees)
        return replace(self.state, grown=self.trees.to_arrays())
        yield  # a question, where sums have noise

    def losses(self) -> Asking:
        """Ask for the losses after the round's trees."""
        nothing_grows = TreeEnsemble.empty(self.trees.base)
        self.round += 1  # as many trees are there now
        return self._ask("losses", LOSSES, nothing_grows, BoostedRows.losses_size(), DIGITS)

    def _ask(
        self,
        phase: str,
        record: str,
        growing: TreeEnsemble,
        size: int,
        width: int,
        asked: Sequence[tuple[int, int]] = (),
    ) -> Asking:
        """Ask with the last round's trees; with all, if a site lacks those before, or sites mostly did."""
        classes = self.rule.boosting.objective.classes
        numbers = size if phase != TRAIN else size + 1 + self.ends
        forget = 2 * self.rule.lacked > self.rule.tried + _PATIENT
        # With noise a second answer would cost once more.
        noised = self.rule.boosting.noised
        wholes = [False, True] if self.rule.informed and not forget and not noised else [True]
        self.rule.tried += not wholes[0]
        for whole in wholes:
            known = 0 if whole else max(self.trees.trees - classes, 0)
            before = chained(start_digest(self.trees.base, self.cuts), self.trees.prefix(known))
            order = TreeOrder(
                self.round, before, self.trees.suffix(known), growing, asked, self.columns, self.cuts, whole
            )
            sent = order.rows(self.rule.boosting.width)
            replies = yield from self.rule.ask(phase, self.context, numbers, sent, width=width)
            if not replies.arrays[record][ROWS][0].any():
                self.rule.informed = True
                return replies
            self.rule.lacked += 1
        raise DataError(
            f"round {self.context.round}: expected all sites to know the trees that came with the question; "
            "some do not. Do all run the same app on unchanged data?"
        )


class NoisedQuestions(TreeQuestions):
    """The questions of one round where noise protects each row; the last one is about the leaves."""

    ends = ENDS

    def _histograms(
        self, trees: Sequence[GrowingTree]
    ) -> Generator[Phase, AggregatedReplies, npt.NDArray[np.int64]]:
        found = yield from self._noised(trees, [tree.asked for tree in trees], self.layout.cells)
        return np.stack([agreeing(histogram, self.layout) for histogram in found])

    def _grown(self, trees: Sequence[GrowingTree]) -> Generator[Phase, AggregatedReplies, BoostingState]:
        leaves = [
            [number for number in tree.order() if tree.nodes[number].children[0] == LEAF] for tree in trees
        ]
        columns, self.columns = self.columns, []
        found = iter((yield from self._noised(trees, leaves, 1)))
        self.columns = columns
        for tree, numbers in zip(trees, leaves, strict=True):
            for number in numbers:
                tree.sum_up(number, next(found)[0])
        state = yield from super()._grown(trees)
        # Rows are not counted, and H stands in their place.
        return replace(state, grown={**state.grown, "rows": np.zeros_like(state.grown["rows"])})

    def _noised(
        self, trees: Sequence[GrowingTree], nodes: Sequence[Sequence[int]], cells: int
    ) -> Generator[Phase, AggregatedReplies, npt.NDArray[np.int64]]:
        """Ask for the sums of nodes' cells; return them, int64 [nodes, cells, 3]."""
        config, b = self.rule.config, self.rule.boosting
        totals = yield from self._totals(trees, nodes, 2 * cells)
        wide = deviation(config.dp.noise, b.objective, len(self.columns), int(totals[-1]))
        for tree in trees:
            tree.penalties = careful(b.penalties, b.objective, wide, self.layout if self.columns else None)
        return derivatives_in(b.objective, totals[1:-1], sum(map(len, nodes)))
