"""The state that clients on this machine keep between rounds, by run, for `bouquet state`."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from rich.table import Table

from task.config.paths import state_root
from task.errors import ConfigError, StateError
from task.resolve.read import read_config
from task.storage.client_state import NO_RUN, REPLICA, SUFFIX, Header, read_header, safe_name
from task.units import human_bytes


@dataclass(frozen=True)
class KeptRun:
    """The kept state of one run."""

    folder: Path
    algorithms: tuple[str, ...]
    clients: int
    refused: int  # files that are damaged or from a newer Bouquet
    newest: int
    size: int  # bytes of all its files, earlier versions included
    copies: int = 0  # of the global model, one for each node

    @property
    def name(self) -> str:
        """Name of the run."""
        return unquote(self.folder.parent.name)

    @property
    def id(self) -> str:
        """First characters of the run's id; "-" if the run had none."""
        return "-" if self.folder.name == NO_RUN else unquote(self.folder.name)


def kept_runs(state_dir: str, run: str = "") -> list[KeptRun]:
    """Return the runs with kept state, sorted by name and id: those of `run`, a name or ``name/id``, or all.

    Raises:
        ConfigError: There is no such run.
        StateError: The folder cannot be read.
    """
    root = state_root(read_config({"state-dir": state_dir}))
    try:
        found = [r for f in sorted(root.glob("*/*/")) if (r := _kept_run(f)) is not None]
    except OSError as err:
        raise StateError(f"state: {root} cannot be read: {err}") from err
    name, _, run_id = run.partition("/")
    chosen = [r for r in found if r.folder.parent.name == safe_name(name) and run_id in ("", r.id)]
    if run and not chosen:
        known = ", ".join(f"{r.name}/{r.id}" for r in found) or "which has none"
        raise ConfigError(f"state: expected a run with kept state in {root}, {known}; got {run!r}")
    return chosen if run else found


def _kept_run(folder: Path) -> KeptRun | None:
    """Return the kept state in a folder, or None if it has none."""
    headers: list[Header] = []
    refused = size = 0
    copies = len([*folder.glob(f"{REPLICA}/*{SUFFIX}")])
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a save in progress has renamed it
            size += path.stat().st_size if path.is_file() else 0
            if path.parent != folder:
                continue
            if path.suffix == SUFFIX and "@" not in path.name and not path.name.startswith("."):
                try:
                    headers.append(read_header(path))
                except (ValueError, StateError):
                    refused += 1
            elif ".damaged" in path.suffixes:
                refused += 1
    if not headers and not refused and not copies:
        return None
    algorithms = tuple(sorted({h.algorithm for h in headers}))
    newest = max((h.round for h in headers), default=0)
    return KeptRun(folder, algorithms, len(headers), refused, newest, size, copies)


def delete(run: str, runs: Sequence[KeptRun], yes: bool) -> KeptRun:
    """Delete the kept state of the chosen run.

    Raises:
        ConfigError: Not exactly one run was chosen, or `yes` is missing.
        StateError: It cannot be deleted.
    """
    if not run or len(runs) != 1:
        known = ", ".join(f"{r.name}/{r.id}" for r in runs) or "none"
        raise ConfigError(f"state --delete: expected one run, by name or name/id, of {known}; got {run!r}")
    (chosen,) = runs
    if not yes:
        raise ConfigError(
            "state --delete: nothing was deleted. Add --yes to delete the state of "
            f"{chosen.clients} clients of {chosen.name}/{chosen.id}; if that run is resumed, they start over."
        )
    try:
        shutil.rmtree(chosen.folder)
    except OSError as err:
        raise StateError(f"state --delete: {chosen.folder} cannot be deleted: {err}") from err
    with suppress(OSError):  # other runs of that name
        chosen.folder.parent.rmdir()
    return chosen


def table(runs: Sequence[KeptRun]) -> Table:
    """Return two lines for each run: its name, as `bouquet state` takes it, and its kept state."""
    made = Table(show_header=False, box=None, padding=(0, 0, 1, 0))
    made.add_column(overflow="fold")
    for r in runs:
        facts = [*r.algorithms, f"{r.clients:,} clients"] if r.clients or r.refused else []
        facts += [f"{r.refused:,} refused"] if r.refused else []
        facts += [f"newest round {r.newest:,}"] if r.clients or r.refused else []
        facts += [f"{r.copies:,} copies of the global model"] if r.copies else []
        made.add_row(f"{r.name}/{r.id}\n    {', '.join(facts)}, {human_bytes(r.size)}")
    return made
