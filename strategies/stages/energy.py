"""Energy of the simulated devices: power times the seconds of `strategies.selection.devices`.

A client spends in a round, in joules,

watts-compute * update + watts-radio * (download + upload)

with the seconds of its own device. Nothing else is counted: no idling, no tail of a radio, no waiting for a
link that others use. Of ``battery-joules`` a client has as much before round 1 and is never charged. A client
that has spent all of it finishes the round; from the next on it is away, as if its node were offline.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies.engine.rounds import RoundLog
from strategies.engine.rule import TRAIN
from strategies.engine.stage import ServerStage
from strategies.selection.devices import Busy
from task.config.sections import DevicesConfig
from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in
from task.text import logger

NAMES, SPENT, OVER = "energy/names", "energy/joules", "energy/over"  # names in a checkpoint


def joules(config: DevicesConfig, busy: Busy) -> float:
    """Return what a client spends.

    2 W for 3 s of training and 0.5 W for 4 s of transfers:

    >>> joules(DevicesConfig(watts_compute=2.0, watts_radio=0.5), Busy(compute=3.0, radio=4.0))
    8.0
    """
    return config.watts_compute * busy.compute + config.watts_radio * busy.radio


class EnergyStage(ServerStage):
    """Adds up what clients spend, and counts those as away whose battery is empty."""

    name = "energy"
    replayed = False

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.spent: dict[str, float] = {}  # joules by client since round 1
        self.over = False  # whether no client has any charge left
        self._round = 0.0

    @property
    def empty(self) -> frozenset[str]:
        """The clients whose battery is empty."""
        full = self.engine.config.devices.battery_joules
        return frozenset(name for name, spent in self.spent.items() if full and spent >= full)

    def enrolled(self) -> None:
        """Count clients as away whose battery is empty."""
        self.engine.registry.put_away(self.empty)

    def begin(self) -> None:
        """Begin a round in which nobody has spent anything yet."""
        self._round = 0.0

    def timed(self, log: RoundLog, busy: Mapping[str, Busy]) -> None:
        """Add what the round's clients spend, to their lines, too."""
        before, config = self.empty, self.engine.config.devices
        used = {name: joules(config, of) for name, of in busy.items()}
        for name, more in used.items():
            self.spent[name] = self.spent.get(name, 0.0) + more
        for line in log.clients:
            if line["phase"] == TRAIN and line["name"] in used:
                line["joules"] = used[line["name"]]
        self._round = sum(used.values())
        for name in sorted(self.empty - before):
            logger.info(
                "round %d: the battery of %s is empty, after %.6g J; it is away from now on",
                log.round, name, self.spent[name],
            )  # fmt: skip
        if not self.over and self.empty.issuperset(self.engine.registry.names):
            self.engine.journal.remark(f"round {log.round}: all batteries are empty; the run ends")
            self.over = True

    def row(self) -> Mapping[str, Any]:
        """Return the round's joules, and whose battery is empty after it."""
        empty = {"empty_batteries": sorted(self.empty)} if self.engine.config.devices.battery_joules else {}
        return {"joules": self._round, **empty}

    def finished(self) -> bool:
        """Return whether no client has any charge left."""
        return self.over

    def dump(self) -> Arrays:
        """Return what clients have spent."""
        names = sorted(self.spent)
        text = of_text(json.dumps(names))
        return {
            NAMES: text, SPENT: np.array([self.spent[n] for n in names]), OVER: np.array([float(self.over)]),
        }  # fmt: skip

    def load(self, arrays: NamedArrays, done: int) -> None:
        """Take up what `dump` returned."""
        if NAMES in arrays:
            names = json.loads(text_in(arrays[NAMES]))
            self.spent = dict(zip(names, arrays[SPENT].tolist(), strict=True))
            self.over = bool(arrays[OVER][0])
