"""Resume a run with the keys and the code that it was started with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.folder import CONFIG, ROUNDS, RunFolder, one_folder
from server_app.results.lines import last_rows
from server_app.run.naming import NAME, check_there
from task.config.knobs import CHANGE_NO_RESULT, Config
from task.config.read import as_run_config, defaults, flatten
from task.config.run_name import LENGTHEN
from task.config.sections import Value
from task.encryption.ckks import KEY_FILE
from task.errors import ConfigError
from task.objects import argument_of, is_object
from task.portable import KERNELS
from task.references import check_origin
from task.resolve.effective import unmet

# Keys that may differ when a run is resumed, but see `free_on_resume`.
FREE_ON_RESUME = CHANGE_NO_RESULT | LENGTHEN
LENGTH = "num-server-rounds"
# Keys that each attempt at a run sets afresh.
OF_AN_ATTEMPT = ("run-name", "runs-dir", "resume", "min-nodes")


def keys_to_resume(given: Mapping[str, Any], runs: Path | None = None) -> dict[str, Value]:
    """Return the keys that a run was started with, if the keys `given` resume one by its name; else none.

    The run lies below `runs`, by default below the runs-dir that is given. Keys at their default are left
    out.

    Raises:
        ConfigError: There is no such run, a key of it does not exist in this version, or it names code that
            the user has neither typed nor allowed.
    """
    own = flatten(given)
    if own.get("resume") is not True or not own.get("run-name"):
        return {}
    runs = runs or Path(str(own.get("runs-dir") or defaults()["runs-dir"])).expanduser()
    path = runs / one_folder(NAME, str(own["run-name"]))
    check_there(path)
    before, known = RunFolder(path).config()["run"], defaults()
    if gone := sorted(before.keys() - known.keys()):
        raise ConfigError(
            f"--resume: {path / CONFIG}: expected run-config keys of this version; got {', '.join(gone)}"
        )
    keys = {key: value for key, value in before.items() if key not in OF_AN_ATTEMPT}
    check_origin({**keys, **own}, path / CONFIG)
    return {key: value for key, value in keys.items() if value != known[key]}


def check_resumed(config: Config, path: Path) -> None:
    """Refuse to resume the run in the folder `path` under other keys than it was started with.

    Raises:
        ConfigError: Naming the first key that differs, with both values.
    """
    check_same_run(RunFolder(path), as_run_config(config), free_on_resume(config))


def free_on_resume(config: Config) -> frozenset[str]:
    """Return the keys that may differ when a run is resumed; without `Config.horizon` the rounds may."""
    return FREE_ON_RESUME - ({LENGTH} if config.horizon else set())


def check_same_code(folder: RunFolder, code: Mapping[str, str]) -> None:
    """Refuse to resume a run with other code of its user's than it was started with.

    `code` has the hashes by package.

    Raises:
        ConfigError: Naming the first package that differs.
    """
    before = folder.config().get("code", {})
    for package, digest in code.items():
        if (was := before.get(package, "")) != digest:
            if package == KEY_FILE:
                raise ConfigError(
                    f"--resume: {folder.path}: its checkpoint is under the key {was[:12]}...; got "
                    f"{digest[:12]}.... Restore the former key, or start a new run."
                )
            if package == KERNELS:
                raise ConfigError(
                    f"--resume: {folder.path} was started with kernels {was[:22]}...; this machine's are "
                    f"{digest[:22]}.... Resume it with the same torch and NumPy, or start a new run."
                )
            raise ConfigError(
                f'--resume: module "{package}": expected the code with which {folder.path} was started, '
                f"SHA-256 {was[:12] or 'none'}...; got {digest[:12]}.... Restore it, or start a new run."
            )


def check_same_run(folder: RunFolder, keys: Mapping[str, Any], free: frozenset[str] = FREE_ON_RESUME) -> None:
    """Refuse to resume a run under other keys than it was started with, or for fewer rounds than it has.

    A key that the run does not read may differ: an earlier version had another default.

    Raises:
        ConfigError: Naming the first key that is wrong, with both values.
    """
    before = folder.config()["run"]
    whole = {**defaults(), **before}
    for key, value in keys.items():
        differs = key not in free and key in before and before[key] != value
        if differs and not unmet(key, whole):
            if is_object(str(before[key])):
                raise ConfigError(
                    f'--resume: run-config key "{key}": {folder.path} was started with a Python object, '
                    f'"{before[key]}", which its config does not hold; got {value!r}. Resume it from Python '
                    f"with the same object: bouquet.run(resume=True, {argument_of(key)}=...)"
                )
            why = ", as its rounds depend on their number" if key in FREE_ON_RESUME else ""
            raise ConfigError(
                f'--resume: run-config key "{key}": expected {before[key]!r}, with which {folder.path} '
                f"was started{why}; got {value!r}. Leave the key out, or start a new run under another name."
            )
    done = next((row["round"] for row in last_rows(folder.path / ROUNDS)), 0)
    if keys[LENGTH] < done:
        raise ConfigError(
            f'--resume: run-config key "{LENGTH}": expected at least {done}, as {folder.path} has {done} '
            f"rounds already; got {keys[LENGTH]}. Give more to lengthen the run, or leave the key out."
        )
