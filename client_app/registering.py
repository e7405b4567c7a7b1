"""Answer the registration query, and inform the owner in the log, also of a run that leaves this node out."""

from collections.abc import Callable
from dataclasses import replace

from flwr.app import Context, RecordDict

from client_app.data.node import Node, OneClient
from client_app.data.own_data import note_own_data
from client_app.data.registration import registration_of
from client_app.stages import check_ready
from client_app.trial import try_out
from client_app.works import TERMS
from task.datasets.columns import unscaled
from task.datasets.description import described
from task.datasets.facts import facts_of, names_in, spread
from task.datasets.facts_in_words import as_text, in_words
from task.resolve.contract import contract_of
from task.text import logger
from task.wire.messages import one_line
from task.wire.registration import Registration, read_notice


def register(node: Node, context: Context) -> Registration:
    """Return what a node registers, once a training and an evaluation of the run were tried on its data.

    Raises:
        BouquetError: The node cannot take part.
    """
    if note_own_data(node, context) and not node.owner.simulation:
        _log_data(node)
    if isinstance(node.clients, OneClient) and not node.owner.simulation:
        _warn_owner(node)
    check_ready(node)
    if check := TERMS.get(contract_of(node.config).work):
        check(node)
    registered = registration_of(node)
    # Virtual nodes have the same clients, so that one trial in each process is enough.
    known = replace(node, share=(0, 1)) if node.owner.simulation else node
    try_out(replace(known, frozen=registered.frozen[0]) if registered.frozen else known)
    return registered


def note_left_out(content: RecordDict, run: object, open_node: Callable[[], Node]) -> None:
    """Tell the owner why the run `run` leaves this node out, and the names that its own data have.

    Raises:
        WireError: The notice cannot be read.
    """
    logger.error("run %s leaves this node out: it %s", one_line(str(run or ""), "?"), read_notice(content))
    node = open_node()
    if isinstance(node.clients, OneClient):
        names = "; ".join(map(" ".join, in_words(names_in(described(node.dataset)))))
        logger.error("in this node's data: %s", names)


def _warn_owner(node: Node) -> None:
    """Warn the owner alone: the lines name columns."""
    warnings = list(node.dataset.notes)
    if not (contract_of(node.config).vertical and node.config.vertical.standardise):
        warnings += filter(None, [unscaled(node.dataset, node.config.data)])
    for warning in warnings:
        logger.warning("%s", warning)


def _log_data(node: Node) -> None:
    """Say in the node's own log, which stays with its owner, what the run reads of its data."""
    data, sizes = node.dataset, node.clients.num_train()
    known = {"description": data.description, "source": data.source, "clients": len(sizes)}
    for line in as_text(facts_of(data) | known | {"client_examples": spread(sizes)}):
        logger.info("%s", line)
