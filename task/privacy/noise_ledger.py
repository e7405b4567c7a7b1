"""What a node's share of the noise has paid for: a line for each noised sum that its numbers went into.

Under ``dp.noise-by = "nodes"`` the server's ledger says what a run has cost, and a server may lie. So each
deployed node keeps a ledger of its own, over all runs. A line is on the disk before the masked numbers leave,
since from then on the other nodes can open the sum without this one. Sums that nobody opens are counted, too:
the node cannot know, so that its epsilon is that of the server's ledger or more.

A client takes part in each of the sums, which are Gaussian mechanisms, and T of noise multipliers z_i are
worth one of 1 / mu, mu^2 = sum 1 / z_i^2, so that epsilon needs no package (`task.privacy.accounting`).

A line goes by a name that follows from the node's own secret, as its noise does: whatever words a server
uses, other noise is another line, and the same noise once more, as for an order that came twice, is none.
The file lies in the node's state folder; nodes that share one each add the lines of their own noise.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from task import timing
from task.errors import ConfigError, RefusedError, StateError, local
from task.privacy.accounting import gaussian_epsilon
from task.privacy.ledger import Releases
from task.storage.locks import HeldError, locked
from task.text import logger

FILE = "noise.ledger.jsonl"  # in the state folder
MAX_EPSILON, DELTA = "max-epsilon", "delta"  # keys of the node config


def epsilon(noises: Iterable[float], delta: float) -> float:
    """Return the epsilon of sums with these noise multipliers, of a client that is in all of them."""
    return gaussian_epsilon(math.sqrt(math.fsum(1.0 / (z * z) for z in noises)), delta)


class NoiseLedger:
    """The noised sums that a node has had a part in.

    `most` is the largest epsilon that its owner allows, over all runs, and `delta` that at which it is
    counted; 0 = no limit, and the delta of each run.
    """

    def __init__(self, path: Path, most: float = 0.0, delta: float = 0.0) -> None:
        self.path, self.most, self.delta = path, most, delta
        self._file = Releases(path)

    @classmethod
    def of(cls, folder: Path, node_config: Mapping[str, Any]) -> "NoiseLedger":
        """Return the ledger in a state folder, with the limits of a node config.

        Raises:
            ConfigError: A limit is no number of its range.
        """
        most, delta = (node_config.get(key, 0.0) for key in (MAX_EPSILON, DELTA))
        for key, value, high in ((MAX_EPSILON, most, math.inf), (DELTA, delta, 1.0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < high:
                expected = "0 or more" if high == math.inf else "0 or more, and less than 1"
                raise ConfigError(f'node config: key "{key}": expected a number, {expected}; got {value!r}')
        if most and not delta:
            raise ConfigError(f'node config: key "{MAX_EPSILON}": expected with "{DELTA}"; got it alone')
        return cls(folder / FILE, float(most), float(delta))

    def sums(self) -> dict[str, float]:
        """Return the noise multiplier of each sum, by the sum's identity.

        Raises:
            StateError: A line is damaged.
        """
        try:
            return {str(line["sum"]): float(line["noise"]) for line in self._file.lines()}
        except (ValueError, KeyError, TypeError) as err:
            raise StateError(
                f"{local(self.path)}: expected sum and noise in each line; got {local(err)}. Put the file "
                "back, without which nobody knows what this node has spent"
            ) from None

    def check(self, noise: float) -> None:
        """Refuse a further sum that the owner's limit does not allow.

        Raises:
            RefusedError: Saying what it would cost.
        """
        if self.most:
            self._refuse(self.sums(), noise)

    def charge(self, sum_id: str, noise: float, delta: float, about: Mapping[str, object]) -> None:
        """Write a sum down, unless it was before; it is on the disk when this returns.

        Args:
            sum_id: The noise's name, which nobody but the node chooses.
            noise: Its noise multiplier z.
            delta: That of the run.
            about: What the line says besides, such as the run and the round.

        Raises:
            RefusedError: The owner's limit does not allow it.
            StateError: The ledger is damaged, or cannot be written.
        """
        try:
            with locked(self.path.with_suffix(".lock"), wait_s=timing.LEDGER_LOCK_S, optional=True):
                sums = self.sums()
                if sum_id in sums:
                    return
                if self.most:
                    self._refuse(sums, noise)
                self._file.append({"sum": sum_id, "noise": noise, "delta": delta, **about})
        except (OSError, HeldError) as err:
            raise StateError(f"{local(self.path)}: the ledger cannot be written: {local(err)}") from err
        logger.info("privacy: %s", self.summary({**sums, sum_id: noise}, delta))

    def summary(self, sums: Mapping[str, float] | None = None, delta: float = 0.0) -> str:
        """Return what was spent as one line; "" if nothing was.

        Raises:
            StateError: A line of the ledger is damaged.
        """
        found = self.sums() if sums is None else sums
        if not found:
            return ""
        delta = self.delta or delta or min(float(line["delta"]) for line in self._file.lines())
        limit = f" of {self.most:g}" if self.most else ""
        spent = epsilon(found.values(), delta)
        return f"epsilon = {spent:.4g}{limit} at delta = {delta:g} after {len(found)} noised sums of all runs"

    def _refuse(self, sums: Mapping[str, float], noise: float) -> None:
        cost = epsilon([*sums.values(), noise], self.delta)
        if cost > self.most:
            raise RefusedError(
                f"policy: {MAX_EPSILON} = {self.most:g}; with this sum epsilon would be {cost:.4g} at "
                f"{DELTA} = {self.delta:g}, after {len(sums)} sums that this node has added noise to"
            )
