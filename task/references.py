"""Things that users bring: ``package.module:name`` in place of one of our names.

The module is looked for among the installed packages and then in the working directory, so a file ``net.py``
in the folder in which ``bouquet run`` is started is ``net:name``. Nothing is fetched.
"""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from task.errors import ConfigError, choose_from

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

_NOT_THEIRS = ("importlib", f"{os.sep}site-packages{os.sep}", str(Path(__file__).parent))  # of a traceback
OURS = ("client_app", "server_app", "strategies", "task")


def is_reference(text: str) -> bool:
    """Return whether a value names a thing of the user's own, ``package.module:name``."""
    return ":" in text


def package_of(reference: str) -> str:
    """Return the top-level package or module of a reference: ``net`` of ``net.parts:Small``."""
    return reference.partition(":")[0].partition(".")[0]


def check_reference(key: str, reference: str) -> None:
    """Refuse what is no reference of a user's own; nothing is imported.

    Raises:
        ConfigError: It is not of the form, or names a package of Bouquet's.
    """
    where = f'run-config key "{key}"'
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f'{where}: expected one of our names or "package.module:name"; got "{reference}"')
    if package_of(reference) in OURS:
        raise ConfigError(
            f'{where}: expected a module of your own; got "{reference}", and "{package_of(reference)}" is a '
            "package of Bouquet's. Give your file another name"
        )


def load_reference(key: str, reference: str) -> Any:
    """Import the module of a reference and return the object that it names.

    Args:
        key: The run-config key that has the reference, for errors.
        reference: Such as ``net:Small`` or ``my_package.models:make``.

    Raises:
        ConfigError: It is not of this form, the module is not found or fails, or it lacks the name.
    """
    check_reference(key, reference)
    where = f'run-config key "{key}"'
    module, _, name = reference.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # at the end: no file here takes the place of an installed package
        importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{module}.".startswith(f"{err.name}."):
            raise ConfigError(f'{where}: module "{module}" cannot be imported: {place(err)}') from err
        raise ConfigError(
            f'{where}: expected module "{err.name}" among the installed packages or in {here}; found none'
        ) from None
    except Exception as err:  # whatever the user's code raises
        raise ConfigError(f'{where}: module "{module}" cannot be imported: {place(err)}') from err
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(found) if not n.startswith("_")]
            origin = getattr(found, "__file__", None) or module
            raise ConfigError(choose_from(f"{where}: a name in {origin}", part, public))
        found = getattr(found, part)
    return found


def place(err: Exception) -> str:
    """Return what an error of the user's code says, and where it arose."""
    frames = [f for f in traceback.extract_tb(err.__traceback__) if f.filename != __file__]
    theirs = [f for f in frames if not any(part in f.filename for part in _NOT_THEIRS)]
    where = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
    if isinstance(err, SyntaxError):
        where = f" ({Path(err.filename or '').name}, line {err.lineno})"
    return f"{type(err).__name__}: {err}{where}"
