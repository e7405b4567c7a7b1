"""Adaptive local steps, server half. Wang et al., IEEE JSAC 37(6), 2019, arXiv 1804.05271, Algorithms 2, 3.

FedAvg with tau local steps in every round. After each round the server chooses the tau with which a resource
R reaches the smallest bound of the loss:

tau* = argmin G(tau) over 1 .. min(10 tau, tau_max)
G(tau) = [1 + sqrt(1 + 4 T^2 phi rho eta h(tau) / tau)] / (2 T eta phi) + rho h(tau)
h(tau) = delta/beta ((eta beta + 1)^tau - 1) - eta delta tau     T(tau) = (R - b - c) tau / (c tau + b)

=========  ========================  ========================================================  =============
symbol     variable                  meaning                                                   where
=========  ========================  ========================================================  =============
tau        state.tau                 local steps of the next round                             ``local-steps``
R          adaptive-tau.budget       what may be spent, in units of ``resource``               run config
c          state.step_cost           cost of one local step, of the slowest client             server
b          state.round_cost          cost of a round without its steps                        server
phi        adaptive-tau.phi          how hard drift counts against few rounds; to be tuned     run config
rho        ``rho``                   |F_k(w_k) - F_k(w)| / |w_k - w|, mean by p_k              wire
beta       ``beta``                  |grad F_k(w_k) - grad F_k(w)| / |w_k - w|, mean by p_k    wire
delta      divergence                sum_k p_k |grad F_k(w) - grad F(w)|                       here
--         up ``gradient``           grad F_k(w) on a minibatch, stacked                       wire
F(w^t)     ``loss-before``           mean by p_k                                               wire
w^f        state.best                the w^t with the smallest F(w^t) so far                   server
=========  ========================  ========================================================  =============

p_k is the client's share in the mean of the models: n_k / n, or 1/m where the selection draws by n_k. rho and
beta compare the client's last local model w_k with the model w that it is now given, on one minibatch
(``client_app/solvers/adaptive_tau.py``); a client that has no w_k yet, or whose w_k is w, sends 0 for both
and does not count. Until a client has an estimate, tau stays.

The end, as the paper has it: once another round of tau* + 1 steps and the check of its model do not fit into
R, tau is cut to what fits, one last round trains, and one more round of a single step asks for the loss of
its model: that training is discarded, and the run ends with w^f. So what was spent stays within R. In
seconds and bytes costs are known only afterwards, and the last rounds may overrun. A run that
``num-server-rounds`` ends before its budget keeps the model of its last round.

resource = "model": c and b are ``step-cost`` and ``round-cost``, and a round spends c tau + b: a run is
reproducible. "seconds": c is the slowest client's measured time by step, b the rest of the round's wall
time; meant for one client on each node. "bytes": c = 0, b = payload of the round both ways.

A round with too few good replies (for example, all diverged) spends its cost, keeps the model and makes tau
1.
Deviations: ``fixed-tau`` > 0 takes that tau in every round, with the same budget and the same w^f (the
paper's baseline). There is no moving average of the estimates (authors' code: hold = 0).
Neutral value: tau = 1 with a budget that lasts is FedAvg with one local step.

Without drift the largest tau that is looked at is the best, ten times the last one:

>>> state = AdaptiveTauState({}, tau=1, step_cost=1.0, round_cost=1.0)
>>> choose(state, Estimates(rho=1.0, beta=1.0, divergence=0.0), 0.1, AdaptiveTauConfig())
10
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from strategies.rules.robust_math import columns
from task.config.algorithm_sections import AdaptiveTauConfig
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics.arrays import Arrays

SMALLEST_BETA = 1e-5
GROWTH = 10  # tau* is searched up to this multiple of the last tau

TRAINING, LAST, CLOSING, OVER = range(4)
"""Phases of a run: rounds go on; the last that trains; the check of its model; the end."""


@dataclass(frozen=True)
class AdaptiveTauState(ServerState):
    """The model, the best one, the budget's account and tau."""

    best: Arrays = field(default_factory=dict)
    best_loss: float = math.inf
    tau: int = 1
    phase: int = TRAINING
    spent: float = 0.0
    step_cost: float = 0.0
    round_cost: float = 0.0


