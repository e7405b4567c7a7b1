"""FLTrust, server half. Cao, Fang, Liu and Gong, NDSS 2021, arXiv 2012.13995, Algorithm 2.

s_k = max(0, cos(Delta_k, Delta_0)),   Delta_k = w_k - w^t
w^{t+1} = w^t + sum_k s_k (|Delta_0| / |Delta_k|) Delta_k / sum_k s_k

=========  =====================  ==================================================  ==========
symbol     variable               shape, dtype                                        where
=========  =====================  ==================================================  ==========
w_k        up ``arrays``          [K, ...] as the model                               wire
Delta_0    state.root             the update of the root client, in a round, float64  server
s_k        `trust`                float64 [K]                                         server
root       ``fltrust.root``       name of the client that the server trusts           run config
=========  =====================  ==================================================  ==========

The server of the paper trains on a small root data set of its own. Here that lies at a client which the
server trusts, such as a node that its operator runs: it is asked first, in a phase of its own, trains like
all others, and is not part of the cohort. It is no attacker in a simulated attack. Without a name it is the
first by name of those online in round 1, for the whole run: a client that joins later cannot become the root.
Any number of others may be malicious; a biased root set biases the model.

Cosines and norms are over the parameters. If no update points in the root's direction, the model stays.
Buffers are the root client's: cosines say nothing of them.

With Delta_0 = (1, 1), clients at (1, 0) and (-1, -1): the second is left out, the first gets a length of
sqrt(2).

>>> stack = {"w": np.array([[1.0, 0.0], [-1.0, -1.0]])}
>>> replies = AggregatedReplies({"arrays": stack}, ("a", "b"), np.ones(2, np.int64), trainable=("w",))
>>> state = FLTrustState({"w": np.zeros(2)}, {"w": np.ones(2)})
>>> server_update(state, replies, Config())[0].arrays["w"].round(6)
array([1.414214, 0.      ])
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import TRAIN, Phases, Round, RoundContext, Rule, TooFewRepliesError
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.robust_math import columns, combine
from task.config.knobs import Config
from task.errors import AbsentError
from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in
from task.population import some


@dataclass(frozen=True)
class FLTrustState(ServerState):
    """The model, who is trusted and, between the two phases of a round, the root client's model."""

    root: Arrays = field(default_factory=dict)
    trusted: Arrays = field(default_factory=dict)
    """The name of the root client where the run names none, uint8; empty before round 1."""


def trust(
    stack: NamedArrays, centre: Arrays, root: Arrays, names: Collection[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return s_k and |Delta_0| / |Delta_k| of each client over the named arrays, float64 [K]."""
    K = len(next(iter(stack.values())))
    along, squares, own = np.zeros(K), np.zeros(K), 0.0
    for name in names:
        origin = centre[name].reshape(-1).astype(np.float64)
        direction = root[name].reshape(-1).astype(np.float64) - origin
        own += float(direction @ direction)
        with np.errstate(over="ignore", invalid="ignore"):
            for part, block in columns(stack[name]):
                moved = block - origin[part]
                along += (moved * direction[part]).sum(1)
                squares += np.square(moved).sum(1)
    usable = np.isfinite(squares) & (squares > 0) & (own > 0)
    ratio = np.sqrt(own / np.where(usable, squares, 1.0))
    cosine = np.where(usable, along / np.sqrt(np.where(usable, squares, 1.0) * max(own, 1e-300)), 0.0)
    return np.maximum(cosine, 0.0), ratio


def server_update(state: FLTrustState, reduced: AggregatedReplies, config: Config) -> Updated[FLTrustState]:
    """Step along the clients' updates by how far they point the root's way, each as long as the root's."""
    stack, names = reduced.arrays["arrays"], reduced.trainable
    scores, ratio = trust(stack, state.arrays, state.root, names)
    metrics: dict[str, Number] = {"trusted": int((scores > 0).sum()), "trust": float(scores.mean())}
    if not scores.any():
        return replace(state, root={}), metrics
    weights = scores * ratio / scores.sum()
    part = combine({n: stack[n] for n in names}, weights)
    rest = 1.0 - weights.sum()
    stepped = {
        n: (rest * state.arrays[n].astype(np.float64) + part[n].astype(np.float64)).astype(part[n].dtype)
        for n in names
    }
    return replace(state, arrays=state.root | stepped, root={}), metrics


class FLTrust(Rule, algorithm="fltrust", update=server_update, state=FLTrustState):
    """FLTrust; see `strategies.rules.fltrust`."""

    def opening(self, context: RoundContext) -> Phases:
        """Ask nothing, but refuse a root that is not a client's name.

        Raises:
            AbsentError: The root is not online.
        """
        root = self.config.fltrust.root
        if root and root not in context.names:
            raise AbsentError(
                f'run-config key "fltrust.root": expected the name of a client that is online; got "{root}"; '
                f"online are {some(context.names)}. Correct the name, or start its node and the run again"
            )
        yield from ()

    def counted(self, state: FLTrustState, context: RoundContext) -> FLTrustState:
        """Choose the trusted client in the first round, if the run does not name one."""
        if self.config.fltrust.root or state.trusted or not context.names:
            return state
        name = context.names[0]
        context.remark(
            f'fltrust: the server trusts client "{name}" for the whole run, the first by name of those '
            'online in its first round; set run-config key "fltrust.root" to choose another'
        )
        return replace(state, trusted={"name": of_text(name)})

    def roll_back(self, good: FLTrustState, state: FLTrustState) -> FLTrustState:
        """Take the earlier model; who is trusted stays."""
        return replace(good, trusted=state.trusted)

    def round(self, state: FLTrustState, context: RoundContext) -> Round:
        """Let the root client train, then the cohort without it."""
        root = self.config.fltrust.root or text_in(state.trusted["name"])
        if root not in context.names:
            raise TooFewRepliesError(
                f'client "{root}", which the server trusts (run-config key "fltrust.root"), is not online'
            )
        cohort = tuple(client for client in context.cohort if client != root)
        if not cohort:
            raise TooFewRepliesError(f'only the root client "{root}" was selected')
        replies = yield replace(context.phase("root", state, (root,)), least=1, log_as=TRAIN)
        taken = replace(state, root=replies.arrays["arrays"])
        replies = yield context.phase(TRAIN, taken, cohort)
        return type(self).update(taken, replies, self.config)
