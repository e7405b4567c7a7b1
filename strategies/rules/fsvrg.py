"""FSVRG, server half. Konečný, McMahan, Ramage, Richtárik 2016, arXiv 1610.02527, Algorithms 3 and 4.

Two phases a round with the same clients S_t. Before the training each client sends its full gradient:

g = sum_{k in S_t} (n_k / n_S) grad F_k(w^t)

The clients then take variance-reduced steps from w^t to w_k (``client_app/solvers/fsvrg.py``), and

dense      w^{t+1} = sum_k (n_k / n_S) w_k
sparse     w^{t+1} = w^t + A sum_k (n_k / n_S) (w_k - w^t),   A = Diag(K / omega^j)

=========  ====================  ============================================================  ============
symbol     variable              meaning                                                       where
=========  ====================  ============================================================  ============
g          state.gradient        full gradient at w^t, parameters                              server, wire
phi^j      state.frequency       n^j / n, share of the examples with a non-zero feature j      server, wire
omega^j    state.presence        how many clients have an example with a non-zero feature j    server
K          state.participants    clients whose counts these are                                server
w_k        up ``arrays``         local model after the steps                                   wire
=========  ====================  ============================================================  ============

phi and omega belong to the columns of the first layer, which must be linear in the features; every other
parameter has A = 1. Each round gathers them again, in the phase before the training, two numbers
for each feature, so that the contract is the same in every round; the server sees their sums. omega^j = 0
gives A = 1.

Deviation: where only some clients take part, g and the counts are over S_t and not over all clients; g is
then not the gradient of the whole objective. With C = 1 it is the paper's.
Neutral value: E = 1, B = infinity is one gradient step, FedAvg with the same (sparse: if every client has
every feature).

Of two clients only one has the first feature: A = (2, 1).

>>> counts = {"columns": np.array([1.0, 2.0])}
>>> state = FSVRGSparseState({"w": np.zeros((1, 2))}, presence=counts, participants=2)
>>> means = {"arrays": {"w": np.ones((1, 2))}}
>>> replies = AggregatedReplies(means, ("a", "b"), np.array([1, 1]), trainable=("w",))
>>> sparse_update(state, replies, Config())[0].arrays["w"]
array([[2., 1.]])
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from strategies.engine.rule import TRAIN, Round, RoundContext, Rule
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from task.config.knobs import Config
from task.numerics.arrays import Arrays, squared_norm


@dataclass(frozen=True)
class FSVRGState(ServerState):
    """The model and, between the two phases of a round, g."""

    gradient: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class FSVRGSparseState(FSVRGState):
    """With the features' counts."""

    frequency: Arrays = field(default_factory=dict)
    presence: Arrays = field(default_factory=dict)
    participants: int = 0


F = TypeVar("F", bound=FSVRGState)


def server_update(state: F, reduced: AggregatedReplies, config: Config) -> Updated[F]:
    """Replace the model by the weighted mean and forget g."""
    metrics: dict[str, Number] = {"gradient-norm": math.sqrt(squared_norm(state.gradient))}
    return replace(state, arrays=reduced.arrays["arrays"], gradient={}), metrics


def sparse_update(
    state: FSVRGSparseState, reduced: AggregatedReplies, config: Config
) -> Updated[FSVRGSparseState]:
    """Take the mean step, in the first layer's columns that few clients have a longer one."""
    name, w, mean = reduced.trainable[0], state.arrays, dict(reduced.arrays["arrays"])
    omega = np.rint(state.presence["columns"].astype(np.float64))
    lengthened = np.where(omega > 0, state.participants / np.maximum(omega, 1.0), 1.0)  # A
    moved = w[name] + lengthened * (mean[name].astype(np.float64) - w[name])
    # where A = 1 the mean stays as it is, to the last bit
    mean[name] = np.where(lengthened == 1.0, mean[name], moved.astype(w[name].dtype))
    length = math.sqrt(squared_norm(state.gradient))
    metrics: dict[str, Number] = {"gradient-norm": length, "largest-a": float(lengthened.max())}
    return replace(state, arrays=mean, gradient={}, frequency={}, presence={}), metrics


class FSVRG(Rule, algorithm="fsvrg", update=server_update, state=FSVRGState):
    """Federated SVRG, dense form; see `strategies.rules.fsvrg`."""

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for g, and let those who took part in it train."""
        replies = yield context.phase("gradient", state)
        taken = self.take_in(state, replies)
        replies = yield context.phase(TRAIN, taken, replies.clients)
        return type(self).update(taken, replies, self.config)

    def take_in(self, state: Any, replies: AggregatedReplies) -> Any:
        """Return the state with what the first phase gave."""
        return replace(state, **replies.arrays)


class FSVRGSparse(FSVRG, algorithm="fsvrg-sparse", update=sparse_update, state=FSVRGSparseState):
    """Federated SVRG for sparse features; see `strategies.rules.fsvrg`."""

    def take_in(self, state: Any, replies: AggregatedReplies) -> Any:
        """Store g and the feature counts of this number of clients."""
        return super().take_in(replace(state, participants=len(replies.clients)), replies)
