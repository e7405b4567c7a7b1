"""A deployed node's ledger of privacy cost over all runs: a line for each noise, before it is used.

A server's ledger has the privacy cost of its run, but a server may lie. So each deployed node has its own
ledger. There are two kinds of lines:

=====================  =====================================================================================
``sum``                noise that the node added to a sum over nodes (``dp.noise-by = "nodes"``). The line is
                       on the disk before the masked numbers leave, since from then on the other nodes can
                       open the sum without this one. Sums that are never opened are counted, too: the node
                       cannot know, so that its epsilon is that of the server's ledger or more
``order``              steps of DP-SGD that one of its clients took for an order (``dp.unit = "example"``);
                       an analysis's question with noise is one step, on all rows
=====================  =====================================================================================

A line goes by a name that follows from the node's own secret, as its noise does: whatever a server sends,
different noise is a new line, and repeated noise, as for an order that came twice, is none. The file lies in
the node's state folder; nodes that share one each add the lines of their own noise.

A client takes part in each of the sums, which are Gaussian mechanisms, and T of noise multipliers z_i are
worth one of 1 / mu, mu^2 = sum 1 / z_i^2, so that epsilon needs no package (`task.privacy.accounting`). Once
there are steps, epsilon is that of an example, if it is more: of the steps of the client that took most, and
of the sums, where an example of the client moves its clipped update by up to twice the bound.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task import timing
from task.errors import ConfigError, RefusedError, StateError, local
from task.privacy.accounting import epsilon as epsilon_of
from task.privacy.accounting import gaussian_epsilon
from task.storage.durable_lines import DurableLines
from task.storage.locks import HeldError, locked
from task.text import logger

FILE = "noise.ledger.jsonl"  # in the state folder
MAX_EPSILON, DELTA = "max-epsilon", "delta"  # keys of the node config


def epsilon(noises: Iterable[float], delta: float) -> float:
    """Return the epsilon of sums with these noise multipliers, of a client that is in all of them."""
    return gaussian_epsilon(math.sqrt(math.fsum(1.0 / (z * z) for z in noises)), delta)


@dataclass(frozen=True)
class TakenSteps:
    """Steps of DP-SGD of one client for one order."""

    client: str
    steps: int
    sampling: float  # q
    noise: float  # z

    def __post_init__(self) -> None:
        if not (self.steps > 0 and 0 < self.sampling <= 1 and 0 < self.noise < math.inf):
            raise ValueError("steps with noise and a sampling probability")


@dataclass(frozen=True)
class Spent:
    """What the lines of a ledger say."""

    sums: Mapping[str, float]  # noise multipliers, by name
    orders: Mapping[str, TakenSteps]  # by name
    delta: float = 0.0  # the least of those of the runs; 0 = there are no lines

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of all of it; raises ConfigError if steps cannot be counted here."""
        client = epsilon(self.sums.values(), delta)
        by_client: dict[str, Counter[tuple[float, float]]] = {}
        for taken in self.orders.values():
            by_client.setdefault(taken.client, Counter())[taken.sampling, taken.noise] += taken.steps
        sums = Counter((1.0, z / 2) for z in self.sums.values())
        return max(client, *(epsilon_of(sums + steps, delta) for steps in by_client.values()), 0.0)

    def __str__(self) -> str:
        parts = [f"{len(self.sums)} noised sums"] if self.sums else []
        parts += [f"{len(self.orders)} private trainings and answers"] if self.orders else []
        return f"{' and '.join(parts) or 'nothing'} of all runs"


