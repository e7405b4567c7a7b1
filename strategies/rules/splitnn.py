"""SplitNN over parties with other columns of the same people, server half.

Vepakomma, Gupta, Swedish and Raskar 2018, arXiv 1812.00564, vertically partitioned data; in windows, of which
one batch an exchange is the paper's, and with local passes as in FedBCD (Liu et al. 2022).

Each party k has a bottom model over its own columns; the party L with the labels has the top model, too. A
round is an epoch over the m common rows, cut into windows of S batches. For each window

1  every party k but L   A_k = f_k(X_k) of the window's rows                          up, then down to L
2  party L               a step of g and f_L on each batch, Q times over; G_k = dL/dA_k of the first pass
                                                                                      up, then down to k
3  every party k but L   a step along G_k on each batch, Q times over, the forward pass done again

and step 3 of a window goes with step 1 of the next one: an epoch of W windows takes 2 W + 1 exchanges.
S = Q = 1 is back-propagation through the whole model, as if the columns lay in one place.

=========  ===========================  ==================================================  =============
symbol     variable                     meaning                                             where
=========  ===========================  ==================================================  =============
A_k        ``embeddings``               outputs of party k's bottom model [rows, c]         wire
G_k        ``gradients``                gradients of the batch's mean loss by A_k           wire
theta_k    -                            the parties' parts of the model                     parties
-          ``digest``                   SHA-256 of a part, which is all the server keeps    wire, state
m          `SplitNN.train`              common rows that are trained on                     server
=========  ===========================  ==================================================  =============

The server relays; its state has, by party, the SHA-256 of that party's part, so that equal runs have equal
``model.safetensors``. Before round 1 the parties find their common rows (`task.vertical.psi`).

>>> digests = {"digest": {"rows": np.array([[[7, 9]]], np.uint8)}}
>>> replies = AggregatedReplies(digests, ("bank",), np.array([3]))
>>> server_update(ServerState({}), replies, Config())[0].arrays
{'bank': array([7, 9], dtype=uint8)}
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strategies.engine.rule import (
    EVALUATE,
    TRAIN,
    Phase,
    Phases,
    Round,
    RoundContext,
    Rule,
    TooFewRepliesError,
)
from strategies.engine.state import AggregatedReplies, S, Updated
from task.config.knobs import Config
from task.errors import AbsentError, ConfigError, DataError, NodesError
from task.numerics.arrays import Arrays
from task.population import listed, some
from task.spec.entry import Algorithm, evaluation_of
from task.vertical import psi
from task.vertical.rows import num_tests, windows

ROWS = "rows"  # the one array of a record of rows
POLICY = "policy: "  # in the error of a node whose owner forbids what it was asked


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take over the digests of the parts of those that answered."""
    digests = reduced.arrays["digest"][ROWS]
    found = {client: digests[i, 0] for i, client in enumerate(reduced.clients)}
    return replace(state, arrays=dict(sorted({**state.arrays, **found}.items()))), {}


