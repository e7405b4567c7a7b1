"""The part of an order that is the same for all nodes: its SHA-256, and its numbers.

Under secure aggregation the SHA-256 is part of the session's identity. A server might give one node a
different model, learning rate or number, in order to learn what that node adds to the sum. It must then
either name one digest to all, and that node refuses, or name two, and the masks do not cancel.

The digest is over everything that a message holds, so that what is added to messages later is covered, too.
`OWN` lists what may differ by node, and what keeps it harmless.
"""

from collections.abc import Mapping

from flwr.app import ConfigRecord, RecordDict

from task.wire import commitments
from task.wire import messages as wire
from task.wire.frozen import FROZEN
from task.wire.replica import BASE
from task.wire.secure import SECAGG

OWN: Mapping[str, str] = {  # entries of ``config``
    "clients": "the node's own; it sends no sum that none of them trained for",
    "epochs": "parallel to the clients, for stragglers; from 1 to local-epochs, or 0 = as configured",
    BASE: "the model that the codes of codec.down go on from; they come to the model that all have",
}


def shared_digest(content: RecordDict, kind: str, terms: str) -> str:
    """Return the SHA-256 of what an order has for all nodes.

    Its model is whole, but for the frozen part, of which it has the SHA-256. `kind` is the message type and
    `terms` the SHA-256 of the run's keys (`task.config.run_name.session_terms`).
    """
    config = wire.records_of(content, ConfigRecord).get(wire.CONFIG, ConfigRecord())
    shared = ConfigRecord({k: v for k, v in config.items() if k not in OWN})
    named = ConfigRecord({"kind": kind, "terms": terms})
    rest = {name: record for name, record in content.items() if name not in (SECAGG, FROZEN, wire.CONFIG)}
    return commitments.digest(RecordDict({**rest, wire.CONFIG: shared, SECAGG: named}))
