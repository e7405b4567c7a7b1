"""How a node masks its sums in a secure round (`task.secagg`), and where it remembers what it has begun.

What it remembers between stages lies in Flower's ``Context.state``: of a deployed node in the memory of the
process that keeps its connection, of a simulation in the driver's. It is never written to a disk, and a node
that starts again has none. What is: before a node sends a sum with its share of the noise, it writes down
what that costs (`task.privacy.noise_ledger`).
"""

from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, Context, RecordDict

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.config.read import as_run_config
from task.config.run_name import session_terms
from task.errors import SecureAggregationError, WireError
from task.numerics.arrays import Arrays, NamedArrays
from task.privacy.bounded_integers import exponent
from task.privacy.noise import Stream
from task.privacy.noise_ledger import NoiseLedger
from task.privacy.shares import deviation, multiplier, share, with_share
from task.resolve.contract import contract_of
from task.secagg import node as steps
from task.secagg.node import RoundMemory
from task.secagg.protocol import Rules, Session
from task.wire import messages as wire
from task.wire import secure
from task.wire.shared import shared_digest

RUNS = "secagg-runs"  # name in Flower's ``Context.state``: by run of Flower's, the run that it belongs to
MOST_RUNS = 1024  # that a node remembers


def rules_of(config: Config) -> Rules:
    """Return what a node insists on, by the run config.

    Raises:
        SecureAggregationError: The run has no secure aggregation.
    """
    if not config.server.secagg:
        raise SecureAggregationError('run-config key "secagg": expected true; got false')
    return Rules(config.server.secagg_min_nodes, config.server.secagg_threshold)


class Masking:
    """Masks the answer to one message of a secure round.

    Raises:
        WireError: The run has secure aggregation and the message asks for plain numbers.
        SecureAggregationError: It asks for masked numbers in another phase than the message's.
    """

    def __init__(
        self,
        content: RecordDict,
        kind: str,
        config: Config,
        context: Context,
        ledger: NoiseLedger | None = None,
    ) -> None:
        order = secure.record_in(content)
        if order is None:
            raise WireError(
                f"{kind}: expected the record {secure.SECAGG!r}: with this run config (secagg = true) no "
                "node sends unmasked numbers; got none"
            )
        self.rules, self.context, self.config = rules_of(config), context, config
        self.ledger = ledger
        self.session, self.roster = session_of(order, context), secure.roster_in(order)
        self.senders = secure.texts(order, "senders")
        if self.session.phase != kind:
            raise SecureAggregationError(f"expected a session of {kind!r}; got {self.session.phase[:80]!r}")

    def check(self, content: RecordDict, order: wire.TrainOrder) -> None:
        """Refuse an order that is not the one that all nodes of the session have.

        `content` is the message with its model whole. The server could else have the others add what it
        knows, and take that off the sum.

        Raises:
            SecureAggregationError: Naming what differs.
        """
        session, keys = self.session, session_terms(as_run_config(self.config))
        digest = shared_digest(content, session.phase, keys)
        for what, named, got in (
            ("run", session.run, order.run),
            ("round", session.round, order.round),
            ("order", session.order[:12], digest[:12]),
        ):
            if named != got:
                raise SecureAggregationError(
                    f"expected the {what} {named} that the session names to all nodes; got {got}: a node "
                    "that answers a different request than the others would reveal their sum"
                )
        most = self.config.train.local_epochs
        if odd := [epochs for epochs in order.epochs if not 0 <= epochs <= most]:
            raise SecureAggregationError(f"field 'epochs': expected 0 to {most}; got {odd[0]}")
        known = _runs(self.context) | {str(self.context.run_id): session.run}
        self.context.state[RUNS] = ConfigRecord(dict(list(known.items())[-MOST_RUNS:]))

    def content(
        self,
        entry: Algorithm,
        partials: Mapping[str, Mapping[str, NamedArrays]],
        rows: Sequence[Mapping[str, float]],
        weights: Sequence[int],
        failed: Sequence[wire.RejectedReply],
    ) -> RecordDict:
        """Return the node's sums masked; arguments as of `task.wire.secure.vector_of`."""
        if not rows:
            return secure.failed_content(failed)
        state = load_memory(self.context)
        self._charge(entry, state)
        if self.config.dp.distributed and entry.noised:
            partials = self._noised(partials, steps.noise_key(state, self.session, self.roster))
        bits = secure.bits_of(entry, self.config.server.secagg_bits)
        vector = secure.vector_of(entry, partials, rows, weights, max(len(self.senders), 1), bits)
        save_memory(
            self.context, steps.mask(state, self.session, self.rules, self.roster, self.senders, vector)
        )
        return secure.masked_content(vector, failed)

    def _charge(self, entry: Algorithm, state: RoundMemory) -> None:
        """Write down what the sum costs, from which the other nodes need this one's masked numbers only."""
        ledger, session, config = self.ledger, self.session, self.config
        if ledger is None:
            return
        if not (config.dp.distributed and entry.noised):
            return
        about = {"run": str(session.run), "round": session.round, "phase": session.phase}
        noise = steps.noise_name(state, session, self.roster)
        ledger.charge(noise, multiplier(config.dp, contract_of(config)), config.dp.delta, about)

    def _noised(
        self, partials: Mapping[str, Mapping[str, NamedArrays]], key: bytes
    ) -> dict[str, dict[str, Arrays]]:
        """Return a node's sums of clipped updates with its share of the noise, also if no client answered."""
        dp, std = self.config.dp, deviation(self.config.dp, contract_of(self.config))
        std *= 2.0 ** exponent(std)  # in units
        std = share(std, self.rules.least(len(self.roster.names)), dp.colluding)
        noise = Stream(key)
        return {name: {"high": with_share(partials[name]["high"], std, noise)} for name in sorted(partials)}


def session_of(order: ConfigRecord, context: Context) -> Session:
    """Return the session that an order names, of the one run that a run of Flower's belongs to.

    So a server does not get a second sum of a round by giving the run another name.

    Raises:
        SecureAggregationError: It names another run than orders before.
    """
    session = secure.session_in(order)
    if (first := _runs(context).get(str(context.run_id), session.run)) != session.run:
        raise SecureAggregationError(
            f"expected the run {str(first)[:12]} of the orders before; got {session.run[:12]}"
        )
    return session


def _runs(context: Context) -> dict[str, str]:
    """Return by run of Flower's the run that this node has had orders of."""
    kept = context.state.get(RUNS)
    return {k: str(v) for k, v in kept.items()} if isinstance(kept, ConfigRecord) else {}


def load_memory(context: Context) -> RoundMemory:
    """Return what a node remembers of a round."""
    kept = context.state.get(secure.SECAGG)
    return RoundMemory.load(dict(kept) if isinstance(kept, ConfigRecord) else {})  # type: ignore[arg-type]


def save_memory(context: Context, state: RoundMemory) -> None:
    """Remember the state of a round."""
    context.state[secure.SECAGG] = ConfigRecord(state.dump())  # type: ignore[arg-type]
