"""FedProx, server half. Li et al., MLSys 2020, arXiv 1812.06127, Algorithm 2 and section 5.3.

The model is averaged as in FedAvg. What the server adds is mu, sent under the name that Flower gives it, and
with ``fedprox.adaptive`` the paper's heuristic for it: mu + 0.1 when the global training loss rises,
mu - 0.1 (not below 0) after it has fallen in 5 consecutive rounds.

=========  ====================  =======================  ==========
symbol     variable              shape, dtype             where
=========  ====================  =======================  ==========
mu         state.mu              float >= 0               server, wire
f(w^t)     ``loss-before``       float                    wire
=========  ====================  =======================  ==========

f(w^t) is the mean over the clients that sent it, weighted as their models are, of the plain loss of the model
that they received (the paper evaluates it on all clients, which a server cannot see). A loss equal to the
last one counts as a fall, and a change of mu starts the count again, as in FL4Health's account of the rule.
Neutral value: mu = 0 is FedAvg.

The model is the mean, and mu stays unless ``fedprox.adaptive``:

>>> replies = AggregatedReplies({"arrays": {"w": np.array([2.0])}}, ("a", "b"), np.array([1, 3]))
>>> server_update(FedProxState({"w": np.array([1.0])}, mu=0.5), replies, Config())[1]
{'proximal-mu': 0.5}
"""

from dataclasses import dataclass, replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from task.config.knobs import Config
from task.numerics.arrays import Arrays

STEP = 0.1
PATIENCE = 5


@dataclass(frozen=True)
class FedProxState(ServerState):
    """The model, mu, the loss of the last round and how often it fell in a row."""

    mu: float = 0.0
    previous_loss: float = float("inf")
    falls: int = 0


def server_update(state: FedProxState, reduced: AggregatedReplies, config: Config) -> Updated[FedProxState]:
    """Replace the model by the weighted mean; adapt mu if asked to."""
    state = replace(state, arrays=reduced.arrays["arrays"])
    metrics: dict[str, Number] = {"proximal-mu": state.mu}
    loss = reduced.number("loss-before")
    if not config.fedprox.adaptive or loss is None:
        return state, metrics
    # The first loss has nothing to fall from.
    mu, falls = state.mu, state.falls + 1 if state.previous_loss < float("inf") else 0
    if loss > state.previous_loss:
        mu, falls = mu + STEP, 0
    elif falls >= PATIENCE:
        mu, falls = max(0.0, mu - STEP), 0
    return replace(state, mu=mu, falls=falls, previous_loss=loss), metrics


class FedProx(Rule, algorithm="fedprox", update=server_update, sends={"proximal-mu": "mu"}):
    """Federated averaging with a proximal term; see `strategies.rules.fedprox`."""

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> FedProxState:
        """Start at the configured mu."""
        return FedProxState(arrays, mu=self.config.fedprox.mu)
