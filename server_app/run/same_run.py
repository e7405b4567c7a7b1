"""Check that a run is resumed with the keys and the code that it was started with."""

from collections.abc import Mapping
from typing import Any

from server_app.results.folder import RunFolder
from task.config.knobs import CHANGE_NO_RESULT, Config
from task.config.run_name import LENGTHEN
from task.encryption.ckks import KEY_FILE
from task.errors import ConfigError
from task.objects import argument_of, is_object
from task.portable import KERNELS

# Keys that may differ when a run is resumed, but see `free_on_resume`.
FREE_ON_RESUME = CHANGE_NO_RESULT | LENGTHEN


def free_on_resume(config: Config) -> frozenset[str]:
    """Return the keys that may differ when a run is resumed; without `Config.horizon` the rounds may."""
    return FREE_ON_RESUME - ({"num-server-rounds"} if config.horizon else set())


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
    """Refuse to resume a run under other keys than it was started with.

    Raises:
        ConfigError: Naming the first key that differs, with both values.
    """
    before = folder.config()["run"]
    for key, value in keys.items():
        if key not in free and key in before and before[key] != value:
            if is_object(str(before[key])):
                raise ConfigError(
                    f'--resume: run-config key "{key}": {folder.path} was started with a Python object, '
                    f'"{before[key]}", which its config does not hold; got {value!r}. Resume it from Python '
                    f"with the same object: bouquet.run(resume=True, {argument_of(key)}=...)"
                )
            why = ", as its rounds depend on their number" if key in FREE_ON_RESUME else ""
            raise ConfigError(
                f'--resume: run-config key "{key}": expected {before[key]!r}, with which {folder.path} '
                f"was started{why}; got {value!r}. Give the same keys, or another --run-name for a new run."
            )
