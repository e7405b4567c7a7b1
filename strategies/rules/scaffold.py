"""SCAFFOLD, server half. Karimireddy et al., ICML 2020, arXiv 1910.06378, Algorithm 1, lines 16 and 17.

x <- x + eta_g mean_{i in S}(y_i - x)
c <- c + |S|/N mean_{i in S}(c_i^+ - c_i)

=============  ======================  =========================  ==============
symbol         variable                shape, dtype               where
=============  ======================  =========================  ==============
x              state.arrays            as the model               server, down
c              state.control           as the parameters          server, down
y_i            up ``arrays``           as the model               wire
c_i^+ - c_i    up ``control-delta``    as the parameters          wire
eta_g          ``scaffold.server-lr``  float > 0                  run config
S, N           clients, population     who answered; who is or was online
=============  ======================  =========================  ==============

Means are over the clients that answered, uniform as in the paper: the objective is the mean of the clients'
losses, whatever their sizes. Buffers have no control variate; they are averaged and never stepped.

c is the mean of all c_i, of the clients that the run has known: it is taken over N_old / N_new more when some
join, and not over fewer while some are away. A client that leaves for good leaves its last c_i in c. The
rounds then go to the point where its gradient, as it last was, and the others' sum to 0: its loss counts on
as a linear one. Begin a run from the model (``initial-model``) to be rid of it.

That holds as long as every reply arrives. A reply that is lost or quarantined after its client
went on leaves a difference of (c_i^+ - c_i)/N, and a client that lost its state begins with c_i = 0 again
while c still holds what it had: both shift the point that the rounds go to by a share 1/N of that client's
gradient, and later rounds of the client do not undo it.

Neutral: with all clients in every round and one step on all data the corrections c - c_i cancel in the mean,
and, sizes being equal, the round is FedAvg's.

One of four clients: c = 0 + 1/4 * 4 = 1.

>>> state = ScaffoldState({"w": np.array([1.0])}, {"w": np.array([0.0])})
>>> means = {"arrays": {"w": np.array([2.0])}, "control-delta": {"w": np.array([4.0])}}
>>> replies = AggregatedReplies(means, ("a",), np.array([1]), population=4)
>>> server_update(state, replies, Config())[0].control["w"]
array([1.])
"""

from dataclasses import dataclass, field, replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, MeansState, Updated
from strategies.rules.steps import step, towards
from task.config.knobs import Config
from task.numerics.arrays import Arrays, only


@dataclass(frozen=True)
class ScaffoldState(MeansState):
    """The model and the server's control variate."""

    control: Arrays = field(default_factory=dict)
    """c, by parameter."""


def server_update(state: ScaffoldState, reduced: AggregatedReplies, config: Config) -> Updated[ScaffoldState]:
    """Step towards the mean local model and move c; each sum is rounded once, from float64."""
    lr, mean = config.scaffold.server_lr, reduced.arrays["arrays"]
    delta = reduced.arrays["control-delta"]
    stepped = towards(state.arrays, only(mean, delta), lr)
    control = step(state.control, delta, reduced.share)
    return replace(state, arrays=mean | stepped, control=control), {}


class Scaffold(
    Rule, algorithm="scaffold", update=server_update, state=ScaffoldState, zeros={"control": None}
):
    """Stochastic controlled averaging; see `strategies.rules.scaffold`."""
