"""A node's side of secure aggregation: its answers at each stage of a round, and its masked sum."""

from collections.abc import Mapping
from typing import ClassVar

from flwr.app import ConfigRecord, Context, RecordDict

from client_app.data.node import Node
from client_app.stages.attacks import drawn
from client_app.stages.masking import Masking, load_memory, rules_of, save_memory, session_of
from client_app.stages.merge import FoldPlan, Merge
from client_app.stages.node_stage import Asked, NodeStage, Query
from task.config.knobs import Config
from task.errors import RefusedError, SecureAggregationError
from task.secagg import node as steps
from task.secagg import shamir
from task.secagg.identity import AUTHORITY, REQUIRED, UNVERIFIED, check_proofs, identity_in
from task.secagg.protocol import PublicKeys, Roster, Session
from task.wire import messages as wire
from task.wire import secure
from task.wire.encoding import PLAIN


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
            "expected the certificate of the federation's authority, to detect nodes that a server "
            "invents; got none. Run the node from a kit (bouquet node KIT), or let its owner allow it: "
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
    rules, state = rules_of(config), load_memory(context)
    order = secure.record_in(content)
    if order is None:
        raise SecureAggregationError(f"expected a record {secure.SECAGG!r}; got none")
    session = session_of(order, context)
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
        # An analysis's repeated answer has other noise, and is paid for in the node's ledger like any other.
        once = config.dp.distributed or (config.dp.local and not config.entry.noised_rows)
        state, shares = steps.unmask(state, session, rules, roster, senders, alive, sealed, once=once)
        raw = [share.to_bytes(shamir.SHARE_BYTES, "big") for share in shares.values()]
        fields = {"of": list(shares), "shares": raw}
    save_memory(context, state)
    return RecordDict({secure.SECAGG: ConfigRecord(fields)})  # type: ignore[arg-type]


def _query(stage: str) -> Query:
    def answered(node: Node, content: RecordDict, context: Context) -> RecordDict:
        return answer_stage(stage, content, node.config, context, simulation=node.owner.simulation)

    return answered


class SecureAggregationNode(NodeStage):
    """Answers with one masked sum."""

    name = "secure_aggregation"
    queries: ClassVar[Mapping[str, Query]] = {
        stage: _query(stage) for stage in (secure.KEYS, secure.SHARES, secure.UNMASK)
    }

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        assert asked.context is not None
        self.masking = Masking(
            asked.content, asked.kind, asked.node.config, asked.context, asked.node.owner.ledger
        )

    @classmethod
    def absent(cls, asked: Asked) -> None:
        """Refuse a run without secure aggregation where the owner allows no other.

        Raises:
            RefusedError: The owner of the node allows no run without it.
            SecureAggregationError: The message is one of a secure round, and the run has none.
        """
        if asked.context is not None and asked.context.node_config.get(REQUIRED) is True:
            raise RefusedError('policy: secagg = true; expected a run with "secagg" = true; got false')
        if secure.record_in(asked.content) is not None:
            rules_of(asked.node.config)

    def check(self, content: RecordDict, order: wire.TrainOrder) -> None:
        """Refuse an order that is not the one that all nodes of the session have."""
        self.masking.check(content, order)

    def plan(self, node: Node, plan: FoldPlan, order: wire.TrainOrder) -> None:
        """Have all records summed, none of them as codes."""
        plan.contract, plan.encoding = secure.as_summed(self.asked.contract), PLAIN

    def reply(self, merged: Merge) -> RecordDict:
        """Return the masked sum.

        Raises:
            SecureAggregationError: It would hide no other node's.
        """
        node = self.asked.node
        if not node.owner.simulation and drawn(node, merged.clients):
            raise SecureAggregationError(
                "expected a client whose upload follows from its data; got only canaries and random "
                "attackers, whose uploads anyone can compute from the run's seed: they would not "
                "hide another node's"
            )
        return self.masking.content(merged.entry, *merged.sums(), merged.failed)
