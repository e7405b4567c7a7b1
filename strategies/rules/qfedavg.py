"""q-FedAvg and q-FedSGD, server half. Li, Sanjabi, Beirami, Smith, ICLR 2020, arXiv 1905.10497.

min_w f_q(w) = sum_k p_k / (q + 1) F_k(w)^(q + 1)

w^{t+1} = w^t - sum_k Delta_k / sum_k h_k
Delta_k = F_k^q Dw_k,   h_k = q F_k^(q-1) |Dw_k|^2 + L F_k^q,   L = 1 / eta_t
Dw_k    = L (w^t - w_k) in q-FedAvg, grad F_k(w^t) in q-FedSGD

==============  =======================  ===============================================  ==========
symbol          variable                 meaning                                          where
==============  =======================  ===============================================  ==========
F_k             ``loss-before``          mean loss of w^t over all local examples         wire
-Delta_k / L    up ``delta``             a_k (w_k - w^t), parameters (q-FedAvg)           wire
Delta_k         up ``gradient``          a_k grad F_k(w^t), parameters (q-FedSGD)         wire
h_k / L         ``lipschitz``            a_k (1 + q eta |Dw_k|^2 / F_k)                   wire
--              ``reference-loss``       F_ref, largest F_k of the last round; 1 first  wire, state
F_k^q           a_k                      (F_k / F_ref)^q                                  client
q               qffl.q                   >= 0                                             run config
==============  =======================  ===============================================  ==========

The sums are plain: the paper draws clients in proportion to n_k (``selection = "proportional"``); with the
uniform draw it is the paper's baseline. L and F_ref are factors of numerator and denominator and cancel.
F_ref is there for the numbers: without it big q and a small loss give 0 / 0, or the sum's range is left. F_k
counts as at least 1e-10 (authors' code: F_k + 1e-10).

No step is taken with weights that were cut. Sums are exact to a multiple of 2^-51 and reach to 2^32, so the
largest a_k of the round must lie within 2^-24 and 2^24; a smaller one just adds less. Where it does
not, the round keeps the model and counts as skipped, and its largest loss is F_ref from then on. That takes,
at q = 15, a largest loss below a third or above three times that of the previous round, of another cohort
perhaps; at q = 5, a factor of 27; at q = 1, of 16 million. In the first round, where F_ref is 1, it is the
loss itself.

Buffers have no h_k: q-FedAvg takes their plain mean, q-FedSGD leaves them.
Neutral value: q = 0 is the plain mean of the local models, FedAvg if all n_k are equal.

q-FedAvg: w = 1 + (-2) / (2 + 2) = 0.5

>>> sums = {"delta": {"w": np.array([-2.0])}, "buffers": {}}
>>> scalars = {"loss-before": [1.0, 1.0], "lipschitz": [2.0, 2.0]}
>>> ways = {"loss-before": "max", "lipschitz": "sum"}
>>> replies = AggregatedReplies(sums, ("a", "b"), np.array([1, 1]), scalars, reduce=ways)
>>> server_update(QFFLState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([0.5])
"""

import math
from dataclasses import dataclass, replace

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.steps import step
from task.config.knobs import Config
from task.numerics.arrays import Arrays
from task.numerics.fairness import EXPONENT, SMALLEST_LOSS, log_weight


@dataclass(frozen=True)
class QFFLState(ServerState):
    """The model and F_ref."""

    reference_loss: float = 1.0


def server_update(state: QFFLState, reduced: AggregatedReplies, config: Config) -> Updated[QFFLState]:
    """Take the step of q-FedAvg and average the buffers."""
    return advance(state, reduced, config, reduced.arrays["delta"], 1.0, reduced.arrays["buffers"])


def gradient_update(state: QFFLState, reduced: AggregatedReplies, config: Config) -> Updated[QFFLState]:
    """Take the step of q-FedSGD."""
    return advance(state, reduced, config, reduced.arrays["gradient"], -reduced.lr, {})


def check_weights(state: QFFLState, reduced: AggregatedReplies, q: float) -> None:
    """Refuse a round whose largest a_k is too small or too large for the sums.

    Raises:
        ArithmeticError: It is.
    """
    worst = worst_loss(reduced)
    exponent = log_weight(worst, state.reference_loss, q) / math.log(2)
    if abs(exponent) > EXPONENT:
        raise ArithmeticError(
            f"weights F_k^q: expected the largest within 2^-{EXPONENT} and 2^{EXPONENT} in units of F_ref^q, "
            f"F_ref = {state.reference_loss:g}; got 2^{exponent:.1f}, of a loss of {worst:g} and q = {q:g}. "
            "That loss is F_ref from the next round on"
        )


def worst_loss(reduced: AggregatedReplies) -> float:
    """Return the largest F_k, at least `SMALLEST_LOSS`."""
    return max(reduced.needed("loss-before"), SMALLEST_LOSS)


def advance(
    state: QFFLState, reduced: AggregatedReplies, config: Config, along: Arrays, scale: float, buffers: Arrays
) -> Updated[QFFLState]:
    """Return the state after a step of scale * along / sum_k (h_k / L), with the next F_ref."""
    check_weights(state, reduced, config.qffl.q)
    worst, stepped = worst_loss(reduced), step(state.arrays, along, scale / reduced.needed("lipschitz"))
    metrics: dict[str, Number] = {"reference-loss": state.reference_loss, "worst-loss": worst}
    return replace(state, arrays=state.arrays | stepped | buffers, reference_loss=worst), metrics


_SENDS = {"reference-loss": "reference_loss"}


class QFedAvg(Rule, algorithm="qfedavg", update=server_update, state=QFFLState, sends=_SENDS):
    """Fair federated averaging; see `strategies.rules.qfedavg`."""

    def on_round_skipped(
        self, state: QFFLState, spent: AggregatedReplies, came: AggregatedReplies | None
    ) -> QFFLState:
        """Keep the model, and measure the next round's losses by those that came, if any did."""
        return state if came is None else replace(state, reference_loss=worst_loss(came))


class QFedSGD(QFedAvg, algorithm="qfedsgd", update=gradient_update):
    """Fair federated SGD by gradient upload; see `strategies.rules.qfedavg`."""
