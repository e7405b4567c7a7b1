"""Boosted trees that clients grow with XGBoost: bagging, where all grow at once, and cyclic, one a round.

Chen and Guestrin 2016, joined as by Flower's FedXgbBagging and FedXgbCyclic. A client grows ``local-epochs``
boosting rounds on top of the model, from its own rows; the server puts the trees behind the model's.

opening   n, and sum of y or n_k    before round 1: margins b before the first tree, of all clients' rows
bagging   T_k of each client        T <- T, T_1, T_2, ... in the order of client names
cyclic    T_k of one client         T <- T, T_k; the next client in the order of names, or by seed, goes on

=======  =====================  ============================================  =======
symbol   variable               shape, dtype                                  where
=======  =====================  ============================================  =======
T        state.arrays           `task.trees.ensemble`                         state
b        ``base``               float64 [K]                                   wire, state
T        down ``trees``         int32 [nodes, width], `task.trees.packed`     wire
T_k      up ``new-trees``       int32 [most nodes, width]                     wire
-        state.turns            turns so far, those that were lost too        state
=======  =====================  ============================================  =======

Each tree of a bagging round is fitted to the same residuals, and all are added: a step is as many times
``xgb.eta`` as clients answered. Without sums of gradients the trees depend on who has which rows.

Each client's trees, one leaf of value 1 and one of 2, join the model:

>>> def leaf(value):
...     nodes = np.zeros((1, 10), np.int32)
...     nodes[0, 2], nodes[0, 5:7], nodes[0, 7] = -1, -1, np.float32(value).view(np.int32)
...     return nodes
>>> config = read_config({"algorithm": "xgb-bagging", "xgb.columns": "x(0..1)", "xgb.target": "y(0..9)",
...                       "dataset": "csv"})
>>> rows = {"new-trees": {"rows": np.stack([leaf(1), leaf(2)])}}
>>> replies = AggregatedReplies(rows, ("anna", "ben"), np.array([3, 4]))
>>> state, metrics = server_update(ServerState(TreeEnsemble.empty(np.zeros(1)).to_arrays()), replies, config)
>>> state.arrays["value"].tolist(), metrics
([1.0, 2.0], {'trees': 2})
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from strategies.engine.rule import EVALUATE, TRAIN, Phase, Phases, Round, RoundContext, TooFewRepliesError
from strategies.engine.state import AggregatedReplies, Number, S, ServerState, Updated
from strategies.rules.exact_sums import ROWS, SHA256, ExactSums, hashed, no_sums, totals_in
from task.catalogue.entry import evaluation_of
from task.catalogue.xgb import BASE_SUMS, NEW
from task.config.knobs import Config
from task.errors import DataError
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.numerics.row_sums import value
from task.trees.declared import Declared
from task.trees.ensemble import TreeEnsemble
from task.trees.packed import model_down, unpacked
from task.trees.xgb import XGBoosting, xgb_of

Sizes = dict[str, tuple[int, int]]  # rows and width of records, by name


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Put each client's trees behind the model's, in the order of client names.

    Raises:
        DataError: No client has sent trees over the declared columns, as many as it was asked for.
    """
    asked = xgb_of(config)
    trees = TreeEnsemble.from_arrays(state.arrays, len(asked.variables))
    found = sent_trees(reduced, trees, asked)
    good = [new for new in found.values() if isinstance(new, TreeEnsemble)]
    if not good:
        raise DataError(f"trees: expected those of {', '.join(found)}; {next(iter(found.values()))}")
    for new in good:
        trees = trees.joined(new)
    metrics: dict[str, Number] = {"trees": trees.trees}
    metrics |= {"left-out": len(found) - len(good)} if len(good) < len(found) else {}
    return replace(state, arrays={**state.arrays, **trees.to_arrays()}), metrics


def sent_trees(
    reduced: AggregatedReplies, trees: TreeEnsemble, asked: XGBoosting
) -> dict[str, TreeEnsemble | DataError]:
    """Return, by client in the order of names, its trees, or why they cannot join the model."""
    found: dict[str, TreeEnsemble | DataError] = {}
    for client, nodes in zip(reduced.clients, reduced.arrays[NEW][ROWS], strict=True):
        try:
            new = unpacked(nodes, trees.base, len(asked.variables))
            if new.trees != asked.trees_a_round:
                raise DataError(f"trees: expected {asked.trees_a_round} trees; got {new.trees}")
            found[client] = new
        except DataError as err:
            found[client] = err
    return found


