"""A node's side of a secure round (`task.secagg`): what it answers at each stage, and where it remembers.

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
from task.errors import RefusedError, SecureAggregationError, WireError
from task.numerics.arrays import Arrays, NamedArrays
from task.privacy.grid import exponent
from task.privacy.noise import Stream
from task.privacy.noise_ledger import NoiseLedger
from task.privacy.shares import deviation, multiplier, share, with_share
from task.resolve.contract import contract_of
from task.secagg import node as steps
from task.secagg import shamir
from task.secagg.identity import AUTHORITY, REQUIRED, UNVERIFIED, check_proofs, identity_in
from task.secagg.node import RoundMemory
from task.secagg.protocol import PublicKeys, Roster, Rules, Session
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


def _proved(context: Context, session: Session, keys: PublicKeys) -> PublicKeys:
    """Return a round's keys with the proof that they are this node's, if it can prove anything."""
    mine = identity_in(context.node_config)
    return mine.prove(session, keys) if mine else keys


def _check_roster(context: Context, session: Session, roster: Roster, *, simulation: bool) -> None:
    """Refuse a roster with nodes that the server may have invented.

    Raises:
        SecureAggregationError: A node's proof is not valid, or this node cannot check any.
    """
    config = context.node_config
    if simulation or config.get(UNVERIFIED) is True:
        return
    authority = str(config.get(AUTHORITY, ""))
    if not authority:
        raise SecureAggregationError(
            "expected the certificate of the federation's authority, to tell nodes from ones that a server "
            "invents; got none. Run the node from a kit (bouquet node KIT), or let its owner do without: "
            f"{UNVERIFIED} = true in its --node-config"
        )
    check_proofs(authority.encode(), context.run_id, session, roster)


def answer_stage(
    stage: str, content: RecordDict, config: Config, context: Context, *, simulation: bool
) -> RecordDict:
    """Answer one of the stages that are queries of their own; in a `simulation` all nodes are one user's.

    Raises:
        SecureAggregationError: It is not as the protocol has it.
    """
    rules, state = rules_of(config), _load(context)
    order = secure.record_in(content)
    if order is None:
        raise SecureAggregationError(f"expected a record {secure.SECAGG!r}; got none")
    session = _session(order, context)
    if stage == secure.KEYS:
        state, keys = steps.give_keys(state, session)
        keys = _proved(context, session, keys)
        fields: dict[str, object] = {"sealing": keys.sealing, "masking": keys.masking, "proof": keys.proof}
    elif stage == secure.SHARES:
        roster = secure.roster_in(order)
        _check_roster(context, session, roster, simulation=simulation)
        state, sealed = steps.give_shares(state, session, rules, roster)
        fields = {"to": list(sealed), "sealed": list(sealed.values())}
    else:
        roster, senders = secure.roster_in(order), secure.texts(order, "senders")
        sealed = secure.by_name(order, "from", "sealed")
        alive = secure.texts(order, "alive")
        once = config.dp.distributed
        state, shares = steps.unmask(state, session, rules, roster, senders, alive, sealed, once=once)
        raw = [share.to_bytes(shamir.SHARE_BYTES, "big") for share in shares.values()]
        fields = {"of": list(shares), "shares": raw}
    _save(context, state)
    return RecordDict({secure.SECAGG: ConfigRecord(fields)})  # type: ignore[arg-type]


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
                f"{kind}: expected the record {secure.SECAGG!r}: under this run config (secagg = true) no "
                "node sends its numbers unmasked; got none"
            )
        self.rules, self.context, self.config = rules_of(config), context, config
        self.ledger = ledger
        self.session, self.roster = _session(order, context), secure.roster_in(order)
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
                    "that was asked for something else than the others would give their sum away"
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
        state = _load(self.context)
        self._charge(entry, state)
        if self.config.dp.distributed and entry.noised:
            partials = self._noised(partials, steps.noise_key(state, self.session, self.roster))
        bits = secure.bits_of(entry, self.config.server.secagg_bits)
        vector = secure.vector_of(entry, partials, rows, weights, max(len(self.senders), 1), bits)
        _save(self.context, steps.mask(state, self.session, self.rules, self.roster, self.senders, vector))
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


def masking_of(
    content: RecordDict, kind: str, config: Config, context: Context, ledger: NoiseLedger | None = None
) -> Masking | None:
    """Return what masks the answer to a message; None if the run has no secure aggregation.

    `ledger` is the node's; in a simulation, where all nodes are one user's, the server's is the only one.

    Raises:
        RefusedError: The owner of the node allows no run without it.
        SecureAggregationError: The message is one of a secure round, and the run has none.
    """
    if context.node_config.get(REQUIRED) is True and not config.server.secagg:
        raise RefusedError('policy: secagg = true; expected a run with "secagg" = true; got false')
    if not config.server.secagg and secure.record_in(content) is None:
        return None
    return Masking(content, kind, config, context, ledger)


def _session(order: ConfigRecord, context: Context) -> Session:
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


def _load(context: Context) -> RoundMemory:
    kept = context.state.get(secure.SECAGG)
    return RoundMemory.load(dict(kept) if isinstance(kept, ConfigRecord) else {})  # type: ignore[arg-type]


def _save(context: Context, state: RoundMemory) -> None:
    context.state[secure.SECAGG] = ConfigRecord(state.dump())  # type: ignore[arg-type]
