"""Simulated device speeds, drawn by client name, and the time that a round would take on them.

Nothing here is measured. Each client gets a rate of computation and a rate of its link, both lognormal,
from (run seed, client name) alone: the same device in every round, after a resume, and however the clients
are spread over nodes. From them come **simulated seconds**, which FedCS and Oort select by and which
``rounds.jsonl`` and ``result.json`` hold as ``simulated_seconds`` for every policy.

=============  ============================================================================================
symbol         meaning
=============  ============================================================================================
download       bytes of the arrays, or codes, that went to the client in the round / link
update         examples gone through, E n_k or local-steps B, / speed; a forward pass alone counts a third
upload         bytes of those that came from it / link
=============  ============================================================================================

A client that has a link of its own (``devices.uplink = "own"``) is done after the sum of the three, and the
round with its slowest client. With ``"shared"`` it is as in FedCS (Nishio and Yonetani 2019, section 3): the
model is multicast at the rate of the slowest, and uploads follow one another in the order in which the
clients are done with their updates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from task.catalogue.entry import Algorithm
from task.catalogue.stages import LOSS_RMS
from task.config.sections import DevicesConfig, TrainConfig
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.wire.layouts import Forms

Floats = npt.NDArray[np.float64]
Moved = tuple[float | Floats, float | Floats]  # bytes down and up, of each client alike or float64 [n]

FORWARD = 1 / 3  # work of a forward pass; forward and backward together are 1
MEGABIT = 125_000  # bytes
_HALF = 1 << 31


@dataclass(frozen=True)
class Times:
    """Seconds of n clients: float64 [n] each."""

    download: Floats
    update: Floats
    upload: Floats

    @property
    def total(self) -> Floats:
        """Seconds of each client that is alone on its link."""
        return self.download + self.update + self.upload


@dataclass(frozen=True)
class Busy:
    """Seconds that a client's device computes, and that its radio is on, in a round."""

    compute: float
    radio: float


def round_seconds(times: Times, shared: bool) -> float:
    """Return how long a round of these clients takes; 0 if there are none."""
    if len(times.update) == 0:
        return 0.0
    if not shared:
        return float(times.total.max())
    ready = times.download.max() + times.update
    done = 0.0
    for i in np.argsort(ready, kind="stable").tolist():
        done = max(done, float(ready[i])) + float(times.upload[i])
    return done


class Devices:
    """The trace."""

    def __init__(self, config: DevicesConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self._all: tuple[Sequence[str], tuple[Floats, Floats]] = ((), self._draw(()))

    def rates(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return examples per second and link in bytes per second of these clients, float64 [n] each.

        Those of the population, which is asked for as one sequence, are kept.
        """
        if names is self._all[0]:
            return self._all[1]
        drawn = self._draw(names)
        if len(names) >= len(self._all[0]):
            self._all = names, drawn
        return drawn

    def _draw(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Two normal numbers by name, after Box and Muller, from the two halves of one seed."""
        bits = np.array([seeds.seed_for(self.seed, seeds.DEVICES, 0, name) for name in names], np.int64)
        radius = np.sqrt(-2.0 * np.log((bits // _HALF + 1) / (_HALF << 1)))
        angle = 2.0 * math.pi * ((bits % _HALF) / _HALF)
        spread = self.config.spread
        speed = self.config.speed * np.exp(spread * radius * np.cos(angle))
        return speed, self.config.bandwidth * MEGABIT * np.exp(spread * radius * np.sin(angle))

    def times(
        self,
        names: Sequence[str],
        examples: Sequence[float] | Floats,
        bytes_down: float | Floats,
        bytes_up: float | Floats,
    ) -> Times:
        """Return the seconds that clients need for these numbers of examples, forward and backward."""
        speed, link = self.rates(names)
        return Times(bytes_down / link, np.asarray(examples, np.float64) / speed, bytes_up / link)


def work_of(entry: Algorithm, train: TrainConfig, num_examples: int, epochs: int = 0) -> float:
    """Return how many examples a client goes through in a round; `epochs` 0 = as configured."""
    more = float(num_examples) * len(_trained(entry))  # a full gradient each
    if LOSS_RMS in entry.up_scalars:
        more += FORWARD * num_examples
    if train.local_steps:
        return more + train.local_steps * min(train.batch_size or num_examples, num_examples)
    return more + (epochs or train.local_epochs) * num_examples


def traffic(
    entry: Algorithm, state: Arrays, trainable: Sequence[str], given: int = 1, part: Arrays | None = None
) -> tuple[int, int]:
    """Return the bytes of arrays that a contract moves per client and round, (down, up), as planned.

    What precedes the training counts too. `given` is how many records a client gets of a downward field that
    differs by client; `part` has the form of what a client gets of the model, if not the whole.
    """
    forms = Forms(state, tuple(trainable), others={"sub-model": part or {}, "shared-table": state})
    size = {r: sum(a.nbytes for a in forms.like(r.layout).values()) for r in (*entry.down, *entry.up)}
    down = sum(size[r] * (given if r.to == "each" else 1) for r in entry.down)
    up = sum(size[r] for r in entry.up)
    for phase in _trained(entry):
        more = traffic(phase, state, trainable, given, part)
        down, up = down + more[0], up + more[1]
    return down, up


def _trained(entry: Algorithm) -> list[Algorithm]:
    """Return the contracts of the phases that belong to a round's training."""
    return [phase for phase in entry.phases.values() if phase.work == "train"]