class XGBBagging(ExactSums, algorithm="xgb-bagging", update=server_update):
    """Trees of all clients in each round; see `strategies.rules.xgb`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base = np.zeros(0)  # as found before round 1, like `sites`
        self.opened: list[int] = []

    @cached_property
    def model(self) -> XGBoosting:
        """What is asked for; a strategy may be made before its columns are declared."""
        return xgb_of(self.config)

    def needs(self) -> tuple[str, ...]:
        """Return no client: a round goes on with those that are online."""
        return ()

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        margins = self.model.objective.classes
        return type(self).state({**TreeEnsemble.empty(np.zeros(margins)).to_arrays(), **no_sums()})

    def opening(self, context: RoundContext) -> Phases:
        """Find the margins before the first tree.

        Raises:
            DataError: No client has rows, or none has rows of a class.
        """
        self.sites = tuple(context.names)
        asked = self.model
        replies = yield from self.ask("opening", context, 1 + asked.objective.classes)
        self.opened = totals_in(replies, BASE_SUMS)
        rows, *totals = self.opened
        n, target = int(value(rows)), asked.target
        self.base = asked.objective.base(totals, n, target.scale, target.levels)
        context.remark(f"rows: {n} of {len(self.sites)} clients")

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask all clients of the cohort."""
        state = self._begun(state)
        replies = yield self._phase(state, context, context.cohort)
        return self._taken(state, replies, context)

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Have clients measure the trees on their own test rows."""
        yield asked_to_test(state, self.model, context)

    def _taken(self, state: Any, replies: AggregatedReplies, context: RoundContext) -> Updated[Any]:
        """Return what `server_update` does, and say whose trees cannot join; raises what it does."""
        trees = TreeEnsemble.from_arrays(state.arrays, len(self.model.variables))
        for client, new in sent_trees(replies, trees, self.model).items():
            if isinstance(new, DataError):
                context.remark(f"round {context.round}: client {client} is left out: {new}")
        return type(self).update(state, replies, self.config)

    def _begun(self, state: Any) -> Any:
        """Return the state with the margins before the first tree, which a resumed run keeps."""
        if state.arrays[SHA256].any():
            return state
        first = hashed(state.arrays, self.opened)
        return replace(state, arrays={**first, "base": self.base})

    def _phase(self, state: Any, context: RoundContext, to: Sequence[str]) -> Phase:
        """Return the question for new trees."""
        records, rows = sent_down(state, self.model)
        most = max(context.registered(to).values(), default=1)
        rows[NEW] = self.model.most_nodes(most), self.model.width
        least = max(self.config.server.min_replies, 1) if len(to) > 1 else 1
        return Phase(TRAIN, context.entry, tuple(to), records, {}, {"lr": context.lr}, least=least, rows=rows)


def sent_down(state: ServerState, declared: Declared) -> tuple[dict[str, Arrays], Sizes]:
    """Return the records of the trees that go down, and their sizes."""
    trees = TreeEnsemble.from_arrays(state.arrays, len(declared.variables))
    found = model_down(trees, declared.width)
    return {name: {ROWS: a} for name, a in found.items()}, {n: (len(a), a.shape[1]) for n, a in found.items()}


def asked_to_test(state: ServerState, declared: Declared, context: RoundContext) -> Phase:
    """Return the question for the losses of the trees on the clients' own test rows."""
    records, rows = sent_down(state, declared)
    return Phase(EVALUATE, evaluation_of(context.entry), context.cohort, records, rows=rows)


@dataclass(frozen=True)
class TurnState(ServerState):
    """The trees, and whose turn it is."""

    turns: int = 0  # so far, those that were lost too


class XGBCyclic(XGBBagging, algorithm="xgb-cyclic", state=TurnState):
    """Trees of one client in each round; see `strategies.rules.xgb`."""

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask the client whose turn it is; if it does not answer, the one after it, until each was asked.

        Raises:
            TooFewRepliesError: No client has answered.
        """
        state = self._begun(state)
        order = self._order(context.everybody)
        for turn in range(state.turns, state.turns + len(order)):
            client = order[turn % len(order)]
            if client not in context.names:
                continue
            try:
                replies = yield self._phase(state, context, (client,))
                state, metrics = self._taken(state, replies, context)
            except (DataError, TooFewRepliesError):
                context.remark(f"round {context.round}: the turn of client {client} passes on")
                continue
            return replace(state, turns=turn + 1), metrics
        raise TooFewRepliesError(f"none of {len(order)} clients has answered")

    def _order(self, names: Sequence[str]) -> list[str]:
        """Return the order in which clients take turns."""
        if self.config.xgb.order == "names":
            return sorted(names)
        return sorted(names, key=lambda c: seeds.seed_for(self.config.seeds.train, seeds.CYCLE, 0, c))