class SplitNN(Rule, algorithm="splitnn", update=server_update):
    """Parties with other columns of the same people; see `strategies.rules.splitnn`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.parties: tuple[str, ...] = ()  # sorted; as found before round 1, like the rest
        self.label = ""  # the one with the labels
        self.tests = self.train = 0  # common rows for the test, and to train on

    @property
    def others(self) -> tuple[str, ...]:
        """The parties without the labels."""
        return tuple(party for party in self.parties if party != self.label)

    def needs(self) -> tuple[str, ...]:
        """Return all parties."""
        return self.parties

    # ------------------------------------------------------------------ before round 1

    def opening(self, context: RoundContext) -> Phases:
        """Find the parties, who has the labels, and the common rows."""
        self.parties = self._named(context.names)
        examples, parties = dict(context.examples(self.parties)), self.parties
        ask = _Questions(context, {"session": float(secrets.randbits(52))})
        size = max(examples.values())
        points = {"points": (size, psi.BYTES)}
        replies = yield from ask("points", parties, rows=points)
        self.label = self._labelled(replies)
        self._warn(replies, context)
        sets = dict(zip(replies.clients, replies.arrays["points"][ROWS], strict=True))
        for hop in range(1, len(parties)):
            to = {party: parties[(k - hop) % len(parties)] for k, party in enumerate(parties)}
            replies = yield from ask(
                "mask", parties, {"points": {p: sets[to[p]] for p in parties}}, rows=points
            )
            found = dict(zip(replies.clients, replies.arrays["points"][ROWS], strict=True))
            sets |= {to[party]: found[party] for party in parties}
        places = psi.common_places([sets[party] for party in parties])
        self._split(len(places[0]), examples, context)
        columns = {party: found[:, None] for party, found in zip(parties, places, strict=True)}
        yield from ask("match", parties, {"positions": columns}, rows={"positions": (len(places[0]), 1)})

    def _named(self, online: Sequence[str]) -> tuple[str, ...]:
        """Return the parties: those that the run names, or all."""
        named = tuple(sorted(listed(self.config.vertical.parties)))
        if missing := [name for name in named if name not in online]:
            raise AbsentError(
                f'run-config key "vertical.parties": expected {some(missing)} among the clients that are '
                f"online; got {some(online)}. Start the nodes of {some(missing)}, and the run again with "
                "min-nodes for all of them."
            )
        return named or tuple(sorted(online))

    def _labelled(self, replies: AggregatedReplies) -> str:
        """Return the party with the labels."""
        owners = [c for c, has in zip(replies.clients, replies.scalars["labels"], strict=True) if has]
        if len(owners) != 1:
            got = some(owners) if owners else f"none of {some(replies.clients)}"
            raise DataError(
                f"labels: expected them at exactly one party; got them at {got}. Let one file have a column "
                "called label or typed NAME:target, and type it NAME:ignore in all others."
            )
        return owners[0]

    def _warn(self, replies: AggregatedReplies, context: RoundContext) -> None:
        """Say what is not private, unless the run says what is done about it."""
        vertical = self.config.vertical
        if len(self.parties) > 1 and vertical.defence == "none":
            context.remark(
                f"warning: the gradients that go to {some(self.others)} give away labels of {self.label}, "
                'the more surely the rarer a class is (docs/vertical.md); vertical.defence = "max-norm" or '
                '"gaussian" makes it harder'
            )
        wide = zip(replies.clients, replies.scalars["columns"], strict=True)
        if wide_ones := [c for c, p in wide if 0 < p <= vertical.cut and c != self.label]:
            context.remark(
                f"warning: vertical.cut = {vertical.cut} is not less than the columns of {some(wide_ones)}: "
                "what leaves there may be turned back into the columns; choose a smaller vertical.cut"
            )

    def _split(self, common: int, examples: Mapping[str, int], context: RoundContext) -> None:
        """Take over the number of common rows, and report who loses how many."""
        self.tests = num_tests(common, self.config)
        self.train = common - self.tests
        lost = ", ".join(f"{party} uses {common} of {n}" for party, n in sorted(examples.items()))
        context.remark(f"common rows: {common}, of which {self.tests} are for the test; {lost}")
        if not self.train or not self.tests:
            raise DataError(
                "ids: expected at least two rows that all parties have, one of them to be tested on; got "
                f"{common}: {lost}. Compare how the ids are written, and which rows each file has."
            )

    # ------------------------------------------------------------------ rounds

    def round(self, state: Any, context: RoundContext) -> Round:
        """Go once over the common rows, window by window."""
        ask, others, width = _Questions(context, {"lr": context.lr}), self.others, self.config.vertical.cut
        spans, gradients = windows(self.train, self.config), np.zeros((0, width * len(others)), np.float32)
        losses: list[float] = []
        for w, (start, stop) in enumerate(spans):
            size = stop - start
            joint = yield from self._embedded(ask, w, gradients, size)
            rows = {"embeddings": joint.shape, "gradients": joint.shape, "digest": (1, psi.BYTES)}
            last = yield from ask(TRAIN, (self.label,), records={"embeddings": joint}, rows=rows, window=w)
            gradients = last.arrays["gradients"][ROWS][0]
            losses.append(last.needed("train-loss") * size)
        state, _ = type(self).update(state, last, self.config)
        if others:
            done = yield from self._step(ask, len(spans), gradients, 0, books=TRAIN)
            state, _ = type(self).update(state, done, self.config)
        return state, {"exchanges": 2 * len(spans) + 1 if others else len(spans), "rows": self.train}

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Let the parties embed the common test rows, and the one with the labels measure the whole model."""
        ask = _Questions(context, {"lr": context.lr})
        w = len(windows(self.train, self.config))
        none = np.zeros((0, self.config.vertical.cut * len(self.others)), np.float32)
        joint = yield from self._embedded(ask, w, none, self.tests, tests=1)
        yield from ask(
            EVALUATE, (self.label,), records={"embeddings": joint}, rows={"embeddings": joint.shape}, window=w
        )

    def _embedded(
        self, ask: "_Questions", w: int, gradients: np.ndarray, size: int, tests: int = 0
    ) -> Generator[Phase, AggregatedReplies, np.ndarray]:
        """Return the other parties' embeddings of a window, side by side, after a step on the one before."""
        if not self.others:
            return np.zeros((size, 0), np.float32)
        replies = yield from self._step(ask, w, gradients, size, tests=tests)
        return np.concatenate(list(replies.arrays["embeddings"][ROWS]), axis=1)

    def _step(
        self, ask: "_Questions", w: int, gradients: np.ndarray, size: int, tests: int = 0, books: str = ""
    ) -> Generator[Phase, AggregatedReplies, AggregatedReplies]:
        """Ask the other parties to step along their gradients and to embed so many rows."""
        width = self.config.vertical.cut
        own = {p: gradients[:, k * width : (k + 1) * width] for k, p in enumerate(self.others)}
        rows = {"gradients": (len(gradients), width), "embeddings": (size, width), "digest": (1, psi.BYTES)}
        return (
            yield from ask(
                "embed", self.others, {"gradients": own}, rows=rows, books=books, window=w, tests=tests
            )
        )


