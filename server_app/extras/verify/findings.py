"""Findings of a transcript's check."""

from dataclasses import dataclass, field

MOST = 50  # contradictions that are listed


@dataclass(frozen=True)
class Fault:
    """One contradiction."""

    round: int | None  # None = it is of the whole run
    node: str  # name, or begin of the key; "" = it is of no node
    text: str  # what was expected and what is there

    def __str__(self) -> str:
        where = "the run" if self.round is None else f"round {self.round}"
        return f"{where}{f', node {self.node}' if self.node else ''}: {self.text}"


@dataclass
class Findings:
    """What was checked, contradictions, and notes."""

    counts: dict[str, int] = field(default_factory=dict)  # by what was checked
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def checked(self, what: str, number: int = 1) -> None:
        """Count something that was checked."""
        self.counts[what] = self.counts.get(what, 0) + number

    def fault(self, server_round: int | None, text: str, node: str = "") -> None:
        """Add a contradiction."""
        self.faults.append(Fault(server_round, node, text))

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)
