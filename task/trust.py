"""Trust in references: code that a file or a server names runs only if the user names its package.

A reference, ``package.module:name``, is code that will run. What the user types (``-c``, keys of
`bouquet.run`) is trusted, and imported as it is. Everything else comes from a file or from another machine:
the card of a model file, ``config.json`` of a result folder, a recipe, a sweep's queue, a run's keys at a
node. Of those, a reference is imported only if the user allows its package (``--code PACKAGE``, ``code=`` in
Python) or the node's owner does (``packages`` in ``[policy]``). It then has to lie in such a package: it
never leads through a module to what that module imports.

So `task.references.load_reference` refuses everything until packages are allowed. Only code that gets the
user's input calls `user_named` and `allow`; code that reads a file calls neither.
"""

import functools
import re
import sys
from collections.abc import Collection, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from task.errors import ConfigError

_named: set[str] = set()  # references that the user typed
_allowed: set[str] = set()  # packages that a file or a server may name, and data sets of Hugging Face
_STANDARD = frozenset(sys.stdlib_module_names)

Words = tuple[frozenset[str], frozenset[str]]


def user_named(references: Iterable[str]) -> None:
    """Note references that the user has typed in this process."""
    _named.update(references)


def allow(packages: Iterable[str], option: str = "--code") -> None:
    """Allow references to these packages to be imported, wherever they are named.

    `option` is where they stand, for errors.

    Raises:
        ConfigError: One of them is no package's name, or belongs to Python's standard library.
    """
    for package in packages:
        if not (package.isidentifier() or package.startswith("hf:")):
            raise ConfigError(
                f'{option}: expected the name of a package or module, "net" of "net.parts:Small", or '
                f'"hf:OWNER/NAME"; got "{package}"'
            )
        if package in _STANDARD:
            raise ConfigError(
                f'{option}: expected a package of your own; got "{package}" of Python\'s standard library, '
                "which no file may name: what it needs of it, a function in your own module can call"
            )
        _allowed.add(package)


def words() -> Words:
    """Return what was named and allowed, for another process of this run to `take_over`."""
    return frozenset(_named), frozenset(_allowed)


def take_over(said: Words) -> None:
    """Take over the permissions that the user gave in the process that started this one."""
    _named.update(said[0])
    _allowed.update(said[1])


def follow(reference: str, further: str) -> None:
    """Allow code that a user has named to name more of its own, such as the solver of a rule."""
    if reference in _named:
        _named.add(further)


def packages_for(key: str, reference: str, package: str, place: str = "") -> Collection[str] | None:
    """Return the packages that what a reference names has to lie in; None if the user has typed it.

    Args:
        key: The run-config key that has it.
        reference: Such as ``net.parts:Small``, or ``hf:OWNER/NAME``.
        package: Its package, ``net``.
        place: The file that it stands in, if it is known.

    Raises:
        ConfigError: The user has neither typed it nor allowed its package.
    """
    if reference in _named:
        return None
    where = f'{place and place + ": "}run-config key "{key}"'
    if package not in _allowed:
        todo = (
            "It is of Python's standard library, which no file may name"
            if package in _STANDARD
            else f'If you trust it, add --code {package} (in Python: code="{package}"), or, in a '
            "command that has -c, give the key yourself"
        )
        what = "a data set" if package.startswith("hf:") else "code"
        known = f"expected one of {', '.join(sorted(_allowed))}; got {package}. " if _allowed else ""
        raise ConfigError(
            f'{where}: "{reference}" is {what} that a file names and that is used only if you name it. '
            f"{known[:1].upper()}{known[1:]}{todo}"
        )
    if any(part.startswith("__") for part in re.split("[.:]", reference) if part != package):
        raise ConfigError(f'{where}: expected names without "__" in front; got "{reference}"')
    return frozenset(_allowed)


def check_found(key: str, reference: str, found: Any, packages: Collection[str] | None) -> None:
    """Refuse a module on the way to what a reference names, and what lies in none of the `packages`.

    Raises:
        ConfigError: Saying where it lies.
    """
    where = f'run-config key "{key}": "{reference}"'
    if isinstance(found, ModuleType):
        raise ConfigError(
            f'{where}: expected a path through classes; got one through module "{found.__name__}". Name that '
            f'module in front of the colon: "{found.__name__}:..."'
        )
    if packages is None:
        return
    home = _home(found)
    if home.partition(".")[0] not in packages:
        raise ConfigError(
            f"{where}: expected what is defined in {', '.join(sorted(packages))}; got what module "
            f'"{home}" defines. Allow that package too, or define a class or a function in your own module '
            "that uses it"
        )


def _home(found: Any) -> str:
    """Return the module that defines a class or a function, or the class of any other object."""
    while isinstance(found, functools.partial):
        found = found.func
    own = isinstance(found, type | FunctionType | BuiltinFunctionType | MethodType)
    if not own and not hasattr(type(found), "cache_info"):  # functools.cache wraps a function
        found = type(found)
    return str(getattr(found, "__module__", None) or "builtins")
