"""The ledger of DP-SGD steps on a client's examples: a line for each private round.

The file is next to the client's state of the run and only grows: a rollback does not undo what was sent. A
line is on the disk before the steps are taken. A repeated order takes the same steps with the same noise,
since both follow from the order and the node's secret, and costs nothing.
"""

from pathlib import Path

from task.errors import StateError, local
from task.storage.durable_lines import DurableLines

SUFFIX = ".ledger.jsonl"
SECRET = "privacy-secret"  # of the nodes that share a state folder


class StepLedger:
    """The steps of DP-SGD that one client has taken in one run."""

    def __init__(self, path: Path) -> None:
        self._file = DurableLines(path)

    def steps(self) -> dict[str, int]:
        """Return the steps by order.

        Raises:
            StateError: A line is damaged, or contradicts an earlier one of its order.
        """
        found: dict[str, int] = {}
        try:
            for line in self._file.lines():
                steps = int(line["steps"])
                if steps < 1 or found.setdefault(str(line["order"]), steps) != steps:
                    raise ValueError(f"{steps} steps in round {line['round']}")
            return found
        except (ValueError, KeyError, TypeError) as err:
            raise StateError(
                f"{local(self._file.path)}: expected order and steps in each line; got {local(err)}"
            ) from None

    def charge(self, server_round: int, order: str, steps: int) -> None:
        """Add a line for an order that has none; it is on the disk when this returns."""
        self._file.append({"round": server_round, "order": order, "steps": steps})