class NoiseLedger:
    """The ledger of a node.

    `most` is the largest epsilon that its owner allows, over all runs, and `delta` that at which it is
    counted; 0 = no limit, and the delta of each run.
    """

    def __init__(self, path: Path, most: float = 0.0, delta: float = 0.0) -> None:
        self.path, self.most, self.delta = path, most, delta
        self._file = DurableLines(path)

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

    def spent(self) -> Spent:
        """Return what the lines say.

        Raises:
            StateError: A line is damaged, cannot be true, or contradicts an earlier one of its name.
        """
        sums: dict[str, float] = {}
        orders: dict[str, TakenSteps] = {}
        deltas = []
        for number, line in enumerate(self._file.lines(), start=1):
            try:
                deltas.append(float(line["delta"]))
                if "order" in line:
                    q, z = float(line["sampling"]), float(line["noise"])
                    taken = TakenSteps(str(line["client"]), int(line["steps"]), q, z)
                    same = orders.setdefault(str(line["order"]), taken) == taken
                else:
                    z = float(line["noise"])
                    same = 0 < z < math.inf and sums.setdefault(str(line["sum"]), z) == z
                if not same:
                    raise ValueError("noise that cannot be, or other noise than an earlier line of its name")
            except (ValueError, KeyError, TypeError) as err:
                raise StateError(
                    f"{local(self.path)}, line {number}: expected sum and noise, or an order and its "
                    f"steps; got {local(err)}. Restore the file: without it, it is unknown what this node "
                    "has spent"
                ) from None
        return Spent(sums, orders, min(deltas, default=0.0))

    def check(self, noise: float) -> None:
        """Refuse a further sum that the owner's limit does not allow.

        Raises:
            RefusedError: Saying what it would cost.
        """
        if self.most:
            spent = self.spent()
            self._refuse(spent, Spent({**spent.sums, "": noise}, spent.orders))

    def charge(self, sum_id: str, noise: float, delta: float, about: Mapping[str, object]) -> None:
        """Write the noise of a sum down, unless it was before; it is on the disk when this returns.

        Args:
            sum_id: The noise's name, which only the node chooses.
            noise: Its noise multiplier z.
            delta: That of the run.
            about: What the line says besides, such as the run and the round.

        Raises:
            RefusedError: The owner's limit does not allow it.
            StateError: The ledger is damaged, says otherwise, or cannot be written.
        """
        line = {"sum": sum_id, "noise": noise, "delta": delta, **about}
        spent = self._charge(line, Spent({sum_id: noise}, {}, delta))
        logger.info("privacy: %s", self._summary(spent))

    def charge_steps(self, order: str, taken: TakenSteps, delta: float, about: Mapping[str, object]) -> None:
        """Write a client's steps down; arguments and errors are as of `charge`.

        Raises:
            ConfigError: There is a limit, and no package to count steps by.
        """
        spent = self._charge(
            {"order": order, **asdict(taken), "delta": delta, **about}, Spent({}, {order: taken}, delta)
        )
        if self.most:
            logger.info("privacy: %s", self._summary(spent))

    def _charge(self, line: Mapping[str, object], more: Spent) -> Spent:
        """Add a line to the file; return what is spent with it."""
        try:
            with locked(self.path.with_suffix(".lock"), wait_s=timing.LEDGER_LOCK_S, optional=True):
                spent = self.spent()
                delta = min(spent.delta or more.delta, more.delta)
                made = Spent({**spent.sums, **more.sums}, {**spent.orders, **more.orders}, delta)
                if len(made.sums) + len(made.orders) == len(spent.sums) + len(spent.orders):
                    if (made.sums, made.orders) != (spent.sums, spent.orders):
                        raise StateError(
                            f"{local(self.path)}: expected the line that this order wrote when it was "
                            "first drawn; got other figures. Restore the file"
                        )
                    return spent
                if self.most:
                    self._refuse(spent, made)
                self._file.append(line)
        except (OSError, HeldError) as err:
            raise StateError(f"{local(self.path)}: the ledger cannot be written: {local(err)}") from err
        return made

    def summary(self) -> str:
        """Return the privacy cost as one line; "" if there is none.

        Raises:
            StateError: A line of the ledger is damaged.
        """
        spent = self.spent()
        return self._summary(spent) if spent.sums or spent.orders else ""

    def _summary(self, spent: Spent) -> str:
        delta = self.delta or spent.delta
        limit = f" of {self.most:g}" if self.most else ""
        try:
            cost = f"{spent.epsilon(delta):.4g}"
        except ConfigError:  # without the package that counts steps
            cost = "?"
        return f"epsilon = {cost}{limit} at delta = {delta:g} after {spent}"

    def _refuse(self, spent: Spent, made: Spent) -> None:
        cost = made.epsilon(self.delta)
        if cost > self.most:
            raise RefusedError(
                f"policy: {MAX_EPSILON} = {self.most:g}; with this epsilon would be {cost:.4g} at "
                f"{DELTA} = {self.delta:g}, after {spent}"
            )
