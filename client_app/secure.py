"""A node's side of a secure round (`task.secagg`): what it answers at each stage, and where it remembers.

What it remembers between stages lies in Flower's ``Context.state``: of a deployed node in the memory of the
process that keeps its connection, of a simulation in the driver's. It is never written to a disk, and a node
that starts again has none.
"""

from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord, Context, RecordDict

from task.config.knobs import Config
from task.errors import SecureAggregationError, WireError
from task.numerics.arrays import NamedArrays
from task.secagg import node as steps
from task.secagg import shamir
from task.secagg.node import RoundMemory
from task.secagg.protocol import Rules
from task.spec.entry import Algorithm
from task.wire import messages as wire
from task.wire import secure


def rules_of(config: Config) -> Rules:
    """Return what a node insists on, by the run config.

    Raises:
        SecureAggregationError: The run has no secure aggregation.
    """
    if not config.server.secagg:
        raise SecureAggregationError('run-config key "secagg": expected true; got false')
    return Rules(config.server.secagg_min_nodes, config.server.secagg_threshold)


def answer_stage(stage: str, content: RecordDict, config: Config, context: Context) -> RecordDict:
    """Answer one of the stages that are queries of their own.

    Raises:
        SecureAggregationError: It is not as the protocol has it.
    """
    rules, state = rules_of(config), _load(context)
    order = secure.record_in(content)
    if order is None:
        raise SecureAggregationError(f"expected a record {secure.SECAGG!r}; got none")
    session = secure.session_in(order)
    if stage == secure.KEYS:
        state, keys = steps.give_keys(state, session)
        fields: dict[str, object] = {"sealing": keys.sealing, "masking": keys.masking, "proof": keys.proof}
    elif stage == secure.SHARES:
        state, sealed = steps.give_shares(state, session, rules, secure.roster_in(order))
        fields = {"to": list(sealed), "sealed": list(sealed.values())}
    else:
        roster, senders = secure.roster_in(order), secure.texts(order, "senders")
        sealed = secure.by_name(order, "from", "sealed")
        alive = secure.texts(order, "alive")
        state, shares = steps.unmask(state, session, rules, roster, senders, alive, sealed)
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

    def __init__(self, content: RecordDict, kind: str, config: Config, context: Context) -> None:
        order = secure.record_in(content)
        if order is None:
            raise WireError(
                f"{kind}: expected the record {secure.SECAGG!r}: under this run config (secagg = true) no "
                "node sends its numbers unmasked; got none"
            )
        self.rules, self.context = rules_of(config), context
        self.session, self.roster = secure.session_in(order), secure.roster_in(order)
        self.senders = secure.texts(order, "senders")
        if self.session.phase != kind:
            raise SecureAggregationError(f"expected a session of {kind!r}; got {self.session.phase[:80]!r}")

    def content(
        self,
        entry: Algorithm,
        partials: Mapping[str, Mapping[str, NamedArrays]],
        rows: Sequence[Mapping[str, float]],
        weights: Sequence[int],
        failed: Sequence[wire.RejectedReply],
    ) -> RecordDict:
        """Return the node's sums masked; arguments as of `task.wire.secure.vector_of`."""
        vector = secure.vector_of(entry, partials, rows, weights, max(len(self.senders), 1))
        state = _load(self.context)
        _save(self.context, steps.mask(state, self.session, self.rules, self.roster, self.senders, vector))
        return secure.masked_content(vector, failed)


def masking_of(content: RecordDict, kind: str, config: Config, context: Context) -> Masking | None:
    """Return what masks the answer to a message; None if the run has no secure aggregation.

    Raises:
        SecureAggregationError: The message is one of a secure round, and the run has none.
    """
    if not config.server.secagg and secure.record_in(content) is None:
        return None
    return Masking(content, kind, config, context)


def _load(context: Context) -> RoundMemory:
    kept = context.state.get(secure.SECAGG)
    return RoundMemory.load(dict(kept) if isinstance(kept, ConfigRecord) else {})  # type: ignore[arg-type]


def _save(context: Context, state: RoundMemory) -> None:
    context.state[secure.SECAGG] = ConfigRecord(state.dump())  # type: ignore[arg-type]
