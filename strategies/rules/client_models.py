"""Base of rules whose server holds each client's last model.

=======  =================================  ==================  ======
symbol   variable                           shape, dtype        where
=======  =================================  ==================  ======
w_j      state.models["j/parameter"]        as the model        server
         state.arrays: mean_j w_j           as the model        server
=======  =================================  ==================  ======

A client is *known* once a reply of it was good. One that is not selected, is late or is quarantined stays
with the last model that it sent, whatever it made and kept meanwhile. In FedAMP and FedFomo an offline client
is no peer until it is back: a client weighs the models of the peers that sent one. Its own model stays.

`ServerState.arrays` is the plain mean of the known clients' models, and the initial model while no client is
known. No rule here trains it: it gives the messages their form, and is what a central evaluation measures.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from strategies.engine.state import AggregatedReplies, ServerState, Updated
from task.config.knobs import Config
from task.numerics.arrays import Arrays
from task.numerics.collect import Collect, release
from task.numerics.reduce import mean_of_models


@dataclass(frozen=True)
class ModelsState(ServerState):
    """The clients' last models, and their mean."""

    models: Arrays = field(default_factory=dict)
    """w_j, parameters and buffers, by ``client/name``."""


M = TypeVar("M", bound=ModelsState)


def known_clients(state: ModelsState) -> list[str]:
    """Return the clients whose models are held, sorted; a client's name may contain slashes."""
    return sorted({key.rpartition("/")[0] for key in state.models})


def models_of(state: ModelsState, names: Collection[str]) -> dict[str, Arrays]:
    """Return the models of those of `names` that are known, by client in sorted order."""
    known = [client for client in known_clients(state) if client in set(names)]
    return {client: {n: state.models[f"{client}/{n}"] for n in state.arrays} for client in known}


def server_update(state: M, reduced: AggregatedReplies, config: Config) -> Updated[M]:
    """Take the round's models in, and do nothing else."""
    return take_in(state, reduced), {}


def table(models: Iterable[tuple[str, Arrays]], like: Arrays) -> Arrays:
    """Return models by ``client/name``, as `ModelsState.models` holds them.

    They are taken one after the other. Many lie in a temporary file that goes with the last array of it, so
    that memory does not grow with the clients (`task.numerics.collect.SPOOL`).
    """
    rows = Collect(like)
    for client, model in models:
        rows.add(model, 1, client, {})
        for a in model.values():
            release(a)
    return {f"{c}/{n}": a for c, model in rows.partial().items() for n, a in model.items() if n}


def take_in(state: M, reduced: AggregatedReplies) -> M:
    """Return the state with the round's models in place of the clients' earlier ones, and their mean."""
    sent = {client: k for k, client in enumerate(reduced.clients)}

    def model(client: str) -> Arrays:
        if client not in sent:
            return {name: state.models[f"{client}/{name}"] for name in state.arrays}
        return {name: np.array(rows[sent[client]]) for name, rows in reduced.arrays["arrays"].items()}

    known = sorted({*known_clients(state), *sent})
    held = replace(state, models=table(((client, model(client)) for client in known), state.arrays))
    each = (({n: held.models[f"{client}/{n}"] for n in state.arrays}, 1) for client in known)
    return replace(held, arrays=mean_of_models(each, state.arrays))
