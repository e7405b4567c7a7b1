"""Differential privacy at the level of clients: secret cohorts, noise on exact sums, a ledger of releases.

McMahan et al. 2018, arXiv 1710.06963, in the form of `docs/howto/privacy.md`. Each client joins a round by a
coin of its own with probability q; its update u_k is clipped to |u_k| <= C; and the rule gets, in place of a
mean,

    (sum_k u_k + N(0, (z C)^2)) / M,    M = q K the expected number of clients, not that of the answers

so that it is post-processing whatever the rule does. C follows a quantile if the run says so (Andrew et al.
2021, arXiv 1905.03871, Algorithm 1).

=========  ======================  ===================================================================
symbol     variable                meaning
=========  ======================  ===================================================================
z          ``dp.noise``            noise multiplier of a round
q          ``sampling``            probability with which a client joins a round, ``fraction-train``
K, M       ``clients, expected``   clients that the run has known, and q K; with those that join they grow
C          ``clip``                bound of the round; public, as it follows from noised numbers
sigma_b    ``M / 20``              standard deviation of the noise on the sum of b_k - 1/2
=========  ======================  ===================================================================

The ledger has a line for each sum that was released, written before the noise is drawn; what is released is
kept until a checkpoint covers its round. A killed run that is resumed uses what was released, whatever its
clients answer now: a second release of the round would reveal whether their sum is still the same. Coins and
noise follow from a secret. If what was released is lost, the same sum gets the same noise, and another sum
independent noise and a line of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from strategies.channels.sum_grid import as_sent
from strategies.engine.channel import Opened
from strategies.engine.fold import Folded
from strategies.engine.journal import FeatureLog, Journal
from strategies.engine.rule import Phase
from strategies.engine.stage import ServerStage
from strategies.engine.state import AggregatedReplies
from task.catalogue.entry import Algorithm
from task.catalogue.stages import UNCLIPPED
from task.config.knobs import Config
from task.errors import ConfigError, SecureAggregationError, StateError
from task.numerics.arrays import Arrays, NamedArrays, flattened, sha256
from task.privacy.accounting import (
    accountant,
    check_delta,
    delta_too_large,
    epsilon,
    joined,
    noise_for,
    over_budget,
)
from task.privacy.bounded_integers import BIT, BITS, CLIP, GRID, WIDTH, bound_of, exponent
from task.privacy.noise import Stream, coins, derived, draw_secret
from task.privacy.shares import releases
from task.resolve.contract import contract_of
from task.secagg.fixed_point import EXACT, MOST
from task.wire.norms import NormBound

if TYPE_CHECKING:
    from strategies.engine.phases import PhaseEngine

BOUND = "dp/clip"  # name in a checkpoint
STEP = 0.2  # eta_C of adaptive clipping
BIT_NOISE = 1 / 20  # sigma_b over M


class ReleaseLog(FeatureLog):
    """The run's secret, its ledger, and the sums that it has released since the last checkpoint."""

    name: ClassVar[str] = "privacy"

    def __init__(self) -> None:
        self._secret, self._lines = b"", list[dict[str, Any]]()

    def secret(self) -> bytes:
        """Return the run's secret of 32 bytes, the same after a resume."""
        self._secret = self._secret or draw_secret()
        return self._secret

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the ledger, in the order of time."""
        return list(self._lines)

    def append(self, line: dict[str, Any]) -> None:
        """Write a release down before it is made; the line lasts when this returns."""
        self._lines.append(line)

    def made(self, server_round: int, question: str) -> Arrays | None:
        """Return what `make` was given of a round since the last checkpoint; None if nothing."""
        return None

    def make(self, server_round: int, question: str, arrays: Arrays) -> None:
        """Store a release, by the question that it answers, until a checkpoint covers its round."""


class Privacy:
    """Differential privacy of one run's clients."""

    def __init__(self, config: Config, entry: Algorithm) -> None:
        self.config, self.dp = config, config.dp
        self.sampling = config.server.fraction_train
        # Each of a round's phases is a release of its own.
        self.releases = releases(entry)
        self.by_nodes = config.dp.distributed
        # The probability that counts. The server draws the cohorts: it knows who takes part.
        self.amplified = 1.0 if self.by_nodes else self.sampling
        self.clip = self.used = config.dp.clip  # that of the next round, and that of this one
        self.clients = 0  # K; 0 = the run has not begun
        self.round = 0
        self.over = False  # whether a further release would exceed dp.max-epsilon
        self._events: dict[int, dict[str, float]] = {}  # by round and release, its z

    @property
    def expected(self) -> float:
        """M, the expected number of clients in a round."""
        return self.sampling * self.clients

    # ------------------------------------------------------------------ the run

    def begin(self, journal: Journal, server_round: int, clients: int) -> None:
        """Begin a round; `clients` are those that the run has known, also those that are away.

        Raises:
            ConfigError: The run could not keep what it promises: not one round fits, or delta is too large,
                or more clients have joined than the sum has room for.
        """
        if not self.clients:
            self.open(journal, server_round - 1)
        if not self.clients:
            self.clients = clients
            self._check()
            self.log.append({"round": 0, "clients": clients, "sampling": self.sampling})
        if clients > self.clients:  # they draw coins too, so that M is of them all; no z depends on it
            self.clients = clients
            self._check_bits()
            known = f"the {clients} clients that the run has known by round {server_round}"
            if why := delta_too_large(self.dp.delta, clients, known):
                journal.remark(f"warning: run-config key {why}")
        self.round = server_round

    def open(self, journal: Journal, done: int) -> None:
        """Read what a run has released whose last round was `done`.

        Raises:
            ConfigError: What accounts for it is not installed.
            StateError: The ledger lacks a round, or a line of it contradicts the run.
        """
        accountant()
        self.journal, self.log, self.round = journal, journal.log(ReleaseLog), done
        self.secret = self.log.secret()
        begin, *lines = self.log.lines() or [{"clients": 0}]
        self.clients = int(begin["clients"])
        self._check_lines(begin, lines)
        for line in lines:
            found = self._events.setdefault(int(line["round"]), {})
            if line["release"]:
                found[line["release"]] = float(line["noise"])
        missing = sorted(set(range(1, done + 1)) - self._events.keys())
        if missing:
            raise StateError(
                f"the ledger of releases: expected lines for rounds 1 to {done}; got none for {missing[:5]}. "
                "Restore the file: without it the epsilon of the run is unknown"
            )

    def _check_lines(self, begin: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a ledger whose lines say otherwise than this run's would: epsilon follows from them."""
        if not self.clients:
            return
        bits = 2 * BIT_NOISE * self.expected
        noises = {joined([self._noise]), *([joined([self._noise, bits])] if self.dp.clip_quantile else [])}
        wrong = begin.get("round") != 0 or begin.get("sampling") != self.sampling
        found = [f"sampling {begin.get('sampling')}, and not {self.sampling:g}"] if wrong else []
        for line in lines:
            number, noise = line.get("round"), line.get("noise")
            if type(number) is not int or number < 1:
                found.append(f"round {number}")
            elif line.get("release") and noise not in noises:
                found.append(f"noise {noise} in round {number}, and not {min(noises):.6g}")
        if found:
            raise StateError(
                f"the ledger of releases: expected lines of this run; got one that says {found[0]}. "
                "Restore the "
                "file: without it the epsilon of the run is unknown"
            )

    def _check(self) -> None:
        dp = self.dp
        check_delta(dp.delta, self.clients, f"the {self.clients} clients")
        if dp.clip_quantile and not dp.noise < 2 * BIT_NOISE * self.expected:
            raise ConfigError(
                f'run-config key "dp.clip-quantile": the bits that it needs take their share of the noise '
                f"multiplier, which must be less than a tenth of the {self.expected:g} clients to be "
                f"expected in a round; got dp.noise = {dp.noise:g}. Set dp.clip-quantile to 0 and choose "
                '"dp.clip", or ask more clients'
            )
        self._check_bits()
        rounds = self.config.server.num_server_rounds
        if dp.max_epsilon and (first := self._epsilon(1)) > dp.max_epsilon:
            enough = noise_for(dp.max_epsilon, dp.delta, self.amplified, rounds)
            raise ConfigError(
                f'run-config key "dp.max-epsilon": the first round would cost epsilon = {first:.3g}; got '
                f"{dp.max_epsilon:g}. For {rounds} rounds set dp.noise to {enough:.3g}"
            )

    def _check_bits(self) -> None:
        """Refuse ``secagg-bits`` that the sum of all clients could wrap."""
        server = self.config.server
        if not server.secagg or (bits := server.secagg_bits) == EXACT:
            return
        # C 2^g is less than 2^(WIDTH + 1) / z, whatever C is.
        units = max(2.0 ** (WIDTH + 1) / self._noise, BIT * (self.dp.clip_quantile > 0))
        if self.by_nodes:  # at most `clients` take part; a Gaussian of `Stream` ends at 8.6
            units += 8.6 * 2.0 ** (WIDTH + 1)
        if not self.clients * units <= MOST[bits]:
            most = int(MOST[bits] / units)
            raise ConfigError(
                f'run-config key "secagg-bits": {bits} bits have room for updates of {most} clients on the '
                f"grid of dp.noise = {self.dp.noise:g}; got {self.clients}. Set secagg-bits to 64"
            )

    def cohort(self, names: Sequence[str]) -> list[str]:
        """Return the clients whose coin says that they join the round."""
        return coins(self.secret, self.round, names, self.sampling)

    def finished(self) -> bool:
        """Return whether the next round would exceed ``dp.max-epsilon``; say so once."""
        costs = self.epsilon, self.next_epsilon
        if not self.over and self.clients and (why := over_budget(self.dp, self.round, *costs)):
            self.over = True
            self.journal.remark(why)
        return self.over

    # ------------------------------------------------------------------ accounts

    def epsilon(self) -> float:
        """Return the epsilon of all releases so far."""
        return self._epsilon(0)

    def next_epsilon(self) -> float:
        """Return the epsilon with the next round, which may have been released before the run was killed."""
        return self._epsilon(0 if self.round + 1 in self._events else 1)

    def _epsilon(self, more: int) -> float:
        q = self.amplified
        spent = [(q, joined(found.values())) for found in self._events.values() if found]
        return epsilon([*spent, *[(q, self.dp.noise)] * more], self.dp.delta)

    def row(self) -> dict[str, Any]:
        """Return what a round's row says: epsilon so far and after one more round, and the round's C."""
        if not self.clients:
            return {"epsilon": 0.0, "epsilon_next": None, "dp_clip": self.dp.clip}
        return {"epsilon": self.epsilon(), "epsilon_next": self.next_epsilon(), "dp_clip": self.used}

    # ------------------------------------------------------------------ a phase

    @property
    def _noise(self) -> float:
        """Noise multiplier of the updates in one phase, given what the bits of adaptive clipping take."""
        z = self.dp.noise
        if self.dp.clip_quantile:
            z = (z**-2 - (2 * BIT_NOISE * self.expected) ** -2) ** -0.5
        return z * math.sqrt(self.releases)

    def scalars(self) -> dict[str, float]:
        """Return what clients must know to clip: C and the grid."""
        self.used = self.clip
        return {CLIP: self.used, GRID: exponent(self._noise * self.used)}

    def release(
        self,
        phase: Phase,
        replies: AggregatedReplies,
        like: Mapping[str, NamedArrays],
        model: NamedArrays,
    ) -> AggregatedReplies | None:
        """Return what the rule sees of the replies: noised sums divided by M, even if no client answered.

        `like` has, by field of the phase's contract, the arrays of a reply, and `model` those of the rule's
        model. None = the release would exceed ``dp.max-epsilon``.
        """
        sums = replies.arrays or {
            r.name: {n: np.zeros(a.shape, np.int64) for n, a in like[r.name].items()}
            for r in phase.contract.up
        }
        std, g, facts, question = self._question(phase)
        noised = self.log.made(self.round, question)
        if noised is None and self.by_nodes:
            if not replies.arrays:  # no sum was opened
                self._events.setdefault(self.round, {})
                self.log.append({"round": self.round, "phase": phase.name, "release": ""})
                return None
            noised = flattened(sums)
            self.log.make(self.round, question, noised)
        elif noised is None:
            summed = sha256(flattened(sums))
            if not self._write(derived(self.secret, "release", *facts, summed).hex(), phase):
                return None
            noise = Stream(derived(self.secret, "noise", *facts, summed))
            noised = self._noised(phase, sums, std * 2.0**g, noise)
            self.log.make(self.round, question, noised)
        found: dict[str, Arrays] = {}
        for r in phase.contract.up:
            unit = 2.0**-BITS if r == UNCLIPPED else 2.0**-g
            divisor = 1.0 if r.reduce == "sum" and r != UNCLIPPED else self.expected
            names = sorted(sums[r.name])
            found[r.name] = {n: noised[f"{r.name}/{n}"] * (unit / divisor) for n in names}
        if (bits := found.pop(UNCLIPPED.name, None)) is not None:
            (mean,) = bits.values()
            within = float(np.clip(mean[0] + 0.5, 0.0, 1.0))
            self.clip = self.used * math.exp(-STEP * (within - self.dp.clip_quantile))
        sent = (r for r in phase.contract.up if r.name in found)
        arrays = {r.name: as_sent(r, found[r.name], phase, model) for r in sent}
        ones = np.ones(len(replies.clients), np.int64)  # what a client sends in addition to its update
        return replace(
            replies,
            arrays=arrays, num_examples=ones, scalars={}, population=self.clients, expected=self.expected,
        )  # fmt: skip

    def _question(self, phase: Phase) -> tuple[float, int, tuple[Any, ...], str]:
        """Return z C, g, what a release depends on but the sums, and the identity of what was asked."""
        std = self._noise * self.used
        facts = (self.round, phase.name, self.used, std, exponent(std))
        return (
            std,
            exponent(std),
            facts,
            derived(self.secret, "question", *facts, sha256(flattened(phase.records))).hex(),
        )

    def released(self, phase: Phase) -> bool:
        """Return whether an answer to a phase was released before the run went on."""
        return self.log.made(self.round, self._question(phase)[-1]) is not None

    def pay(self, phase: Phase, attempt: str) -> None:
        """Write down that the server is about to see a sum of a phase that has the nodes' noise.

        Raises:
            SecureAggregationError: It would exceed ``dp.max-epsilon``.
        """
        if not self._write(derived(self.secret, "attempt", self.round, phase.name, attempt).hex(), phase):
            raise SecureAggregationError(
                f"another release of the round would exceed dp.max-epsilon = {self.dp.max_epsilon:g}"
            )

    def _noised(self, phase: Phase, sums: Mapping[str, NamedArrays], wide: float, noise: Stream) -> Arrays:
        """Return sums of integers plus noise, by record and name; `wide` is its deviation in units."""
        found: Arrays = {}
        for r in phase.contract.up:
            std = BIT_NOISE * self.expected * 2.0**BITS if r == UNCLIPPED else wide
            for n in sorted(sums[r.name]):
                total = sums[r.name][n]
                found[f"{r.name}/{n}"] = total + noise.integers(total.size, std).reshape(total.shape)
        return found

    def _write(self, release: str, phase: Phase) -> bool:
        """Write a release down before it is made, unless it was made before; return whether it may be."""
        known = self._events.setdefault(self.round, {})
        if release in known:
            return True
        bits = [2 * BIT_NOISE * self.expected] if UNCLIPPED in phase.contract.up else []
        known[release] = z = joined([self._noise, *bits])
        if self.dp.max_epsilon and self.epsilon() > self.dp.max_epsilon:
            del known[release]
            self.over = True
            self.journal.remark(
                f"round {self.round} keeps the model: it was released before the run was killed, and another "
                f"release would exceed dp.max-epsilon = {self.dp.max_epsilon:g}"
            )
            return False
        self.log.append({"round": self.round, "phase": phase.name, "release": release, "noise": z})
        return True

    # ------------------------------------------------------------------ checkpoints

    def dump(self) -> Arrays:
        """Return what the next round depends on, for a checkpoint."""
        return {BOUND: np.array(self.clip)} if self.dp.clip_quantile else {}

    def load(self, arrays: NamedArrays) -> None:
        """Take up what `dump` returned."""
        self.clip = float(arrays[BOUND]) if BOUND in arrays else self.dp.clip


class ClientPrivacyStage(ServerStage):
    """Adds noise to the sums of each phase, and keeps the run's privacy accounts."""

    name = "privacy"
    hides = True
    replayed = False  # the noise is in the published sums

    def __init__(self, engine: "PhaseEngine") -> None:
        super().__init__(engine)
        self.accounts = Privacy(engine.config, contract_of(engine.config))

    def begin(self) -> None:
        """Count the clients that the run has known."""
        if self.engine.round:
            self.accounts.begin(self.engine.journal, self.engine.round, len(self.engine.registry.known))

    def draw(self, names: Sequence[str]) -> Sequence[str]:
        """Draw the round's cohort by unpredictable coins."""
        return self.accounts.cohort(names)

    def before_send(self, phase: Phase) -> Phase:
        """Send C and the grid."""
        if not phase.contract.noised:
            return phase
        return replace(phase, scalars={**phase.scalars, **self.accounts.scalars()})

    def bound(self, phase: Phase) -> NormBound | None:
        """Return the bound that clipped records keep."""
        return bound_of(phase.contract, phase.scalars)

    def may_open(self, opened: Opened) -> bool:
        """Pay for a sum that has the nodes' noise; another sum of the round would have to be paid for."""
        if not (self.accounts.by_nodes and opened.phase.contract.noised):
            return True
        if self.accounts.released(opened.phase):
            return False
        self.accounts.pay(opened.phase, opened.attempt)
        return True

    def after_fold(self, opened: Opened, folded: Folded) -> None:
        """Replace the replies by noised sums."""
        engine, phase = self.engine, opened.phase
        if phase.contract.noised:
            came = folded.reduced or engine.nobody()
            folded.reduced = self.accounts.release(phase, came, engine.like(phase.contract), engine.model)

    def finished(self) -> bool:
        """Return whether the next round would exceed ``dp.max-epsilon``."""
        return self.accounts.finished()

    def row(self) -> dict[str, Any]:
        """Return what a round's row says: epsilon so far and after one more round, and the round's C."""
        return self.accounts.row()

    def dump(self) -> Arrays:
        """Return C, for a checkpoint."""
        return self.accounts.dump()

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up C, and read what the run has released."""
        self.accounts.load(arrays)
        self.accounts.open(self.engine.journal, done)
