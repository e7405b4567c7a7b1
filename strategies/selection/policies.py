"""Selection policies: one class per policy of ``task/catalogue/selections.py``, usable with any rule.

Every policy draws from the sorted names of the clients that are online, with the round's own generator, so
the cohort depends on the seed, the round, the clients' names and data and what the policy remembers; never on
node ids, the order of replies or the clock. What is remembered is kept by name and goes into the checkpoint.
A cohort has m = max(floor(C K), 1) clients.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from strategies.membership.client_registry import ClientRegistry
from strategies.selection.devices import Times
from task.catalogue.selections import cohort_size
from task.catalogue.stages import LOSS_RMS
from task.config.knobs import Config
from task.errors import ConfigError
from task.numerics import seeds
from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in
from task.resolve.cohorts import candidates_of
from task.wire import messages as wire

Floats = npt.NDArray[np.float64]


def inclusion(weights: Floats, m: int) -> Floats:
    """Return the probabilities min(1, c w_k) that sum to m, float64 [K]; m <= K, weights > 0."""
    sure = np.zeros(len(weights), bool)
    while True:
        rest = m - int(sure.sum())
        total = math.fsum(weights[~sure].tolist())
        pi = np.where(sure, 1.0, rest * weights / total if total else 0.0)
        more = ~sure & (pi > 1 - 1e-9)
        if not more.any():
            return pi
        sure |= more


def draw_by_size(weights: Floats, m: int, rng: np.random.Generator) -> list[int]:
    """Draw m of K different numbers, number k with probability `inclusion`; ascending."""
    if len(weights) == 0:
        return []
    pi = inclusion(weights, m)
    sure = np.flatnonzero(pi == 1.0).tolist()
    others = rng.permutation(np.flatnonzero(pi < 1.0))
    edges = np.cumsum(pi[others])
    points = rng.random() + np.arange(m - len(sure))
    hit = np.searchsorted(edges, points, side="right").clip(max=len(others) - 1)
    return sorted([*sure, *others[hit].tolist()])


def draw_weighted(weights: Floats, size: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw `size` different positions one after another, each time in proportion to the weights left."""
    least = float(weights.max()) * 1e-12 or 1.0  # so that enough are possible
    p = np.maximum(weights, least)
    drawn: npt.NDArray[np.int64] = rng.choice(len(p), size, replace=False, p=p / p.sum())
    return drawn


ClientScalars = Mapping[str, Mapping[str, float]]
MEMORY = "selection"  # prefix of the memory's arrays in a checkpoint


