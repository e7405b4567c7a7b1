"""The folder of a run: runs are never renamed, and overwritten only if the user says so."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from server_app.results.folder import CONFIG, RunFolder, neighbours, one_folder
from server_app.run.run_lock import LOCK, holding, is_held
from task.config.knobs import Config
from task.errors import ConfigError

NAME = 'run-config key "run-name"'


def folder_of_run(
    config: Config, runs: Path | None = None, busy: Callable[[str], bool] = lambda name: False
) -> Path:
    """Return the folder of a run that starts or is resumed, below the folder `runs`, by default its runs-dir.

    A run without a name is named by its algorithm, data set, changed keys and seed; the next ones are NAME-2,
    NAME-3, ... With ``resume`` it is the last of them. `busy` says whether a run that has not begun will take
    a name.

    Raises:
        ConfigError: The name is not that of one folder, there is nothing to resume, or another run has it.
    """
    name = config.run_name
    path = (runs or Path(config.output.runs_dir).expanduser()) / one_folder(NAME, name)
    numbered = {1: path} | _numbered(path)
    if config.output.resume:
        there = [n for n in numbered if (numbered[n] / CONFIG).exists()]
        if config.output.run_name or not there:
            check_there(path)
            return path
        return numbered[max(there)]
    if config.output.run_name:
        check_free(path)
        return path
    if not (RunFolder(path).begun() or is_held(path) or busy(name)):
        return path
    number = max(numbered)
    while number in numbered or busy(f"{name}-{number}"):
        number += 1
    return path.with_name(f"{name}-{number}")


def numbered(config: Config, name: str) -> str:
    """Return the line that says why a run is called `name`, "" if that is what its keys call it."""
    if config.output.resume or name == config.run_name:
        return ""
    return f"{config.run_name} is the name of an earlier run; this one is called {name}"


def _numbered(path: Path) -> dict[int, Path]:
    """Return by number the folders NAME-2, NAME-3, ... that are there."""
    pattern = re.compile(re.escape(path.name) + r"-([2-9]|[1-9]\d+)")
    try:
        found = [(pattern.fullmatch(p.name), p) for p in path.parent.iterdir()]
    except OSError:
        return {}
    return {int(match[1]): p for match, p in found if match}


def check_there(path: Path) -> None:
    """Refuse to resume a run in a folder that has none.

    Raises:
        ConfigError: Naming runs that are there.
    """
    if (path / CONFIG).exists():
        return
    raise ConfigError(
        f"--resume (resume=true): expected a run to continue in {path}; got none. "
        f"{neighbours(path)} A new run starts without --resume."
    )


def check_free(path: Path) -> None:
    """Refuse to start a run in the folder of another.

    Raises:
        ConfigError: It holds one that has begun, saying what to do.
    """
    folder = RunFolder(path)
    if folder.begun():
        kind = "a finished" if folder.finished() else "an unfinished"
        kind = "a stopped" if (folder.result() or {}).get("stopped") else kind
        raise ConfigError(
            f'run-config key "run-name": expected a name that no run has; got "{path.name}", and {path} '
            f"holds {kind} run. Continue it with --resume (resume=true), choose another --run-name, or "
            "delete the folder (--overwrite does)"
        )


def drop_unbegun(path: Path) -> None:
    """Delete the folder of a stopped run that has nothing to lose, and so nothing to resume."""
    if (path / CONFIG).exists() and not RunFolder(path).begun():
        shutil.rmtree(path)


def remove_run(runs: Path, name: str) -> None:
    """Delete the result folder of a run below the folder `runs`, if it is there.

    Raises:
        BouquetError: A run writes into it.
        ConfigError: It is no result folder, or cannot be deleted.
    """
    path = runs / one_folder(NAME, name)
    if not path.exists():
        return
    if not (path / CONFIG).exists() and any(p.name != LOCK for p in path.iterdir()):
        raise ConfigError(
            f"--overwrite: expected the result folder of a run; got {path}, which has no {CONFIG}"
        )
    with holding(path, 0.0):
        try:
            shutil.rmtree(path)
        except OSError as err:
            raise ConfigError(f"--overwrite: cannot delete {path}: {err}") from None
