"""Write the results of a stopped run: the model so far, result.json and the report."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from server_app.results.folder import RunFolder
from server_app.results.lines import Row
from server_app.results.report import write_report
from server_app.results.summary import summarise
from server_app.run.checkpoint import Checkpoint
from server_app.run.encryption import in_clear
from server_app.run.frozen import RECORD, in_folder, write_adapters
from task.config.read import read_checked


def finish_stopped(
    path: Path, why: str, writing: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(True)
) -> Row | None:
    """Write model, result and report of a run that ended early; it can still be resumed.

    They are of its last checkpoint. The caller holds the folder's lock, or knows that no process writes
    there; all is written within `writing`, which says whether it still may be.

    Returns:
        The result, with `why` as "stopped"; None for a run without a checkpoint, or one that has a result.

    Raises:
        StateError: The checkpoint or a journal file is damaged.
    """
    folder = RunFolder(path)
    found = None if folder.finished() else Checkpoint(path / "checkpoint").read()
    if found is None:
        return None
    snapshot, extra = found
    last = snapshot.round
    rounds = [row for row in folder.rounds(unfinished=True) if row["round"] <= last]
    clients = (row for row in folder.clients(unfinished=True) if row["round"] <= last)
    result = summarise(rounds, clients, folder.config()["run"]) | {"stopped": why}
    model = in_clear(read_checked(folder.config()["run"]), snapshot.model)
    frozen = in_folder(folder)
    with writing() as may:
        if not may:
            return None
        if frozen:
            result[RECORD] = folder.config()[RECORD]
            write_adapters(path, model, frozen)
            model = {**model, **frozen}
        folder.finish(result, model, extra.get("card"))
        write_report(path)
    return result
