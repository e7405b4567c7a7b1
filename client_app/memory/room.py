"""Limit the number of runs with files on a node, since the server chooses the runs' names."""

from pathlib import Path

from task.errors import RefusedError
from task.storage.client_state import folder_of

MOST_RUNS = 1000  # with files in a node's state folder


def check_room(root: Path, run_name: str, run: str) -> None:
    """Refuse a run that is new on this node if too many have left files already.

    `root` is the folder of the node's state, which has a folder or a file for each run below another one.

    Raises:
        RefusedError: With the number of runs, and how their files are deleted.
    """
    if folder_of(root, run_name, run).exists():
        return
    runs = {path.name[:12] for path in root.glob("*/*")}  # letters of a run's id that name its folder
    if len(runs) >= MOST_RUNS and run[:12] not in runs:
        raise RefusedError(
            f"policy: expected fewer than {MOST_RUNS} runs with files on this node; got {len(runs)}. Its "
            "owner lists them with bouquet state and deletes those that ended with bouquet state --delete"
        )
