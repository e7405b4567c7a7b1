"""Adds noise to what a node says of its clients' rows; run-config keys ``dp.*`` of an analysis.

The noise of an answer in clear follows from the node's secret, the question, the run's keys and the numbers
themselves: a question that comes twice gets the same answer and costs nothing, any other one, or other rows,
independent noise. Under secure aggregation each session has noise of its own. Before an answer leaves, what
it costs each row is in the node's ledger (`task.privacy.noise_ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import RecordDict

from client_app.data.node import Node
from client_app.data.noised import NoisedNode
from client_app.memory.example_ledger import SECRET
from client_app.stages.masking import load_memory, rules_of, session_of
from client_app.stages.node_stage import NodeStage
from task.config.paths import state_root
from task.config.read import as_run_config
from task.config.run_name import all_terms
from task.errors import RefusedError, SecureAggregationError
from task.numerics.arrays import flattened, sha256
from task.privacy.accounting import check_delta
from task.privacy.noise import derived
from task.privacy.noise_ledger import MAX_EPSILON, TakenSteps
from task.privacy.row_noise import RowNoise
from task.privacy.secret import secret_in
from task.secagg import node as steps
from task.wire import messages as wire
from task.wire import secure


class RowPrivacyNode(NodeStage):
    """Gives a node the noise of one answer."""

    name = "row_privacy"

    def node(self, node: Node) -> Node:
        """Return the node with the noise of this answer.

        Raises:
            RefusedError: The owner allows no figures of few persons, and has not limited epsilon.
            SecureAggregationError: The message has no session of secure aggregation, and the run has.
        """
        owner, dp = node.bounds, node.config.dp
        if owner.min_examples > 1 and not (owner.ledger and owner.ledger.most):
            raise RefusedError(
                f"policy: min-examples = {owner.min_examples}; with noise, figures may be of fewer persons. "
                f"The owner allows it by a limit of what they may cost, {MAX_EPSILON} and delta in [policy]"
            )
        shares = 1
        if node.config.server.secagg:
            order = secure.record_in(self.asked.content)
            if order is None:
                raise SecureAggregationError(f"expected a record {secure.SECAGG!r}; got none")
            names = secure.roster_in(order).names
            shares = rules_of(node.config).least(len(names)) - dp.colluding
        return NoisedNode.of(node, RowNoise(dp.noise, shares, self._pay))

    def check(self, content: RecordDict, order: wire.TrainOrder) -> None:
        """Note the question, on which the noise depends."""
        self.order = order

    def _pay(self, client: str, totals: Sequence[int]) -> bytes:
        """Write down what an answer costs; return the key of its noise.

        Raises:
            ConfigError: The run's ``dp.delta`` is too large.
            RefusedError: The owner's limit does not allow it.
        """
        node, order, dp = self.asked.node, self.order, self.asked.node.config.dp
        rows = len(node.at(order.round).clients.train(node.clients.index(client)))
        check_delta(dp.delta, rows, f"the rows of client {client}")
        key, tag = self._masked(client) if node.config.server.secagg else self._clear(client, totals)
        if node.owner.ledger is not None:
            taken = TakenSteps(client, 1, 1.0, dp.noise)
            about = {"run": order.run, "round": order.round, "question": self.asked.contract.name}
            node.owner.ledger.charge_steps(tag.hex(), taken, dp.delta, about)
        return key

    def _clear(self, client: str, totals: Sequence[int]) -> tuple[bytes, bytes]:
        node, order = self.asked.node, self.order
        asked = sha256(flattened(order.arrays))
        keys = all_terms(as_run_config(node.config))
        facts = (order.run, order.round, self.asked.kind, client, asked, keys, ",".join(map(str, totals)))
        secret = secret_in(state_root(node.config) / SECRET)
        return derived(secret, "rows", *facts), derived(secret, "answer", *facts)

    def _masked(self, client: str) -> tuple[bytes, bytes]:
        context, order = self.asked.context, secure.record_in(self.asked.content)
        assert context is not None
        assert order is not None
        session, roster = session_of(order, context), secure.roster_in(order)
        state = load_memory(context)
        key = derived(steps.noise_key(state, session, roster), "rows", client)
        return key, derived(bytes.fromhex(steps.noise_name(state, session, roster)), "answer", client)