class _Questions:
    """Puts phases to parties of which none may be missing."""

    def __init__(self, context: RoundContext, scalars: Mapping[str, float]) -> None:
        self.context, self.scalars = context, scalars

    def __call__(
        self,
        name: str,
        to: Sequence[str],
        route: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        records: Mapping[str, np.ndarray] | None = None,
        rows: Mapping[str, tuple[int, ...]] | None = None,
        books: str = "",
        **scalars: float,
    ) -> Generator[Phase, AggregatedReplies, AggregatedReplies]:
        """Yield one phase, with arrays by record, for all or by party; return the replies of all.

        Raises:
            AbsentError: A party is not online.
            NodesError: A party gave no usable reply.
            ConfigError: The owner of a party's node does not allow one.
        """
        entry, t = self.context.entry, self.context.round
        contracts: dict[str, Algorithm] = {TRAIN: entry, EVALUATE: evaluation_of(entry), **entry.phases}
        if missing := [party for party in to if party not in self.context.names]:
            raise AbsentError(
                f"round {t}: every party is needed; expected {some(missing)} online; got "
                f"{some(self.context.names)}. Start the nodes of {some(missing)} and resume the run."
            )
        each = {
            field: {party: {party: {ROWS: np.ascontiguousarray(a)}} for party, a in given.items()}
            for field, given in (route or {}).items()
        }
        sizes = {field: (size[0], size[1]) for field, size in (rows or {}).items()}
        shared: dict[str, Arrays] = {field: {ROWS: a} for field, a in (records or {}).items()}
        phase = Phase(
            name, contracts[name], tuple(to), shared, each, {**self.scalars, **scalars}, least=len(to),
            rows=sizes, books=books,
        )  # fmt: skip
        try:
            return (yield phase)
        except TooFewRepliesError as err:
            why = "; ".join(str(line) for line in err.rejected[:3]) or str(err)
            if any(POLICY in line.got for line in err.rejected):
                raise ConfigError(
                    f"round {t}: every party is needed, and a site's owner does not allow what leaves it, "
                    f"numbers of single rows: {why}. The owner allows it with min-examples = 1 in [policy] "
                    "of its kit.toml"
                ) from None
            raise NodesError(
                f"round {t}: every party is needed, and the phase {name!r} lacks a usable reply: {why}. "
                "Correct the cause and resume the run; it does the round again."
            ) from None