@dataclass(frozen=True)
class Pool:
    """The clients of a round as a policy sees them."""

    registry: ClientRegistry  # who is online
    config: Config
    round: int  # server round t, from 1
    times: Callable[[Sequence[str]], Times]  # the simulated seconds of clients by name

    @property
    def names(self) -> Sequence[str]:
        """Names of all clients that are online, sorted."""
        return self.registry.names

    @property
    def size(self) -> int:
        """m, how many are to train."""
        return cohort_size(self.config.server.fraction_train, len(self.names))

    def counts(self) -> Floats:
        """n_k of all clients, float64 [K]."""
        counts = self.registry.num_examples(self.names)
        return np.array([counts[name] for name in self.names], np.float64)

    def rng(self) -> np.random.Generator:
        """The round's generator of the draw, fresh."""
        return seeds.rng_for(self.config.seeds.train, seeds.SELECTION, self.round)

    def pick(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> list[str]:
        """Return the names of clients by their number, sorted."""
        return [self.names[i] for i in sorted(int(i) for i in numbers)]


SELECTORS: "dict[str, type[Selector]]" = {}


class Selector:
    """A policy; the base remembers `fields` numbers by client, and `series` numbers of its own."""

    fields: ClassVar[tuple[str, ...]] = ()  # what is remembered of a client, one number each
    series: ClassVar[tuple[str, ...]] = ()  # what else is remembered, a list of numbers each

    def __init_subclass__(cls, name: str) -> None:
        SELECTORS[name] = cls

    def __init__(self, config: Config) -> None:
        self.config = config
        self.known: dict[str, tuple[float, ...]] = {}
        self.lists: dict[str, list[float]] = {name: [] for name in self.series}

    def candidates(self, pool: Pool) -> list[str]:
        """Return who is asked for the loss of the received model before the draw; sorted, perhaps empty."""
        return []

    def select(self, pool: Pool, candidates: Sequence[str], losses: Mapping[str, float]) -> list[str]:
        """Return the cohort, sorted.

        `losses` are those of the candidates that answered.
        """
        raise NotImplementedError

    def groups(self, pool: Pool, cohort: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Return the cohort in the groups that train one after the other: all at once."""
        return (cohort,)

    def observe(self, pool: Pool, scalars: ClientScalars) -> None:
        """Take in the scalars of the training replies, by client, at the end of a round."""

    def dump(self) -> Arrays:
        """Return the memory as arrays: the same bytes for the same memory."""
        if not self.known and not any(self.lists.values()):
            return {}
        names = sorted(self.known)
        columns = np.array([self.known[n] for n in names], np.float64).reshape(len(names), len(self.fields))
        text = of_text(json.dumps(names))
        arrays: Arrays = {f"{MEMORY}/names": text}
        arrays |= {f"{MEMORY}/{f}": columns[:, i].copy() for i, f in enumerate(self.fields)}
        arrays |= {f"{MEMORY}/{f}": np.array(self.lists[f], np.float64) for f in self.series}
        return arrays

    def load(self, arrays: NamedArrays) -> None:
        """Take up the memory that `dump` returned."""
        self.known, self.lists = {}, {name: [] for name in self.series}
        if f"{MEMORY}/names" not in arrays:
            return
        names = json.loads(text_in(arrays[f"{MEMORY}/names"]))
        columns = [arrays[f"{MEMORY}/{f}"].tolist() for f in self.fields]
        rows = zip(*columns, strict=True) if columns else ((),) * len(names)
        self.known = dict(zip(names, rows, strict=True))
        self.lists = {f: arrays[f"{MEMORY}/{f}"].tolist() for f in self.series}


class Uniform(Selector, name="uniform"):
    """McMahan et al. 2017, Algorithm 1: a random set of m clients."""

    def select(self, pool: Pool, candidates: Sequence[str], losses: Mapping[str, float]) -> list[str]:
        """Draw m clients without replacement."""
        return pool.registry.draw(self.config.server.fraction_train, pool.rng())


class Cycle(Uniform, name="cycle"):
    """Cyclic weight transfer, Chang et al. 2018: each client trains the model of the client before it.

    A round is a cycle: it visits each client of the cohort once, in the order of names, or with
    ``select.order = "shuffled"`` in one that is drawn for each cycle. A single pass is one round.
    """

    def groups(self, pool: Pool, cohort: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Return each client alone."""
        if self.config.select.order == "shuffled":
            rng = seeds.rng_for(self.config.seeds.train, seeds.CYCLE, pool.round)
            return tuple((cohort[i],) for i in rng.permutation(len(cohort)).tolist())
        return tuple((client,) for client in cohort)


class Proportional(Selector, name="proportional"):
    """Client k with probability m p_k, p_k = n_k / n, without replacement; means take equal weights.

    The theory of FedProx (Li et al. 2020, Algorithm 2, line 2) and q-FFL draws devices with probability
    p_k and averages 1/m. Their code draws one after another without replacement, which favours small
    clients: the inclusion probability is then no longer m p_k. Here a systematic draw over the clients in
    random order (Madow 1949; Hartley and Rao 1962) includes each with just m p_k, so that the expectation
    of the plain mean over the cohort is sum_k p_k w_k. Who has m p_k > 1 always takes part, and the others
    share the rest.
    """

    def select(self, pool: Pool, candidates: Sequence[str], losses: Mapping[str, float]) -> list[str]:
        """Draw m clients."""
        return pool.pick(draw_by_size(pool.counts(), pool.size, pool.rng()))


class PowerOfChoice(Selector, name="power-of-choice"):
    """Power-of-Choice, Cho, Wang, Joshi 2020 (arXiv 2010.01243), section 4: pow-d and rpow-d.

    1. Draw d candidates in proportion to n_k, without replacement (as `Proportional` does).
    2. pow-d, ``select.losses = "query"``: send them w^t; each answers F_k(w^t) over all its training
       examples and nothing else. rpow-d, ``"last"``: take the training loss of the last round in which
       each took part, infinity for those that never did; nothing is sent.
    3. The m with the largest loss train; the server averages them with equal weights.

    Ties are broken by lot. d = m is `Proportional`. Who does not answer the query is not drawn.
    """

    fields = ("loss",)

    def candidates(self, pool: Pool) -> list[str]:
        """Return d clients to be asked."""
        return self._drawn(pool) if self.config.select.losses == "query" else []

    def _drawn(self, pool: Pool) -> list[str]:
        d = candidates_of(self.config, len(pool.names))
        return pool.pick(draw_by_size(pool.counts(), d, pool.rng()))

    def select(self, pool: Pool, candidates: Sequence[str], losses: Mapping[str, float]) -> list[str]:
        """Return the m candidates with the largest loss."""
        if self.config.select.losses == "last":
            losses = {name: self.known.get(name, (math.inf,))[0] for name in self._drawn(pool)}
        names = sorted(losses)
        lots = seeds.rng_for(self.config.seeds.train, seeds.TIES, pool.round).permutation(len(names)).tolist()
        order = sorted(range(len(names)), key=lambda i: (-losses[names[i]], lots[i]))
        return sorted(names[i] for i in order[: pool.size])

    def observe(self, pool: Pool, scalars: ClientScalars) -> None:
        """Remember the last training losses, if they are used."""
        if self.config.select.losses == "last":
            self.known |= {c: (row[wire.TRAIN_LOSS],) for c, row in scalars.items() if wire.TRAIN_LOSS in row}


class Oort(Selector, name="oort"):
    """Oort, Lai et al., OSDI 2021 (arXiv 2010.06081), Algorithm 1.

    util(k) = (U'_k + sqrt(0.1 ln R / L_k)) x (T / t_k)^alpha if T < t_k else 1,  U_k = n_k sqrt(mean l^2)

    ==========  ===============================  ======================================================
    symbol      where                            meaning
    ==========  ===============================  ======================================================
    U_k         memory ``utility``               statistical utility when k last took part
    U'_k        `_scores`                        U_k cut at the percentile ``select.clip``, scaled to 0..1
    L_k         memory ``last``                  the round of that; a client not seen for long gains
    t_k         ``Pool.times``                   simulated seconds of k alone
    T           memory ``pace``                  preferred duration, a percentile of all t_k
    alpha       ``select.penalty``               how hard slowness counts
    epsilon     ``select.exploration``           share of the cohort that never took part; falls by
                                                 ``select.exploration-decay`` each round
    c           ``select.cut-off``               who has at least c times the utility of the last of the
                                                 top (1 - epsilon) m can be drawn, in proportion to it
    W, Delta    ``select.pacer-window``,         every W rounds, if the cohorts' utility fell against the
                ``select.pacer-step``            W rounds before, T rises by Delta
    ==========  ===============================  ======================================================

    Clients that never took part are explored with probability proportional to their speed, 1 / t_k.

    Completions of the paper, as in the authors' code: U is scaled to 0..1, without which the staleness term,
    below 1, means nothing next to n_k times a loss; T and Delta are quantiles instead of seconds. Of our own:
    epsilon m is rounded up or down by lot, so that small cohorts explore as well.
    Deviations: l is of the received model, measured with one forward pass over the training examples (upward
    scalar ``loss-rms``), where the authors' clients average l^2 over the training; the pacer compares the
    cohorts' mean instead of summed utility, so that a missing reply does not count as a fall. No blacklist of
    clients that took part often.
    """

    fields = ("utility", "last")
    series = ("pace", "history")

    def select(self, pool: Pool, candidates: Sequence[str], losses: Mapping[str, float]) -> list[str]:
        """Draw (1 - epsilon) m explored clients by utility, and the others by speed."""
        if not pool.names:
            return []
        knobs, rng, m = self.config.select, pool.rng(), pool.size
        seconds = pool.times(pool.names).total
        explored = np.array([name in self.known for name in pool.names])
        old, new = np.flatnonzero(explored), np.flatnonzero(~explored)
        share = max(knobs.exploration * knobs.exploration_decay ** (pool.round - 1), knobs.exploration_min)
        exploit = min(m - math.floor(share * m + rng.random()), len(old))
        exploit = max(exploit, m - len(new))
        chosen: list[int] = []
        if exploit:
            scores = self._scores(pool, old, seconds)
            bar = knobs.cut_off * np.sort(scores)[-exploit]
            top = np.flatnonzero(scores >= bar)
            chosen += old[top[draw_weighted(scores[top], exploit, rng)]].tolist()
        if m > exploit:
            chosen += new[draw_weighted(1.0 / seconds[new], m - exploit, rng)].tolist()
        return pool.pick(chosen)

    def _scores(self, pool: Pool, old: npt.NDArray[np.int64], seconds: Floats) -> Floats:
        """Return util(k) of the explored clients, float64 [E]."""
        rows = np.array([self.known[pool.names[i]] for i in old.tolist()])
        utility, last = rows[:, 0], rows[:, 1]
        clipped = np.minimum(utility, np.quantile(utility, self.config.select.clip))
        span = clipped.max() - clipped.min()
        scaled = (clipped - clipped.min()) / span if span > 0 else np.ones_like(clipped)
        scores: Floats = scaled + np.sqrt(0.1 * math.log(pool.round) / last)
        pace = self.lists["pace"][0] if self.lists["pace"] else self.config.select.pace
        preferred = np.quantile(seconds, pace)
        late = seconds[old] > preferred
        scores[late] *= (preferred / seconds[old][late]) ** self.config.select.penalty
        return scores

    def observe(self, pool: Pool, scalars: ClientScalars) -> None:
        """Remember utilities, and let the pacer compare."""
        found = {c: row[wire.NUM_EXAMPLES] * row[LOSS_RMS.name] for c, row in sorted(scalars.items())}
        self.known |= {c: (utility, float(pool.round)) for c, utility in found.items()}
        knobs, history = self.config.select, self.lists["history"]
        pace = self.lists["pace"][0] if self.lists["pace"] else knobs.pace
        if found:
            history.append(math.fsum(found.values()) / len(found))
        window = knobs.pacer_window
        del history[: -2 * window]
        full = pool.round % window == 0 and len(history) == 2 * window
        if full and math.fsum(history[:window]) > math.fsum(history[window:]):
            pace = min(pace + knobs.pacer_step, 1.0)
        self.lists["pace"] = [pace]


class FedCS(Selector, name="fedcs"):
    """FedCS, Nishio and Yonetani, ICC 2019 (arXiv 1804.08333), Algorithm 3, on the trace's seconds.

    Of m clients that are drawn uniformly, those are added, one by one, that make the round least longer,
    and kept if it still ends before ``select.deadline`` seconds. With a shared uplink the round of S ends at

        max_S download + Theta,   Theta <- Theta + upload_k + max(0, update_k - Theta),

    with links of their own at the slowest client's own seconds: then all stay who are done in time. So m, by
    fraction-train, is how many compete, and m or fewer train; none if none is fast enough. The paper's time
    for selection and aggregation is 0, as in its experiments; its clients tell their rates, here they are the
    trace's.
    """

    def select(self, pool: Pool, candidates: Sequence[str], losses: Mapping[str, float]) -> list[str]:
        """Return who can be done by the deadline.

        Raises:
            ConfigError: No client that is online could ever be.
        """
        drawn = pool.registry.draw(self.config.server.fraction_train, pool.rng())
        deadline = self.config.select.deadline
        shared = self.config.devices.uplink == "shared"
        chosen = [drawn[i] for i in fill_until(pool.times(drawn), deadline, shared)]
        if drawn and not chosen and (fastest := float(pool.times(pool.names).total.min())) > deadline:
            raise ConfigError(
                f'run-config key "select.deadline": expected at least {fastest:.4g} simulated '
                "seconds, the time of "
                f"the fastest of {len(pool.names)} clients; got {deadline:g}"
            )
        return sorted(chosen)


def fill_until(times: Times, deadline: float, shared: bool) -> list[int]:
    """Return the positions of the clients that FedCS takes, in the order in which it adds them."""
    if not shared:
        return [i for i in np.argsort(times.total, kind="stable").tolist() if times.total[i] <= deadline]
    left, chosen = list(range(len(times.update))), []
    theta = slowest = 0.0
    while left:
        longer = {
            i: max(slowest, float(times.download[i])) - slowest
            + float(times.upload[i]) + max(0.0, float(times.update[i]) - theta)
            for i in left
        }  # fmt: skip
        x = min(left, key=lambda i: longer[i])
        left.remove(x)
        after = theta + float(times.upload[x]) + max(0.0, float(times.update[x]) - theta)
        download = max(slowest, float(times.download[x]))
        if download + after <= deadline:
            theta, slowest = after, download
            chosen.append(x)
    return chosen
