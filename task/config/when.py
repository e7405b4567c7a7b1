"""Conditions under which a run reads a key; they are declared with the key or its section.

A section is read if and only if its owner is active. The catalogue says which keys an algorithm or a
selection policy owns (`Algorithm.reads`, `Selection.reads`). For all other sections and keys the condition is
part of the declaration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.references import is_reference

Value = bool | int | float | str


@dataclass(frozen=True)
class When:
    """A condition on one key of a run."""

    key: str
    values: tuple[Value, ...] = ()  # values that satisfy the condition; none = any except 0, false and ""
    but: bool = False  # whether all other values satisfy it instead
    other: "When | None" = None  # an alternative condition
    why: str = ""  # the reason, where the values don't explain it
    brought: bool = False  # whether code of the user's own, "module:name", satisfies it, too

    def holds(self, run: Mapping[str, Value]) -> bool:
        """Return whether a run, given by its keys, satisfies the condition."""
        found = (run[self.key] in self.values) is not self.but if self.values else bool(run[self.key])
        if self.brought or (self.key == "algorithm" and not self.but):
            found = found or is_reference(str(run[self.key]))  # a user's own rule may read any key
        return found or (self.other is not None and self.other.holds(run))

    def __str__(self) -> str:
        how = "other than" if self.but else "=" if len(self.values) == 1 else "one of"
        words = f"{self.key} {how} {', '.join(as_toml(v) for v in self.values)}"
        words = f"{words}{', or code of your own' if self.brought else ''}{self.why and ', '}{self.why}"
        words = words if self.values else f'"{self.key}" set'
        return f"{words}, or {self.other}" if self.other else words


Conditions = When | tuple[When, ...]  # all must hold


def as_toml(value: Value) -> str:
    """Return a value as a user types it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def algorithms(holds: Callable[[Algorithm], object], other: When | None = None) -> When:
    """Return the condition that the algorithm's entry satisfies `holds`."""
    return When("algorithm", _those(holds), other=other)


def but_algorithms(*hold: Callable[[Algorithm], object], other: When | None = None, why: str = "") -> When:
    """Return the condition that the algorithm's entry satisfies none of `hold`."""
    names = [name for holds in hold for name in _those(holds)]
    return When("algorithm", tuple(names), but=True, other=other, why=why)


def _those(holds: Callable[[Algorithm], object]) -> tuple[str, ...]:
    return tuple(sorted(name for name, entry in ALGORITHMS.items() if holds(entry)))


# Vertical: all parties take part in every step, so keys about some of the clients have no meaning.
# So do all sites in every question of a statistic.
AVERAGED = but_algorithms(lambda entry: entry.vertical or entry.statistics)
TRAINS = but_algorithms(lambda entry: not entry.learns)
# An analysis gives a table of all rows; some have rows set aside and measured, if at all, at the clients.
MEASURED = but_algorithms(lambda entry: entry.statistics)
TESTED = but_algorithms(lambda entry: entry.statistics and not entry.tested)
SET_ASIDE = but_algorithms(
    lambda entry: entry.statistics and entry.tested == "asked",
    other=When("fraction-evaluate", (-1.0, 0.0), but=True),
)
# Statistics, and algorithms that learn from missing values, read the cells of a table as they are.
FILLED = but_algorithms(lambda entry: entry.statistics or entry.missing_values)
WAITING = but_algorithms(lambda entry: entry.asynchronous)
STEPS = but_algorithms(lambda entry: entry.sends_gradient)
CHOSEN_STEPS = but_algorithms(
    lambda entry: entry.sends_gradient, lambda entry: entry.vertical, lambda entry: entry.counts_steps
)
HEAD = algorithms(lambda entry: entry.private == "head")
