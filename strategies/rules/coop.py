"""CO-OP, server half. Wang 2017, doi 10.7939/R32805C45.

Nilsson et al. 2018, doi 10.1145/3286490.3286559, compare it with FedAvg and FSVRG. When client k arrives, by
the difference of its age a_k from the server's age a:

=================  ==================================================================  ==========
a - a_k            what happens                                                        client
=================  ==================================================================  ==========
> b_u              nothing is merged; k begins again from w, a_k <- a                  outdated
< b_l              nothing is merged; k trains on from its own w_k, a_k stays          overactive
else               w <- (1 - alpha) w + alpha w_k,  alpha = (a - a_k + 1)^(-1/2);
                   a <- a + 1; k begins again from w, a_k <- a                         merged
=================  ==================================================================  ==========

=======  ==========================  ===================================================  ==========
symbol   variable                    meaning                                              where
=======  ==========================  ===================================================  ==========
b_l      ``coop.lower``              lower bound                                          run config
b_u      ``coop.upper``              upper bound                                          run config
a        b_l + state.version         merges so far, from b_l on: see below                server
a_k      0, or b_l + v               age of w^v that k last got; 0 of the initial w^0     server
w_k      up ``arrays``               the client's model                                   wire
         state.own["k/parameter"]    the same of a client that trains on                  server
         state.origin["k"]           v of the same client, int64                          server
=======  ==========================  ===================================================  ==========

The server begins b_l older than the clients: if all had age 0, all would be overactive forever. That can
still happen if at most b_l clients are at work, since between two merges of a client there are b_l of others,
or if b_u is so near to b_l that many are outdated at once. Then the run ends, and says why. A client whose
update is refused begins again.

Of a client that trains on, `arrivals.jsonl` counts staleness from when it last went on; the age difference
stands in the metrics, as staleness. With b_l = 0 and b_u out of reach it is FedAsync with alpha = 1, s(tau) =
(1 + tau)^-0.5 and rho = 0, byte for byte.

A model with a - a_k = 3 has half a say; with b_l = 4 its client would train on from it:

>>> state = CoopState({"w": np.array([10.0])}, version=4, arriving={"k": np.array([5.0, 1.0])},
...     versions={"1/w": np.array([2.0])})
>>> replies = AggregatedReplies({"arrays": {"w": np.array([[4.0]])}}, ("k",), np.array([1]))
>>> made, metrics = server_update(state, replies, Config(coop=CoopConfig(lower=3)))
>>> made.arrays["w"].tolist(), made.version, metrics["alpha"]
([7.0], 5, 0.5)
>>> made, metrics = server_update(state, replies, Config(coop=CoopConfig(lower=4)))
>>> made.arrays["w"].tolist(), made.version, made.own, metrics["alpha"]
([10.0], 4, {'k/w': array([4.])}, 0.0)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from strategies.engine.rule import Round, RoundContext, Route
from strategies.engine.state import AggregatedReplies, Number, Updated
from strategies.rules.asynchronous import Asynchronous, AsyncState, stepped
from strategies.rules.fedasync import mixed
from task.config.algorithm_sections import CoopConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class CoopState(AsyncState):
    """The state of an asynchronous run, and the models of clients that train on by themselves."""

    own: Arrays = field(default_factory=dict)
    """w_k of clients that train on, by ``client/name``."""
    origin: Arrays = field(default_factory=dict)
    """The version that each of them last got."""


def age_difference(state: CoopState, client: str, knobs: CoopConfig) -> int:
    """Return a - a_k of a client that arrives."""
    version = int(state.origin[client] if client in state.origin else state.arriving[client][1])
    return state.version - version + (0 if version else knobs.lower)


def trains_on(state: CoopState, client: str, model: Arrays) -> CoopState:
    """Return the state in which a client that arrives goes on from its own model."""
    origin = state.origin.get(client, np.int64(state.arriving[client][1]))
    own = {f"{client}/{name}": a for name, a in model.items()}
    return replace(state, own=state.own | own, origin=state.origin | {client: np.asarray(origin)})


def begins_again(state: CoopState, clients: Collection[str]) -> CoopState:
    """Return the state in which clients next begin from the server's model."""
    gone = {f"{client}/{name}" for client in clients for name in state.arrays}
    own = {key: a for key, a in state.own.items() if key not in gone}
    return replace(state, own=own, origin={c: a for c, a in state.origin.items() if c not in clients})


