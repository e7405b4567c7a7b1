"""The results of a soak, and the page that reports them."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.faults.federation import Federation

FLAT = 0.05  # growth of memory from the first to the last quarter that still counts as none
NAMES = {"task": "ServerApp", "warm": "warm parent", "superlink": "SuperLink", "supervisor": "supervisor"}


@dataclass
class Memory:
    """Memory of each role over time, in bytes."""

    samples: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))

    def look(self, fed: Federation, now: float) -> None:
        """Take one sample of every process; of nodes the mean."""
        nodes: dict[str, list[int]] = defaultdict(list)
        for name, machine in list(fed.machines.items()):
            for role, size in machine.memory().items():
                if not size:
                    continue
                if name == "link":
                    self.samples[f"link: {NAMES.get(role, role)}"].append((now, size))
                elif role != "task":  # a node's tasks live for a moment
                    nodes[f"node: {NAMES.get(role, role)}"].append(size)
        for role, sizes in nodes.items():
            self.samples[role].append((now, round(statistics.fmean(sizes))))

    def quarters(self, role: str) -> tuple[float, float]:
        """Return the median of the first and of the last quarter of the time, in MB."""
        samples = self.samples[role]
        first, last = samples[0][0], samples[-1][0]
        quarter = (last - first) / 4
        sizes = (
            [s for t, s in samples if t <= first + quarter],
            [s for t, s in samples if t >= last - quarter],
        )
        early, late = (statistics.median(part) / 2**20 for part in sizes)
        return early, late


@dataclass
class Report:
    """What a soak saw.

    Attributes:
        rounds: That were to be done.
        nodes: How many.
        seed: Of the faults.
        every_s: Seconds between faults.
        seconds: That it took.
        faults: How often each was done.
        attempts: How often the run was submitted.
        rows: Of rounds.jsonl.
        odd: Rounds after which the model was another one than undisturbed.
        memory: Over time.
        database: Size of the database in bytes, at the end.
        state: Of the job, and its reason.
    """

    rounds: int
    nodes: int
    seed: int
    every_s: float
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    odd: list[int] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    database: int = 0
    state: str = ""

    @property
    def done(self) -> int:
        """Rounds that were done."""
        return max((row["round"] for row in self.rows), default=0)

    @property
    def good(self) -> bool:
        """Whether all rounds were done, with the models of an undisturbed run."""
        return self.done == self.rounds and not self.odd and self.state == "finished"

    def page(self) -> str:
        """Return the page."""
        lost = Counter(q["client"] for row in self.rows for q in row["quarantined"])
        answered = sum(row["answered"] for row in self.rows)
        asked = sum(row["asked"] for row in self.rows)
        seconds = [row["seconds"]["total"] for row in self.rows if row["round"]] or [0.0]
        equal = "yes, after every round" if not self.odd else f"no: other after rounds {self.odd[:10]}"
        lines = [
            "# Soak",
            "",
            f"`python -m tests.soak --rounds {self.rounds} --nodes {self.nodes} --seconds-between-faults "
            f"{self.every_s:g} --seed {self.seed}`: one run with a fault every {self.every_s:g} s.",
            f"A round waits for all {self.nodes} clients (`min-replies`), so its model can equal that of the "
            "undisturbed run.",
            "",
            "| | |",
            "|---|---|",
            f"| Rounds completed | {self.done} of {self.rounds}, in {self.seconds / 60:.1f} min |",
            f"| A round, median and longest | {statistics.median(seconds):.1f} s, {max(seconds):.1f} s |",
            f"| Faults | {self.faults.total()} |",
            f"| Run submitted | {self.attempts} times, by the link itself |",
            f"| Replies | {answered} of {asked} asked |",
            f"| Replies quarantined | {lost.total()} |",
            f"| Model equal to the undisturbed run's | {equal} |",
            f"| Database at the end | {self.database / 2**20:.1f} MB |",
            f"| The job | {self.state} |",
            "",
            "Each fault hit one machine, drawn with equal chance from the link and the nodes.",
            "",
            "| Fault | Times |",
            "|---|---|",
            *(f"| {name} | {n} |" for name, n in sorted(self.faults.items(), key=lambda x: (-x[1], x[0]))),
            "",
            "Memory (proportional set size; mean over nodes), median of the first and of the last quarter:",
            "",
            "| Role | First | Last | Growth |",
            "|---|---|---|---|",
        ]
        for role in sorted(self.memory.samples):
            first, last = self.memory.quarters(role)
            growth = last / first - 1
            flat = "" if growth <= FLAT else ", **not flat**"
            lines.append(f"| {role} | {first:.0f} MB | {last:.0f} MB | {growth:+.1%}{flat} |")
        if lost:
            lines += ["", "| Quarantined in round | Reason |", "|---|---|"]
            some = [(row["round"], q["reason"]) for row in self.rows for q in row["quarantined"]]
            lines += [f"| {t} | {reason} |" for t, reason in some[:40]]
        return "\n".join(lines) + "\n"
