"""Writes the pages that are made from the catalogue: the README's table, and docs/composition.md.

``make docs`` runs it; tests hold both to it.
"""

from __future__ import annotations

from pathlib import Path

from server_app.cli.catalogue import rows
from task.resolve.composition import CHOICES
from task.spec.algorithms import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- algorithms: begin (make docs) -->", "<!-- algorithms: end -->"
HEAD = ["algorithm", "`algorithm=`", "paper", "down", "up", "reduced by", "client keeps"]


def table(head: list[str], lines: list[list[str]]) -> str:
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*text, *("| " + " | ".join(line) + " |" for line in lines)])


def with_table(text: str) -> str:
    """Return the README's text with the table between its two marks replaced."""
    one, own = ([[r[0], f"`{r[1]}`", *r[2:]] for r in rows(personal)] for personal in (False, True))
    made = (
        f"One global model:\n\n{table([*HEAD, 'FedAvg at'], one)}\n\n"
        "The clients' own models, and what they are compared with:\n\n"
        f"{table([*HEAD, 'never leaves the client', 'a new client begins with'], own)}"
    )
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{made}\n{END}{tail}"


def composition() -> str:
    """Return what goes together: one row per algorithm, one column per choice, the reasons below."""
    reasons: dict[str, str] = {}
    lines = []
    for entry in ALGORITHMS.values():
        cells = []
        for choice in CHOICES:
            why = choice.why_not(entry)
            cells.append(reasons.setdefault(why, "abcdefgh"[len(reasons)]) if why else "yes")
        lines.append([f"`{entry.name}`", *cells])
    notes = [f"- **{mark}**: {why}" for why, mark in reasons.items()]
    return "\n".join(
        [
            "# What goes together",
            "",
            "Algorithms with stages and selection policies. A letter says why not, and such a run is refused",
            "before round 1. Made by `make docs` from the catalogue; a test runs every cell that says yes.",
            "",
            table(["algorithm", *(f"`{choice}`" for choice in CHOICES)], lines),
            "",
            *notes,
            "",
        ]
    )


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text()))
    (ROOT / "docs/composition.md").write_text(composition())
