"""When a run reads a key: conditions that stand beside the key, or with its section.

A section is read if and only if its owner is active. The catalogue says which keys an algorithm or a
selection policy owns (`Algorithm.reads`, `Selection.reads`); what switches on any other section, and what
holds of single keys within a section, is said where the key is declared.
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
    values: tuple[Value, ...] = ()  # those that satisfy the condition; none = any but 0, false and ""
    but: bool = False  # whether all other values satisfy it instead
    other: "When | None" = None  # a second condition that is enough by itself
    why: str = ""  # what is true of the values, where they do not say it themselves

    def holds(self, run: Mapping[str, Value]) -> bool:
        """Return whether a run, given by all its keys, satisfies the condition."""
        found = (run[self.key] in self.values) is not self.but if self.values else bool(run[self.key])
        if self.key == "algorithm" and not self.but:
            found = found or is_reference(str(run[self.key]))  # a rule of a user's own may read any
        return found or (self.other is not None and self.other.holds(run))

    def __str__(self) -> str:
        how = "other than" if self.but else "=" if len(self.values) == 1 else "one of"
        words = f"{self.key} {how} {', '.join(as_toml(v) for v in self.values)}"
        words = f"{words}{self.why and ', '}{self.why}" if self.values else f'"{self.key}" set'
        return f"{words}, or {self.other}" if self.other else words


Conditions = When | tuple[When, ...]  # all of which must hold


def as_toml(value: Value) -> str:
    """Return a value as a user types it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def algorithms(holds: Callable[[Algorithm], object], other: When | None = None) -> When:
    """Return the condition that the algorithm is one whose entry `holds`."""
    return When("algorithm", _those(holds), other=other)


def but_algorithms(*hold: Callable[[Algorithm], object], other: When | None = None, why: str = "") -> When:
    """Return the condition that the algorithm is none of those whose entries satisfy one of `hold`."""
    names = [name for holds in hold for name in _those(holds)]
    return When("algorithm", tuple(names), but=True, other=other, why=why)


def _those(holds: Callable[[Algorithm], object]) -> tuple[str, ...]:
    return tuple(sorted(name for name, entry in ALGORITHMS.items() if holds(entry)))


# Parties of one model all take part in every step, and have no use for what is about some clients.
AVERAGED = but_algorithms(lambda entry: entry.vertical)
WAITING = but_algorithms(lambda entry: entry.asynchronous)
STEPS = but_algorithms(lambda entry: entry.sends_gradient)
CHOSEN_STEPS = but_algorithms(
    lambda entry: entry.sends_gradient, lambda entry: entry.vertical, lambda entry: entry.counts_steps
)
HEAD = algorithms(lambda entry: entry.private == "head")