def share(difference: int) -> float:
    """Return alpha of a model that is merged.

    >>> share(0), share(3)
    (1.0, 0.5)
    """
    return float((1.0 + difference) ** -0.5)


def server_update(state: CoopState, reduced: AggregatedReplies, config: Config) -> Updated[CoopState]:
    """Merge the model of the client that arrives, hold it for the client, or drop it."""
    (client,), knobs = reduced.clients, config.coop
    difference = age_difference(state, client, knobs)
    alpha = share(difference) if knobs.lower <= difference <= knobs.upper else 0.0
    metrics: dict[str, Number] = {
        "staleness-mean": float(difference),
        "staleness-max": difference,
        "at-work": len(state.flight),
        "alpha": alpha,
    }
    if difference < knobs.lower:
        after = trains_on(state, client, mixed(state, reduced, 1.0))
    else:
        after = begins_again(state, [client])
    return cast(CoopState, stepped(after, mixed(state, reduced, alpha) if alpha else None)), metrics


class Coop(Asynchronous, algorithm="coop", update=server_update, state=CoopState):
    """Cooperative machine learning from mobile devices; see `strategies.rules.coop`."""

    def __init__(self, config: Config) -> None:
        knobs = config.coop
        if knobs.upper < knobs.lower:
            raise ConfigError(
                f'run-config key "coop.upper": expected at least coop.lower = {knobs.lower}; '
                f"got {knobs.upper}"
            )
        super().__init__(config)

    def buffer(self, at_once: int) -> int:
        """Return 1: each arrival is a step."""
        return 1

    def weight(self, tau: int) -> float:
        """Return alpha of a client whose model is this number of versions old, if it is merged."""
        return share(tau)

    def round(self, state: Any, context: RoundContext) -> Round:
        """Take the step; say so if it leaves nothing to merge."""
        after, metrics = yield from super().round(state, context)
        if self.finished(cast(CoopState, after)):
            knobs = self.config.coop
            context.remark(
                f"no client is {knobs.lower} to {knobs.upper} merges behind, so none will ever be merged: "
                'the run ends (run-config keys "coop.lower", "coop.upper", "fraction-train")'
            )
        return after, metrics

    def route(self, state: Any, to: Sequence[str], context: RoundContext) -> Route:
        """Give each client the version that it began from, or its own model if it trains on."""
        models = dict(super().route(state, to, context)["model"])
        for client in to:
            if client in state.origin:
                models[client] = {client: {name: state.own[f"{client}/{name}"] for name in state.arrays}}
        return {"model": models}

    def on_round_skipped(
        self, state: Any, spent: AggregatedReplies, came: AggregatedReplies | None
    ) -> AsyncState:
        """Let the client whose update is lost begin again."""
        return stepped(begins_again(state, state.arriving), None)

    def roll_back(self, good: Any, state: Any) -> Any:
        """Take the oldest version that clients were at work on for the initial model, ages included."""
        back: Any = super().roll_back(good, state)
        return replace(back, version=0, own={}, origin={})

    def finished(self, state: CoopState) -> bool:
        """Return whether no client would be merged if it arrived now, for then none ever will be."""
        knobs, at_work = self.config.coop, replace(state, arriving=state.flight)
        clients = {*state.flight, *state.origin}  # all others begin from the newest version
        ages = [age_difference(at_work, client, knobs) for client in clients]
        return bool(state.version and knobs.lower) and not any(knobs.lower <= d <= knobs.upper for d in ages)
