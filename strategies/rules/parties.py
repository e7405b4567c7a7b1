"""Common parts of the vertical rules, whose clients are parties with different columns of the same rows.

Before round 1 the parties find their common rows (`task.vertical.psi`), and who has the labels. A round needs
all of them. `strategies.rules.splitnn` and `strategies.rules.vertical_logistic` are such rules.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from strategies.engine.refusals import not_by_all
from strategies.engine.rule import EVALUATE, TRAIN, Phase, Phases, RoundContext, Rule, TooFewRepliesError
from strategies.engine.state import AggregatedReplies, S, Updated
from task.catalogue.entry import Algorithm, evaluation_of
from task.config.knobs import Config
from task.errors import AbsentError, DataError, NodesError
from task.numerics.arrays import Arrays
from task.population import listed, some
from task.vertical import psi
from task.vertical.proofs import PROOF_BYTES
from task.vertical.rows import num_tests

ROWS = "rows"  # the one array of a record of rows
Numbers = Mapping[str, np.ndarray]  # by party


def take_digests(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Store the digests of the model's parts of the parties that answered: the update of these rules.

    >>> digests = {"digest": {"rows": np.array([[[7, 9]]], np.uint8)}}
    >>> replies = AggregatedReplies(digests, ("bank",), np.array([3]))
    >>> take_digests(ServerState({}), replies, Config())[0].arrays
    {'bank': array([7, 9], dtype=uint8)}
    """
    digests = reduced.arrays["digest"][ROWS]
    found = {client: digests[i, 0] for i, client in enumerate(reduced.clients)}
    return replace(state, arrays=dict(sorted({**state.arrays, **found}.items()))), {}


def by_party(replies: AggregatedReplies, record: str) -> dict[str, np.ndarray]:
    """Return a record's rows by party."""
    return dict(zip(replies.clients, replies.arrays[record][ROWS], strict=True))


def side_by_side(replies: AggregatedReplies) -> np.ndarray:
    """Return what parties sent of the same rows, the embeddings or scores of each next to the last one's."""
    return np.concatenate(list(replies.arrays["embeddings"][ROWS]), axis=1)


def _points(replies: AggregatedReplies) -> dict[str, np.ndarray]:
    """Return the points that each party sent.

    Raises:
        NodesError: Some are none; the party that was to mask them would be blamed.
    """
    found = by_party(replies, "points")
    for client, points in found.items():
        if psi.has_low_order(points):
            raise NodesError(
                f"every party is needed: client {client}: field 'points': expected points of Curve25519; got "
                "one of low order. Correct the cause and start the run again."
            )
    return found


class Parties(Rule):
    """A rule of parties."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.parties: tuple[str, ...] = ()  # sorted; as found before round 1, like the rest
        self.label = ""  # the one with the labels
        self.columns: dict[str, int] = {}  # p_k by party
        self.tests = self.train = 0  # common rows for the test, and to train on

    @property
    def others(self) -> tuple[str, ...]:
        """The parties without the labels."""
        return tuple(party for party in self.parties if party != self.label)

    def needs(self) -> tuple[str, ...]:
        """Return all parties."""
        return self.parties

    def warn(self, context: RoundContext) -> None:
        """Warn of what is not private with this run's settings."""

    def opening(self, context: RoundContext) -> Phases:
        """Find the parties, who has the labels, and the common rows."""
        self.parties = self._named(context.names)
        examples, parties = dict(context.examples(self.parties)), self.parties
        ask = Questions(context, {"session": float(secrets.randbits(52))})
        size = max(examples.values())
        points = {"points": (size, psi.BYTES), "proof": (1, PROOF_BYTES)}
        replies = yield from ask("points", parties, rows=points)
        self.label = self._labelled(replies)
        about = zip(replies.clients, replies.scalars["columns"], strict=True)
        self.columns = {client: int(columns) for client, columns in about}
        self.warn(context)
        sets = _points(replies)
        before = {party: parties[k - 1] for k, party in enumerate(parties)}  # on a ring
        for hop in range(1, len(parties)):
            to = {party: parties[(k - hop) % len(parties)] for k, party in enumerate(parties)}
            proofs = by_party(replies, "proof")
            given = {
                "points": {p: sets[to[p]] for p in parties}, "proofs": {p: proofs[before[p]] for p in parties}
            }  # fmt: skip
            rows = points | {"proofs": (1, PROOF_BYTES)}
            replies = yield from ask("mask", parties, given, rows=rows, hop=hop)
            found = _points(replies)
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
                f"online; got {some(online)}. Start the nodes of {some(missing)}, then the run again with "
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

    def _split(self, common: int, examples: Mapping[str, int], context: RoundContext) -> None:
        """Store the number of common rows, and report who loses how many."""
        self.tests = num_tests(common, self.config)
        self.train = common - self.tests
        lost = ", ".join(f"{party} uses {common} of {n}" for party, n in sorted(examples.items()))
        context.remark(f"common rows: {common}, {self.tests} of them for the test; {lost}")
        if not self.train or not self.tests:
            raise DataError(
                "ids: expected at least two rows that all parties have, one of them for the test; got "
                f"{common}: {lost}. Compare how the ids are written, and which rows each file has."
            )

    def measured(self, ask: "Questions", joint: np.ndarray, window: int) -> Phases:
        """Let the party with the labels measure what the others sent of the test rows, side by side."""
        sizes = {"embeddings": joint.shape}
        yield from ask(EVALUATE, (self.label,), records={"embeddings": joint}, rows=sizes, window=window)


class Questions:
    """Runs phases in which every party must answer."""

    def __init__(
        self, context: RoundContext, scalars: Mapping[str, float], parties: Sequence[str] = ()
    ) -> None:
        """Ask in this round, with numbers that go to all; `parties` are all of them, () = those asked."""
        self.context, self.scalars, self.parties = context, scalars, parties

    def __call__(
        self,
        name: str,
        to: Sequence[str],
        route: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        records: Mapping[str, np.ndarray] | None = None,
        rows: Mapping[str, tuple[int, ...]] | None = None,
        log_as: str = "",
        **scalars: float,
    ) -> Generator[Phase, AggregatedReplies, AggregatedReplies]:
        """Yield one phase, with arrays by record, for all or by party; return the replies of all.

        Raises:
            AbsentError: A party is not online.
            BouquetError: A party gave no usable reply; a `NodesError` if another try may help.
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
            rows=sizes, log_as=log_as, parties=tuple(self.parties),
        )  # fmt: skip
        try:
            return (yield phase)
        except TooFewRepliesError as err:
            allow = "The owner allows it with min-examples = 1 in [policy] of its kit.toml"
            who, forbidden = f"round {t}: every party", "numbers of single rows"
            raise not_by_all(who, name, err.rejected, forbidden, allow) from None
