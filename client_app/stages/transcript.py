"""A node's signatures of its uploads, and the receipts by which it can check later that they were counted.

``<state-dir>/.receipts/<run's id>/<key>.jsonl`` grows by a line before each such answer leaves; of a deployed
node that is in its kit, below ``cache/state``. Each start of a node signs by a key of its own, and so has a
file of its own. `bouquet verify RUN --kit KIT` reads them.
"""

from collections.abc import Mapping
from dataclasses import asdict

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from client_app.stages.node_stage import Asked, NodeStage
from task.config.paths import state_root
from task.config.read import as_run_config
from task.config.run_name import terms
from task.errors import WireError
from task.numerics.arrays import sha256
from task.secagg.identity import Endorsement, identity_in
from task.storage.client_state import receipts_of
from task.storage.durable_lines import DurableLines
from task.wire import commitments
from task.wire import messages as wire
from task.wire.commitments import Statement
from task.wire.entries import epochs_in, scalars_in
from task.wire.replica import MODEL
from task.wire.secure import DIVERGED, FAILED, SECAGG

KEPT = "transcript"  # name in Flower's ``Context.state``: the key of a node without a certificate


def commit(asked: Asked, context: Context, answer: RecordDict) -> None:
    """Sign the answer to a message of a phase and keep a receipt, if the run's transcript covers the phase.

    Raises:
        WireError: The message does not say which attempt it is.
    """
    node, order, kind = asked.node, asked.content, asked.kind
    if not commitments.covers(node.config.server.transcript, asked.phase):
        return
    attempt = str(wire.entry_of(order, commitments.ATTEMPT) or "")
    if not attempt:
        raise WireError(
            f"{kind}: expected {commitments.ATTEMPT!r}: under this run config (transcript = "
            f'"{node.config.server.transcript}") nodes send only what they have signed; got none'
        )
    number = int(str(wire.entry_of(order, "server-round") or 0))
    statement = Statement(
        str(wire.entry_of(order, "run") or ""), terms(as_run_config(node.config)), number, kind, attempt,
        tuple(wire.clients_in(order)), epochs_in(order), scalars_in(order), _received(order),
        commitments.digest(answer),
    )  # fmt: skip
    key, endorsement = _key(context)
    made = commitments.sign(key, statement, endorsement)
    folder = receipts_of(state_root(node.config), statement.run)
    signed = {"key": made.key.hex(), "signature": made.signature.hex()}
    receipt = {**asdict(statement), **signed, "answered": _answered(answer, len(statement.clients))}
    DurableLines(folder / f"{made.key.hex()[:16]}.jsonl").append(receipt)
    commitments.attach(answer, made)


def _answered(answer: RecordDict, asked: int) -> int:
    """Return how many clients are in an answer; the others failed at this node."""
    records = wire.records_of(answer, ConfigRecord)
    failed = [records[SECAGG].get(key) for key in (FAILED, DIVERGED)] if SECAGG in records else []
    named = records[wire.ANSWERED].get("clients") if wire.ANSWERED in records else None
    if isinstance(named, list):
        return len(named)
    return asked - sum(len(names) for names in failed if isinstance(names, list))


def _received(order: RecordDict) -> str:
    """Return the SHA-256 of the model that an order brings; "" if it brings none to all clients."""
    if coded := wire.entry_of(order, MODEL):
        return str(coded)  # `client_app.stages.replica` has checked it
    record = wire.records_of(order, ArrayRecord).get(wire.ARRAYS)
    return "" if record is None else sha256(wire.views(record))


def _key(context: Context) -> tuple[Ed25519PrivateKey, Endorsement | None]:
    """Return the key that a node signs by in a run, and what proves whose it is, if anything does."""
    config: Mapping[str, object] = context.node_config
    if (mine := identity_in(config)) is not None:
        endorsement = Endorsement(mine.certificate, mine.signature, context.run_id)
        return Ed25519PrivateKey.from_private_bytes(mine.key), endorsement
    kept = context.state.get(KEPT)
    raw = kept.get("key") if isinstance(kept, ConfigRecord) else None
    if isinstance(raw, bytes):
        return Ed25519PrivateKey.from_private_bytes(raw), None
    key = Ed25519PrivateKey.generate()
    context.state[KEPT] = ConfigRecord({"key": key.private_bytes_raw()})
    return key, None


class TranscriptNode(NodeStage):
    """Signs the answers that the transcript covers."""

    name = "transcript"

    def answered(self, content: RecordDict) -> None:
        """Sign the answer and keep a receipt."""
        asked = self.asked
        if asked.context is not None:
            commit(asked, asked.context, content)
