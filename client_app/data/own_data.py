"""Check that a node's own data are those that it registered, and track how they grow.

A run weighs a client by its registered number of examples, and assumes that its columns are unchanged. So a
node with its own data notes them when it registers, and trains on no others: with ``stream.own-data = true``
it registers before every round and trains on what the file had then; without, the file must stay as it is.
Other columns are refused in any case; in another order they are read by name. ``<state-dir>/.own-data/<run's
id>.jsonl``, which never leaves the node, has a line for each training: round, client, examples and a hash of
them.
"""

import hashlib

from flwr.app import ConfigRecord, Context, RecordDict

from client_app.data.node import Node, OneClient
from task.config.paths import state_root
from task.datasets.description import meaning_of
from task.errors import ConfigError, DataError
from task.storage.client_state import safe_name
from task.storage.durable_lines import DurableLines
from task.wire import messages as wire

KEPT = "own-data"  # name in Flower's ``Context.state``
FOLDER = ".own-data"


def note_own_data(node: Node, context: Context) -> bool:
    """Note the data that a node registers; return whether they have changed.

    Raises:
        ConfigError: They have other columns than in an earlier round of the run.
    """
    if not isinstance(node.clients, OneClient):
        return True  # a partition is registered once
    client, form = node.clients.names[0], _form(node)
    before = context.state.get(KEPT)
    if isinstance(before, ConfigRecord) and before["form"] != form:
        raise ConfigError(
            f"client {client}: its data have other columns, inputs or classes than when it registered for "
            "this run; expected rows to be added only. Restore the columns, or start a new run"
        )
    examples = len(node.clients.train(0))
    context.state[KEPT] = ConfigRecord(
        {"form": form, "fingerprint": node.dataset.fingerprint, "examples": examples}
    )
    return not isinstance(before, ConfigRecord) or before["fingerprint"] != node.dataset.fingerprint


def check_own_data(node: Node, context: Context, order: RecordDict) -> None:
    """Refuse to train on data other than the registered ones; record which data are used.

    Raises:
        DataError: Naming the client and both numbers of examples.
    """
    noted = context.state.get(KEPT)
    if not isinstance(node.clients, OneClient) or not isinstance(noted, ConfigRecord):
        return
    client, examples = node.clients.names[0], len(node.clients.train(0))
    if noted["fingerprint"] != node.dataset.fingerprint:
        grows = node.config.stream.own_data
        todo = (
            "It is retried before the next round"
            if grows
            else "Restore the file, or set the run-config key stream.own-data = true so that it may grow"
        )
        raise DataError(
            f"client {client}: expected the {noted['examples']!r} training examples that its node "
            f"registered; got a file that has changed, with {examples}. {todo}"
        )
    if node.config.stream.own_data:
        number, run = wire.entry_of(order, "server-round"), str(wire.entry_of(order, "run") or "")
        line = {"round": int(str(number or 0)), "client": client, "examples": examples}
        line["data"] = node.dataset.fingerprint
        DurableLines(state_root(node.config) / FOLDER / f"{safe_name(run)}.jsonl").append(line)


def _form(node: Node) -> str:
    """Return a hash of what must stay the same when data grow."""
    data = node.dataset
    said = repr((sorted(meaning_of(data).parts.items()), data.input_shape, data.num_classes))
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
