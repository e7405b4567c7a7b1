"""A server that holds each client's last model, and what its rules share.

=======  =================================  ==================  ======
symbol   variable                           shape, dtype        where
=======  =================================  ==================  ======
w_j      state.models["j/parameter"]        as the model        server
         state.arrays: mean_j w_j           as the model        server
=======  =================================  ==================  ======

A client is *known* once a reply of it was good. One that is not selected, is late or is quarantined stays
with the last model that it sent, whatever it made and kept meanwhile. One that is offline is nobody's peer
until it is back, as what is sent goes by the names that are online; its model stays.

`ServerState.arrays` is the plain mean of the known clients' models, and the initial model while nobody is
known. No rule here trains it: it gives the messages their form, and is what a central evaluation measures.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.robust_math import mean_rows
from task.config.knobs import Config
from task.numerics.arrays import Arrays
from task.numerics.collect import release


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


def take_in(state: M, reduced: AggregatedReplies) -> M:
    """Return the state with the round's models in place of the clients' earlier ones.

    The mean is of sorted clients, summed in float64 and rounded once; integers to the nearest, halves up.
    """
    models = dict(state.models)
    for name, stacked in reduced.arrays["arrays"].items():
        for client, row in zip(reduced.clients, stacked, strict=True):
            models[f"{client}/{name}"] = np.array(row)  # the stack may be a file that goes away
        release(stacked)
    held = replace(state, models=models)
    known, mean = known_clients(held), {}
    for name, a in state.arrays.items():
        wide = mean_rows([models[f"{client}/{name}"] for client in known])
        mean[name] = (np.floor(wide + 0.5) if a.dtype.kind in "iu" else wide).astype(a.dtype)
    return replace(held, arrays=mean)
