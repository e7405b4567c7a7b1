"""Mime and MimeLite with momentum, server half. Karimireddy et al. 2021, arXiv 2008.03606, Algorithm 1.

w^{t+1} = sum_{k in S_t} (n_k / n_S) w_k
m^{t+1} = beta m^t + (1 - beta) c,   c = sum_{k in S_t} (n_k / n_S) grad F_k(w^t)

======  ====================  ==========================================  ============
symbol  variable              shape, dtype                                where
======  ====================  ==========================================  ============
w^t     state.arrays          as the model                                server, down
m^t     state.momentum        as the parameters; m^1 = 0                  server, down
c       state.gradient        as the parameters, between two phases       server, down
w_k     up ``arrays``         as the model                                wire
beta    ``mime.beta``         share in [0, 1)                             run config
======  ====================  ==========================================  ============

The paper takes plain means over the round's clients; here they are weighted by n_k, as FedAvg's are, so that
the optimum is that of the pooled data. With clients of one size the two are the same.

MimeLite's clients send their full gradients with their models. Mime's send them in a phase of their own
before the training, as their steps need c; who takes part in that phase trains. The momentum stands still
while clients train, is the server's alone, and does not age with clients. It is damped, as in the paper:
implementations with m = beta m + c have a learning rate 1 / (1 - beta) times as large. The server's step
is 1. Buffers are averaged.

Neutral: beta = 0 makes MimeLite FedAvg, and Mime FSVRG, which is FedAvg for one full-batch step.

With beta = 1/2, m = 1 and c = 3 the next momentum is 2.

>>> from task.config.algorithm_sections import MimeConfig
>>> means = {"arrays": {"w": np.array([5.0])}, "gradient": {"w": np.array([3.0])}}
>>> replies = AggregatedReplies(means, ("a",), np.array([7]))
>>> state = MomentumState({"w": np.array([0.0])}, {"w": np.array([1.0])})
>>> lite_update(state, replies, Config(mime=MimeConfig(beta=0.5)))[0].momentum["w"]
array([2.])
"""

from dataclasses import dataclass, field, replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.fedcm import MomentumState
from strategies.rules.fsvrg import FSVRG
from strategies.rules.steps import towards
from task.config.knobs import Config
from task.numerics.arrays import Arrays


@dataclass(frozen=True)
class MimeState(MomentumState):
    """The model, m and, between the two phases of a round, c."""

    gradient: Arrays = field(default_factory=dict)


def lite_update(state: MomentumState, reduced: AggregatedReplies, config: Config) -> Updated[MomentumState]:
    """Take the mean of the models, and move the momentum by that of the gradients."""
    momentum = towards(reduced.arrays["gradient"], state.momentum, config.mime.beta)
    return replace(state, arrays=reduced.arrays["arrays"], momentum=momentum), {}


def server_update(state: MimeState, reduced: AggregatedReplies, config: Config) -> Updated[MimeState]:
    """Take the mean of the models, move the momentum by c, and forget c."""
    momentum = towards(state.gradient, state.momentum, config.mime.beta)
    return replace(state, arrays=reduced.arrays["arrays"], momentum=momentum, gradient={}), {}


_ZEROS = {"momentum": None}


class MimeLite(Rule, algorithm="mimelite", update=lite_update, state=MomentumState, zeros=_ZEROS):
    """Mime without its correction; see `strategies.rules.mime`."""


class Mime(FSVRG, algorithm="mime", update=server_update, state=MimeState, zeros=_ZEROS):
    """Mime, whose rounds have FSVRG's two phases; see `strategies.rules.mime`."""