@dataclass(frozen=True)
class Estimates:
    """What the clients' replies say of the loss."""

    rho: float | None  # Lipschitz constant of F; None if no client could estimate it
    beta: float | None  # smoothness of F; the same
    divergence: float  # delta, how far local gradients are from the global one


def server_update(
    state: AdaptiveTauState, reduced: AggregatedReplies, config: Config
) -> Updated[AdaptiveTauState]:
    """Replace the model by the weighted mean, add the cost, look for the best model, choose tau."""
    knobs = config.adaptive_tau
    loss = reduced.needed("loss-before")
    found = estimates(reduced)
    if loss < state.best_loss:
        state = replace(state, best=state.arrays, best_loss=loss)
    metrics: dict[str, Number] = {"tau": state.tau, "loss-before": loss, "delta": found.divergence}
    metrics |= {k: v for k, v in (("rho", found.rho), ("beta", found.beta)) if v is not None}
    closing = state.phase == CLOSING
    model = state.best if closing else reduced.arrays["arrays"]
    state = add_cost(replace(state, arrays=model), reduced, knobs)
    metrics |= {"spent": state.spent, "step-cost": state.step_cost, "round-cost": state.round_cost}
    if closing:
        return replace(state, phase=OVER), metrics
    return plan_next(state, choose(state, found, reduced.lr, knobs), knobs), metrics


def add_cost(
    state: AdaptiveTauState, reduced: AggregatedReplies, knobs: AdaptiveTauConfig
) -> AdaptiveTauState:
    """Return the state with the round's cost added and c and b brought up to date."""
    c, b = knobs.step_cost, knobs.round_cost
    cost = c * state.tau + b
    if knobs.resource == "seconds":
        measured, cost = reduced.number("step-seconds"), reduced.seconds
        c = state.step_cost if measured is None else measured
        c = min(c, cost / state.tau)  # the steps took place within the round
        b = max(cost - c * state.tau, 1e-10)
    elif knobs.resource == "bytes":
        c, b, cost = 0.0, float(reduced.bytes), float(reduced.bytes)
    return replace(state, spent=state.spent + cost, step_cost=c, round_cost=b)


def estimates(reduced: AggregatedReplies) -> Estimates:
    """Return the weighted means of rho and beta, and delta in float64."""
    shares = reduced.counts / reduced.counts.sum()
    pairs = zip(reduced.scalars["rho"], reduced.scalars["beta"], reduced.counts, strict=True)
    known = [(rho, beta, int(n)) for rho, beta, n in pairs if rho > 0 or beta > 0]
    rho, beta = None, None
    if known:
        total = sum(n for _, _, n in known)
        rho = math.fsum(rho * n for rho, _, n in known) / total
        beta = math.fsum(beta * n for _, beta, n in known) / total
    squares = np.zeros(len(shares))
    for stack in reduced.arrays["gradient"].values():
        for _, part in columns(stack):
            block = part.astype(np.float64)
            block -= shares @ block
            squares += np.einsum("kb,kb->k", block, block)
    return Estimates(rho, beta, math.fsum(shares * np.sqrt(squares)))


def choose(state: AdaptiveTauState, found: Estimates, lr: float, knobs: AdaptiveTauConfig) -> int:
    """Return tau*, or tau as it was where there is no estimate."""
    if knobs.fixed_tau:
        return knobs.fixed_tau
    if found.rho is None or found.beta is None:
        return state.tau
    beta = max(found.beta, SMALLEST_BETA)
    spare = knobs.budget - state.round_cost - state.step_cost
    bounds = []
    for tau in range(1, min(GROWTH * state.tau, knobs.tau_max) + 1):
        steps = spare * tau / (state.step_cost * tau + state.round_cost)  # T
        bounds.append(bound(tau, steps, drift(tau, found.divergence, beta, lr), found.rho, lr, knobs.phi))
    return int(np.argmin(bounds)) + 1


