"""Lets Bouquet's packages live next to a user's own ``task.py`` or ``client_app.py``.

The app's packages, ``task`` and its like, are top-level names, as Flower's components are, and a script's own
folder comes first on Python's path. A user's file of such a name would therefore hide ours. `claim` makes
Python import ours, and ours then offers what only the user's module has: ``from task import Net`` still
works. If both define a name, ours is used; submodules of a user's package are found after ours.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("task", "strategies", "client_app", "server_app")


def claim(*names: str) -> None:
    """Import our packages by their top-level names, even if a user's module has the same name.

    Raises:
        ImportError: A package of ours is not installed.
    """
    for name in names or PACKAGES:
        there = sys.modules.get(name)
        if there is not None and _ours(getattr(there, "__file__", None)):
            continue
        spec = PathFinder.find_spec(name, [str(ROOT)])
        if spec is None or spec.loader is None:
            raise ImportError(f"expected Bouquet's package {name!r} in {ROOT}; it is not there")
        theirs = there if there is not None else _shadowing(name)
        ours = importlib.util.module_from_spec(spec)
        sys.modules[name] = ours
        spec.loader.exec_module(ours)
        if theirs is not None:
            _hand_out(ours, theirs)


def _ours(file: str | None) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(ROOT)


def _shadowing(name: str) -> ModuleSpec | None:
    """Return the user's module that Python would import instead of ours."""
    places = []
    for entry in sys.path:
        if Path(entry or ".").resolve() == ROOT:
            break
        places.append(entry or str(Path.cwd()))
    spec = PathFinder.find_spec(name, places)
    return spec if spec is not None and spec.loader is not None and not _ours(spec.origin) else None


def _hand_out(ours: ModuleType, theirs: ModuleType | ModuleSpec) -> None:
    """Let our package offer what only the user's module of that name has; it runs when first needed."""
    loaded = [theirs] if isinstance(theirs, ModuleType) else []
    below = theirs.__dict__.get("__path__") if loaded else theirs.submodule_search_locations
    ours.__path__ = [*ours.__path__, *(below or ())]

    def user_module() -> ModuleType:
        if not loaded:
            assert isinstance(theirs, ModuleSpec)
            assert theirs.loader is not None
            loaded.append(importlib.util.module_from_spec(theirs))
            theirs.loader.exec_module(loaded[0])
        return loaded[0]

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {ours.__name__!r} has no attribute {name!r}")
        try:
            return getattr(user_module(), name)
        except AttributeError:
            words = f"neither Bouquet's package {ours.__name__!r} nor {user_module().__file__} has {name!r}"
            raise AttributeError(words) from None

    ours.__dict__["__getattr__"] = missing
