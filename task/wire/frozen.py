"""The frozen part of a model on the wire: by its SHA-256, and once to each node that lacks it.

``config`` of every order has the SHA-256 (`task.numerics.arrays.sha256`) of the frozen tensors under
`DIGEST`. An order to a node that lacks them has the tensors, too, as the record `FROZEN`. A node that lacks
them and did not get them answers with an error in which `LOST` is found, and is sent the order with them.
"""

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from task.errors import WireError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.wire import messages as wire
from task.wire.checks import check_arrays

DIGEST = "frozen-sha256"  # entry of ``config``
FROZEN = "frozen"  # record
OWN_FROZEN = "initial-model"  # in a registration stands for a package: the frozen part in the owner's file
LOST = "expected the frozen part of the model"  # in the error of a node that lacks it


def digest_in(content: RecordDict) -> str:
    """Return the SHA-256 of the frozen part that an order is for; "" = nothing is frozen."""
    return str(wire.entry_of(content, DIGEST) or "")


def without(content: RecordDict) -> RecordDict:
    """Return an order without the frozen tensors."""
    return RecordDict({name: record for name, record in content.items() if name != FROZEN})


def with_frozen(content: RecordDict, record: ArrayRecord) -> RecordDict:
    """Return an order with the frozen tensors, if it is for a model that has any."""
    config = wire.records_of(content, ConfigRecord).get(wire.CONFIG, ConfigRecord())
    return RecordDict({**content, FROZEN: record}) if DIGEST in config else content


def frozen_of(content: RecordDict, like: NamedArrays) -> Arrays | None:
    """Return the frozen tensors that an order brings, in the order of `like`; None if it brings none.

    `like` has the forms of the frozen part of this node's model.

    Raises:
        WireError: They are not those that the order names.
        FieldError: They are not of these forms.
    """
    record = wire.records_of(content, ArrayRecord).get(FROZEN)
    if record is None:
        return None
    arrays, wanted = wire.views(record), digest_in(content)
    check_arrays(FROZEN, arrays, like)
    arrays = {name: arrays[name] for name in like}
    if (got := sha256(arrays)) != wanted:
        raise WireError(f"the frozen part of the model: expected {wanted[:12]}; got {got[:12]}", FROZEN)
    return arrays


def lost(digest: str, mine: str) -> WireError:
    """Return the error of a node that lacks the frozen part; `mine` is what it has by itself, "" = none."""
    return WireError(f"{LOST}, {digest[:12]}; got {mine[:12] or 'none'}", FROZEN)
