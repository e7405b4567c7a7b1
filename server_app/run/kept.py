"""What the clients of a finished run keep on this machine: said, or deleted."""

import shutil

from task.config.knobs import Config
from task.config.paths import state_root
from task.errors import StateError
from task.storage.client_state import folder_of


def settle(config: Config, run: str) -> str:
    """Return the line about what clients kept in the run of this id, which is deleted unless it is to stay.

    It is "" where they kept nothing, or on machines of their own.

    Raises:
        StateError: It cannot be deleted.
    """
    folder = folder_of(state_root(config), config.run_name, run)
    if not folder.is_dir():
        return ""
    try:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as err:
        raise StateError(f"{folder}: the kept state cannot be read: {err}") from None
    if config.output.keep_state:
        return (
            f"Kept state: {size / 2**20:,.1f} MiB in {folder}; delete it with "
            f"`bouquet state {config.run_name}/{folder.name} --delete --yes`"
        )
    try:
        shutil.rmtree(folder)
    except OSError as err:
        raise StateError(f"--no-keep-state: {folder} cannot be deleted: {err}") from None
    return f"Kept state: {size / 2**20:,.1f} MiB deleted (--no-keep-state); a resume would begin without it"
