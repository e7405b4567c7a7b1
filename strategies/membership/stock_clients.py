"""Stock clients and stock loops: what a rule can do with them, and what it must refuse.

* A ClientApp that is not Bouquet's answers any training message with a local model and ``num-examples``. That
  is all that FedAvg and the rules with FedAvg's clients need, and FedProx, whose ``proximal-mu`` is Flower's
  own convention. Any other algorithm would silently lose its client half.
* A loop that is not `strategies.strategy.Strategy.start`, such as that of Flower's wrappers for
  differential privacy, works on the replies: it clips or weighs models. It must get one model from each node,
  not merged sums of several clients, and nothing may bypass it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from strategies.membership.client_identity import OnlineNode
from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_UP
from task.config.knobs import Config
from task.errors import ConfigError
from task.features import FEATURES
from task.features.refusals import Setting
from task.features.settings import BY_LOSS
from task.wire import messages as wire
from task.wire.registration import Registration

Limits = Iterable[tuple[tuple[Setting, ...], str]]


def _beyond(config: Config, limits: Iterable[Limits]) -> str:
    rows = (row for rows in limits for row in rows)
    return next((why for settings, why in rows if any(s.on(config) for s in settings)), "")


def why_stock_clients_cannot_join(entry: Algorithm, config: Config) -> str:
    """Return why a ClientApp that is not Bouquet's cannot take part in a run; "" if it can."""
    if why := _beyond(config, (feature.stock_clients for feature in FEATURES)):
        return why
    by_client = entry.keeps or entry.private or "ala" in entry.stages or entry.personal or entry.individual
    by_client = by_client or entry.parted
    models = [f.name for f in entry.up] == [wire.ARRAYS]
    if by_client or not models or entry.phases or not entry.traits.plain:
        ala = " with ala = true" if config.train.ala else ""
        return f"cannot play the client half of {entry.title}{ala}, and would train as in FedAvg"
    if BY_LOSS.on(config):
        return f'does not report the loss that selection = "{config.server.selection}" goes by'
    if entry.owns("fedprox.adaptive") and config.fedprox.adaptive:
        return "does not report the loss that fedprox.adaptive needs to change mu"
    return ""


def check_loop(entry: Algorithm, config: Config) -> None:
    """Refuse that a loop which is not ours drives a rule whose clients send more than a model.

    Raises:
        ConfigError: Saying what they send.
    """
    if [f.name for f in entry.up] != [wire.ARRAYS] or entry.phases or entry.individual or entry.parted:
        raise _not_driven(entry, "its clients send something else, or more")
    if why := _beyond(config, (feature.stock_loops for feature in FEATURES)):
        raise _not_driven(entry, why)
    if BY_LOSS.on(config):
        asks = f'selection = "{config.server.selection}" also asks clients for their losses'
        raise _not_driven(entry, asks)


def check_plain(entry: Algorithm, asked: Iterable[Sequence[str]]) -> None:
    """Refuse to ask a node for several models in a loop that is not ours.

    Raises:
        ConfigError: A node is asked for several clients.
    """
    if any(len(clients) > 1 for clients in asked):
        raise _not_driven(
            entry, "it needs each client's model, and a node hosts several clients; give each its own node"
        )


def _not_driven(entry: Algorithm, why: str) -> ConfigError:
    return ConfigError(
        f"{entry.title}: expected `start` to drive the rounds; got another loop or a wrapper, such as "
        f"Flower's for differential privacy, which takes one model from each node; {why}"
    )


def merges(entry: Algorithm) -> bool:
    """Return whether a node may answer with the mean of its clients' models instead of each of them."""
    return entry.up == (MODEL_UP,) and not any(f.required for f in entry.up_scalars)


def stock_registration(node: OnlineNode) -> Registration:
    """Return the registration of a node whose app cannot register: one client, of one example."""
    name = node.name or f"node-{node.id}"
    return Registration((name,), np.array([1]), pool=f"node-{node.id}/{name}", stock=True)


def as_one_client(node: OnlineNode, registered: Registration) -> Registration:
    """Return a node's registration as if its share of the clients were one client, named after the node."""
    part, parts = registered.share
    mine = np.asarray(registered.num_examples)[part :: max(parts, 1)]
    one = stock_registration(node)
    clients, counts = one.clients if len(mine) else (), mine.sum(keepdims=True)
    return replace(
        registered, clients=clients, num_examples=counts, pool=one.pool, share=one.share, whole=True
    )
