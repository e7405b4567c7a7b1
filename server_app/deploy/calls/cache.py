"""Answers that are cached briefly, and sums that are written once a second."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from task import timing

logger = logging.getLogger("flwr")

MOST_ANSWERS = 10_000
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CachedQuery(Generic[K, V]):
    """A query whose answers are cached briefly.

    Args:
        ask: The question; an answer of None is not remembered.
        for_s: Seconds for which an answer holds.
    """

    def __init__(self, ask: Callable[[K], V | None], for_s: float) -> None:
        self._ask, self._for_s = ask, for_s
        self._answers: dict[K, tuple[V, float]] = {}
        self._asking = threading.Lock()

    def __call__(self, key: K) -> V | None:
        """Return the answer."""
        if (known := self._known(key)) is not None:
            return known
        with self._asking:  # one caller queries, the others wait for it
            if (known := self._known(key)) is not None:
                return known
            answers, asked_at = self._answers, time.monotonic()
            answer = self._ask(key)
            if answer is None:
                answers.pop(key, None)
            else:
                if len(answers) >= MOST_ANSWERS:
                    answers.clear()
                answers[key] = answer, asked_at + self._for_s  # `forget` may have replaced it by now
            return answer

    def _known(self, key: K) -> V | None:
        found = self._answers.get(key)
        return found[0] if found is not None and found[1] > time.monotonic() else None

    def forget(self) -> None:
        """Forget all cached answers."""
        self._answers = {}


class Tally:
    """Sums numbers of runs, by name, and writes them once a second; a kill loses the last second.

    Args:
        write: Adds a run's numbers to those in the database.
    """

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._sums: dict[int, dict[str, float]] = {}
        self._lock = threading.Lock()
        self._written_at = time.monotonic()

    def add(self, run_id: int, **numbers: float) -> None:
        """Count."""
        with self._lock:
            sums = self._sums.setdefault(run_id, {})
            sums |= {name: sums.get(name, 0) + number for name, number in numbers.items()}
            due = time.monotonic() - self._written_at > timing.TRAFFIC_S
        if due:
            self.write()

    def write(self) -> None:
        """Write the sums."""
        with self._lock:
            sums, self._sums = self._sums, {}
            self._written_at = time.monotonic()
        for run_id, numbers in sums.items():
            try:
                self._write(run_id, **numbers)
            except Exception as err:  # such as a run that was deleted, or a locked database
                logger.warning("%s of run %d are not counted: %s", " and ".join(numbers), run_id, err)
