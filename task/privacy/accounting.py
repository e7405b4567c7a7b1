"""Privacy accounting: epsilon of releases by privacy loss distributions, with Google's dp-accounting.

A release is a Gaussian mechanism of noise multiplier z on a cohort that each client joins by its own secret
coin with probability q. Neighbours differ by one client, there or not. Releases that had the same cohort, as
the phases of one round, or a round that was done again, count as one of 1/z^2 = sum 1/z_i^2.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Any

from task.config.sections import DPConfig
from task.errors import ConfigError
from task.extras import from_extra

Event = tuple[float, float]  # q and z
WHERE = 'run-config key "dp.noise"'
INTERVAL = 1e-3  # of the discretised privacy loss; what is lost by it is added to epsilon
# More releases are counted exactly only if epsilon by Renyi divergences is not beyond all promises: the
# distribution of many strong releases would take gigabytes, and their number is reported by a client.
MANY, HOPELESS = 100_000, 1000.0


def delta_too_large(delta: float, count: int, whom: str) -> str:
    """Return why delta promises nothing to those that are protected, `count` of them; "" = it is fine.

    `whom` says who they are, as in "the 10 clients".

    >>> delta_too_large(0.1, 9, "the 9 clients")
    ''
    """
    if delta * count < 1:
        return ""
    return (
        f'"dp.delta": expected less than one over {whom}, or one of them could be given away whole; got '
        f"{delta:g}. For n of them n^-1.1 is usual"
    )


def check_delta(delta: float, count: int, whom: str) -> None:
    """Refuse a run with a `delta_too_large`.

    Raises:
        ConfigError: Naming the key.
    """
    if why := delta_too_large(delta, count, whom):
        raise ConfigError(f"run-config key {why}")


def joined(noises: Iterable[float]) -> float:
    """Return the noise multiplier of one release that is worth several ones of one cohort."""
    return round(1.0 / math.sqrt(math.fsum(1.0 / (z * z) for z in noises)), 9)


def epsilon(events: Iterable[Event] | Mapping[Event, int], delta: float) -> float:
    """Return the least epsilon, up to the discretisation, for which the events are (epsilon, delta)-DP.

    `events` are single ones, or how many there were of each. Of more than `MANY` with an epsilon beyond
    `HOPELESS` it is an upper bound.

    Raises:
        ConfigError: dp-accounting is not installed.
    """
    return _epsilon(tuple(sorted(Counter(events).items())), delta)


@lru_cache(maxsize=1024)
def _epsilon(counts: tuple[tuple[Event, int], ...], delta: float) -> float:
    if not counts:
        return 0.0
    if sum(times for _, times in counts) > MANY and (bound := _renyi(counts, delta)) > HOPELESS:
        return bound
    # The losses of a release go up as 1/z^2; only distributions on one grid compose.
    most = max(z for (_, z), _ in counts)
    interval = INTERVAL / min(1.0, most) ** 2
    first, *others = [_distribution(q, z, interval).self_compose(times) for (q, z), times in counts]
    whole = reduce(lambda a, b: a.compose(b), others, first)
    return float(whole.get_epsilon_for_delta(delta))


def _renyi(counts: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return an upper bound of epsilon that takes no longer for more releases."""
    dp = from_extra("dp", "dp_accounting", WHERE)
    renyi = from_extra("dp", "dp_accounting.rdp", WHERE).RdpAccountant()
    for (q, z), times in counts:
        renyi.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), times)
    return float(renyi.get_epsilon(delta))


@lru_cache(maxsize=64)
def _distribution(q: float, z: float, interval: float) -> Any:
    return accountant().from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=interval, pessimistic_estimate=True
    )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of a Gaussian mechanism of noise 1 / mu times the sensitivity, exactly, of any size.

    Balle and Wang 2018, arXiv 1805.06530, Theorem 8: delta = Phi(a) - e^epsilon Phi(a - mu), where
    a = mu / 2 - epsilon / mu; that is Phi(a) - phi(a) R(mu - a) with Mills' ratio R, and grows with a. T
    releases of noise s and sensitivity D have mu = sqrt(T) D / s.
    """
    low, high = -40.0, min(mu / 2, 40.0)
    if _delta(high, mu) <= delta:
        return 0.0
    while low < (middle := low + (high - low) / 2) < high:  # until no number lies between
        low, high = (low, middle) if _delta(middle, mu) > delta else (middle, high)
    return mu * (mu / 2 - low)


def _delta(a: float, mu: float) -> float:
    x = mu - a
    if x < 25:
        ratio = math.sqrt(math.pi / 2) * math.exp(x * x / 2) * math.erfc(x / math.sqrt(2))
    else:
        ratio = (1 - (1 / x) ** 2 + 3 * (1 / x) ** 4) / x  # to 1e-7
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    return math.erfc(-a / math.sqrt(2)) / 2 - density * ratio


def accountant() -> Any:
    """Return dp-accounting's module of privacy loss distributions; importing it costs seconds.

    Raises:
        ConfigError: It is not installed.
    """
    return from_extra("dp", "dp_accounting.pld.privacy_loss_distribution", WHERE)


def noise_for(goal: float, delta: float, q: float, rounds: int) -> float:
    """Return the smallest noise multiplier, of three digits, with which the rounds cost at most `goal`."""
    low, high = 0.05, 0.1
    while epsilon([(q, high)] * rounds, delta) > goal:
        low, high = high, 2 * high
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon([(q, middle)] * rounds, delta) > goal else (low, middle)
    unit = 10.0 ** (math.floor(math.log10(high)) - 2)
    return float(f"{math.ceil(high / unit) * unit:.3g}")  # rounded up: less would not be enough


def over_budget(dp: DPConfig, server_round: int, now: Callable[[], float], after: Callable[[], float]) -> str:
    """Return why a run ends after a round; "" if the next one keeps epsilon within ``dp.max-epsilon``.

    `now` returns epsilon so far, `after` what it would be after one more round; neither is called without a
    limit.
    """
    if not dp.max_epsilon or (cost := after()) <= dp.max_epsilon:
        return ""
    return (
        f"the run stops before round {server_round + 1}, with which epsilon would be {cost:.4g}: more than "
        f"dp.max-epsilon = {dp.max_epsilon:g}. It is {now():.4g} at delta = {dp.delta:g} after round "
        f"{server_round}"
    )