def drift(tau: int, divergence: float, beta: float, lr: float) -> float:
    """Return h(tau): how far local and central descent can be apart after tau steps."""
    if tau <= 1 or divergence <= 0:
        return 0.0
    grown = tau * math.log1p(lr * beta)
    power = math.expm1(grown) if grown < 700 else math.inf  # (eta beta + 1)^tau - 1
    return max(0.0, divergence * (power / beta - lr * tau))


def bound(tau: int, steps: float, drift: float, rho: float, lr: float, phi: float) -> float:
    """Return G(tau)."""
    if steps <= 0:
        return math.inf
    root = math.sqrt(1.0 + 4.0 * steps**2 * phi * rho * lr * drift / tau)
    found = (1.0 + root) / (2.0 * steps * lr * phi) + rho * drift
    return math.inf if math.isnan(found) else found  # infinite drift times a rho of 0


def plan_next(state: AdaptiveTauState, tau: int, knobs: AdaptiveTauConfig) -> AdaptiveTauState:
    """Return the state with tau and phase of the next round, as far as the budget goes."""
    c, b, left = state.step_cost, state.round_cost, knobs.budget - state.spent
    if state.phase in (LAST, CLOSING):
        return replace(state, tau=1, phase=CLOSING)
    if c * (tau + 1) + 2 * b < left:
        return replace(state, tau=tau)
    # the largest tau with which the last round and the check of its model fit
    fits = tau if c == 0 else math.floor(min(tau, max((left - c - 2 * b) / c + 1e-9, 0.0)))
    if left >= c + 2 * b and fits >= 1:
        return replace(state, tau=fits, phase=LAST)
    return replace(state, tau=1, phase=CLOSING)


class AdaptiveTau(Rule, algorithm="adaptive-tau", update=server_update, sends={"local-steps": "tau"}):
    """FedAvg with as many local steps as pay under a budget; see `strategies.rules.adaptive_tau`."""

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> AdaptiveTauState:
        """Start with the configured costs and the first tau.

        Raises:
            ConfigError: The budget does not last for one round.
        """
        knobs = self.config.adaptive_tau
        least = {
            "model": 2 * (knobs.step_cost + knobs.round_cost),
            "bytes": 2.0 * sum(a.nbytes for a in arrays.values()),
        }.get(knobs.resource, 0.0)
        if knobs.budget < least:
            raise ConfigError(
                f'run-config key "adaptive-tau.budget": expected float >= {least:g}, what one round and the '
                f'check of its model cost at least under adaptive-tau.resource = "{knobs.resource}"; '
                f"got {knobs.budget:g}"
            )
        first = knobs.fixed_tau or 1
        if knobs.resource != "model":
            return AdaptiveTauState(arrays, tau=first)
        state = AdaptiveTauState(arrays, step_cost=knobs.step_cost, round_cost=knobs.round_cost)
        return plan_next(state, first, knobs)

    def roll_back(self, good: AdaptiveTauState, state: AdaptiveTauState) -> AdaptiveTauState:
        """Take the models of the earlier state; what was spent stays spent."""
        return replace(state, arrays=good.arrays, best=good.best, best_loss=good.best_loss)

    def on_round_skipped(
        self, state: AdaptiveTauState, spent: AggregatedReplies, came: AggregatedReplies | None
    ) -> AdaptiveTauState:
        """Book the round's cost and go back to one step."""
        knobs = self.config.adaptive_tau
        return plan_next(add_cost(state, spent, knobs), knobs.fixed_tau or 1, knobs)

    def finished(self, state: AdaptiveTauState) -> bool:
        """Return whether the budget is spent."""
        return state.phase == OVER
