"""The lines of a transcript: each names the one before it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.extras.verify.findings import Findings
from server_app.results.lines import parse, split
from server_app.run.logs.transcript import FOLDER, FORMAT, LINES, digest, keys_digest
from task.config.run_name import terms
from task.errors import DataError

Row = dict[str, Any]


@dataclass(frozen=True)
class Chain:
    """The lines of one run, by round."""

    folder: Path
    lines: list[Row]
    head: str  # SHA-256 of the last line

    @property
    def about(self) -> Row:
        """What the newest line that says so has of the run: its id, and its keys under ``run``."""
        found: Row = next(line["about"] for line in reversed(self.lines) if "about" in line)
        return found

    @property
    def run(self) -> str:
        """Identity of the run."""
        return str(self.about["id"])

    @property
    def terms(self) -> str:
        """SHA-256 of the keys that nodes have signed, too."""
        return terms(self.about["run"])

    def redone(self, server_round: int) -> bool:
        """Return whether a round may have been begun before, as the run was resumed before it was over.

        When a run is killed, one round has no line yet, and the next one trains.
        """
        starts = ((int(line["round"]), len(line["dropped"])) for line in self.lines if "dropped" in line)
        return any(first <= server_round <= first + more + 1 for first, more in starts)


def read_chain(run: Path, findings: Findings) -> Chain:
    """Read the transcript of a result folder and check that its lines are one chain.

    Raises:
        DataError: There is none, or it cannot be read.
    """
    path = run / FOLDER / LINES
    if not path.exists():
        raise DataError(
            f'{path}: expected the transcript of a run with transcript = "sums" or "full"; got none'
        )
    whole, rest = split(path.read_bytes())
    if rest:
        findings.note(f"{LINES} ends in {len(rest)} bytes of an incomplete line: the run was killed there")
    lines: list[Row] = []
    previous = ""
    for number, line in enumerate(whole):
        try:
            row = parse(line, strict=True)
            if not number:
                previous = keys_digest(row["about"]["run"])
                if row["format"] != FORMAT:
                    other = "an earlier" if row["format"] < FORMAT else "a later"
                    raise DataError(
                        f"{path}: expected format {FORMAT}; got {row['format']}, of {other} Bouquet: verify "
                        "the run with that"
                    )
            if row["round"] != number:
                findings.fault(number, f"expected the line of round {number}; got that of {row['round']}")
            if row["previous"] != previous:
                findings.fault(number, f"expected a line after {previous[:12]}; got {row['previous'][:12]}")
        except (ValueError, KeyError, TypeError) as err:
            raise DataError(f"{path}, line {number + 1}: expected a round's line; got {err!r}") from None
        lines.append(row)
        previous = digest(line)
    if not lines:
        raise DataError(f"{path}: expected the line of round 0; got none")
    for row in lines:
        first = lines[0]["about"]
        mine = row.get("about") or first
        if (mine["id"], terms(mine["run"])) != (first["id"], terms(first["run"])):
            findings.fault(row["round"], "the run was resumed with other keys than it was started with")
    findings.checked("lines, each with the SHA-256 of the one before it", len(lines))
    return Chain(run / FOLDER, lines, previous)
