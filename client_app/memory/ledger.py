"""What a client's training examples have been used for: a line for each round that is private to them.

The file lies with what the client keeps of the run and only grows: a run that goes back does not take back
what was sent. A line is on the disk before the steps are taken. A repeated order takes the same steps with
the same noise, since both follow from the order and the node's secret, and costs nothing.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path

from task.errors import StateError, local
from task.privacy import noise
from task.storage.files import make_folder, private, sync_folder

SUFFIX = ".ledger.jsonl"
SECRET = "privacy-secret"


def secret_of(root: Path) -> bytes:
    """Return the secret of the nodes that share a state folder, made by the first of them.

    Raises:
        StateError: It is damaged.
    """
    path = root / SECRET
    if not path.exists():
        make_folder(root)
        with tempfile.NamedTemporaryFile(dir=root) as temp:  # of mode 0600
            temp.write(noise.draw_secret())
            temp.flush()
            os.fsync(temp.fileno())
            # Of nodes that start at once the first link stays, whole, and all of them read that one.
            with contextlib.suppress(FileExistsError):
                os.link(temp.name, path)
        sync_folder(root)
    found = path.read_bytes()
    if len(found) != noise.SECRET_BYTES:
        raise StateError(f"{local(path)}: expected {noise.SECRET_BYTES} bytes; got {len(found)}")
    return found


class StepLedger:
    """The steps of DP-SGD that one client has taken in one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def steps(self) -> dict[str, int]:
        """Return the steps by order.

        Raises:
            StateError: A line is damaged.
        """
        if not self.path.exists():
            return {}
        whole, _, rest = self.path.read_bytes().rpartition(b"\n")
        if rest:  # of steps that were not taken
            with self.path.open("r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)
                os.fsync(file.fileno())
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            return {str(line["order"]): int(line["steps"]) for line in lines}
        except (ValueError, KeyError, TypeError) as err:
            raise StateError(
                f"{local(self.path)}: expected a JSON object with order and steps in each line; "
                f"got {local(err)}"
            ) from None

    def charge(self, server_round: int, order: str, steps: int) -> None:
        """Add a line, unless the order has one; it is on the disk when this returns."""
        if order in self.steps():
            return
        make_folder(self.path.parent)
        new = not self.path.exists()
        with open(self.path, "ab", opener=private) as file:
            file.write((json.dumps({"round": server_round, "order": order, "steps": steps}) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.path.parent)
