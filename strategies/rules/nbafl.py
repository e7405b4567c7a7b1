"""NbAFL, server half. Wei et al., IEEE TIFS 2020, arXiv 1911.00222, Algorithm 1: noise as published.

sigma_U = c L (2 C / m) / epsilon,  c = sqrt(2 ln(1.25 / delta))
sigma_D = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon)  if T > L sqrt(N), else 0
w^{t+1} = sum_k (n_k / n_S) w~_k + N(0, sigma_D^2)

=============  =======================  =============================================  ============
symbol         variable                 meaning                                        where
=============  =======================  =============================================  ============
w~_k           up ``arrays``            clipped and noised local model                 wire
sigma_U        ``sigma-up``             noise of a client                              server, down
sigma_D        state.sigma_down         noise of the server                            server
m              here                     examples of the smallest client, also of those server
                                        that are away
N              here                     clients that are asked in the round            server
T              ``num-server-rounds``    rounds of the run                              run config
C, epsilon     ``nbafl.*``              knobs                                          run config
L              ``nbafl.exposures``      uploads of a client that epsilon counts        run config
=============  =======================  =============================================  ============

**It does not protect anyone.** The sensitivity 2 C / m does not hold for all losses ("Comment on 'Federated
Learning With Differential Privacy: Algorithms and Performance Analysis'"): a local model of norm C may move
by 2 C when one example changes, m times as far. The formula of c holds for epsilon below 1 only. L may be
less than the actual number of uploads. And the noise follows from the run's seed, as all that is simulated
here. The metric ``honest-epsilon`` is what a client's uploads so far would cost if the noise were secret:
sensitivity 2 C, every round, exactly. The paper's bound on convergence (Theorem 2) was corrected by Talaei
and Izadi, arXiv 2406.05858.

Where a round asks a part of the clients only, the paper has another sigma_D, smaller by what sampling is
worth; that is not built. Buffers are neither clipped nor noised.

Neutral: epsilon and C huge, mu = 0. By hand, with c = 3, so that delta = 1.25 e^-4.5:

>>> config = Config(nbafl=NbAFLConfig(clip=10.0, epsilon=60.0, delta=1.25 * math.exp(-4.5), exposures=2))
>>> up, down = sigmas(config, m=100, clients=4, rounds=5)
>>> (round(up, 9), round(down, 9))  # 3 * 2 * 0.2 / 60 and 2 * 3 * 10 * sqrt(25 - 4 * 4) / (100 * 4 * 60)
(0.02, 0.0075)
>>> sigmas(config, m=100, clients=9, rounds=6)[1]  # 6 = 2 sqrt(9)
0.0
"""

import math
from dataclasses import dataclass, replace

from strategies.engine.rule import Round, RoundContext, Rule
from strategies.engine.state import AggregatedReplies, Number, ServerState, Updated
from task.config.algorithm_sections import NbAFLConfig
from task.config.knobs import Config
from task.numerics import seeds
from task.privacy.accounting import gaussian_epsilon


@dataclass(frozen=True)
class NbAFLState(ServerState):
    """The model and the noise of the round."""

    sigma_up: float = 0.0
    sigma_down: float = 0.0


def sigmas(config: Config, m: int, clients: int, rounds: int) -> tuple[float, float]:
    """Return sigma_U and sigma_D."""
    knobs = config.nbafl
    unit = 2.0 * _c(knobs) * knobs.clip / m / knobs.epsilon
    squares = rounds**2 - knobs.exposures**2 * clients
    return unit * knobs.exposures, unit / clients * math.sqrt(max(squares, 0))


def honest_epsilon(config: Config, sigma_up: float, rounds: int) -> float:
    """Return the epsilon of this number of uploads with this noise if a model may move by 2 C."""
    if not sigma_up:
        return math.inf
    mu = math.sqrt(rounds) * 2.0 * config.nbafl.clip / sigma_up
    return gaussian_epsilon(mu, config.nbafl.delta)


def _c(knobs: NbAFLConfig) -> float:
    return math.sqrt(2.0 * math.log(1.25 / knobs.delta))


def server_update(state: NbAFLState, reduced: AggregatedReplies, config: Config) -> Updated[NbAFLState]:
    """Replace the model by the weighted mean of the noised models, with noise of the server's."""
    mean, sigma = reduced.arrays["arrays"], state.sigma_down
    metrics: dict[str, Number] = {
        "sigma-up": state.sigma_up,
        "sigma-down": sigma,
        "honest-epsilon": honest_epsilon(config, state.sigma_up, reduced.round),
    }
    # Groups that train one after the other get noise of their own.
    who = "down-link " + " ".join(reduced.clients)
    rng = seeds.rng_for(config.seeds.train, seeds.NOISE, reduced.round, who)
    noised = {n: mean[n] + sigma * rng.standard_normal(mean[n].shape) for n in sorted(reduced.trainable)}
    return replace(state, arrays=mean | {n: a.astype(mean[n].dtype) for n, a in noised.items()}), metrics


class NbAFL(Rule, algorithm="nbafl", update=server_update, state=NbAFLState, sends={"sigma-up": "sigma_up"}):
    """Noising before model aggregation, as published: no protection; see `strategies.rules.nbafl`."""

    counts_examples = True

    def round(self, state: NbAFLState, context: RoundContext) -> Round:
        """Choose the round's noise, then train; say before round 1 what it is worth."""
        m, rounds = min(context.examples(context.everybody).values()), self.config.server.num_server_rounds
        up, down = sigmas(self.config, m, len(context.cohort), rounds)
        if context.round == 1:
            knobs, honest = self.config.nbafl, honest_epsilon(self.config, up, rounds)
            context.remark(
                f"warning: nbafl does not protect anyone. The paper's epsilon = {knobs.epsilon:g} rests on a "
                f"sensitivity of 2C/m, m = {m}, that a published comment refutes. With 2C, which is "
                "valid, the "
                f"{rounds} uploads of a client cost epsilon = {honest:.4g} at delta = {knobs.delta:g}, and "
                "the noise follows from the run's seed. See docs/howto/privacy.md"
            )
        return (yield from super().round(replace(state, sigma_up=up, sigma_down=down), context))
