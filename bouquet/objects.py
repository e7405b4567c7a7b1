"""Python objects as arguments of `bouquet.run`, in place of names and references."""

import copy
import functools
import re
from collections.abc import Callable, Mapping
from types import new_class
from typing import Any

from torch import nn

from task import objects
from task.config.read import knobs
from task.datasets.user_loader import GivenData
from task.errors import ConfigError
from task.object_digest import digest, importable
from task.references import KEYS, OURS, package_of

_DATA = ("dataset", "public.data")
_LISTS = {k.key for k in knobs() if k.several}  # keys that take several, with commas between them


def with_references(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return run-config keys as texts and numbers: lists with commas, and names in place of objects.

    The objects are registered in `task.objects`.

    Raises:
        ConfigError: An object is none of those that the key takes, or cannot be sent to another process.
        DataError: It is no data set.
    """
    return {key: _value(key, value) for key, value in keys.items()}


def _value(key: str, value: Any) -> Any:
    if key in _LISTS and isinstance(value, tuple | list):
        return ",".join(str(_value(key, part)) for part in value)
    return value if isinstance(value, str) or key not in KEYS else _named(key, value)


def _named(key: str, value: Any) -> str:
    if key in _DATA and not _is_code(value):
        return _registered(key, "data", GivenData.of(f"run({objects.argument_of(key)}=...)", value))
    if key == "model" and isinstance(value, nn.Module):
        return _registered(key, type(value).__name__, Copies(value))
    if not callable(value) and key != "metrics":
        raise ConfigError(
            f"run({objects.argument_of(key)}=...): expected a name, a callable"
            f"{' or a torch.nn.Module' if key == 'model' else ''}; got {type(value).__name__}"
        )
    if key == "algorithm" and (solvers := _solvers(value)):
        return _registered(key, value.__name__, _with_solvers(value, solvers), tuple(solvers.values()))
    reference = importable(value)
    if reference and package_of(reference) not in OURS:
        return reference
    return _registered(key, _name_of(value, key), value)


def _is_code(value: Any) -> bool:
    """Return whether a value loads data, rather than being them."""
    holds_examples = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return isinstance(value, type) or (callable(value) and not holds_examples)


def _name_of(value: Any, key: str) -> str:
    while isinstance(value, functools.partial):
        value = value.func
    name = str(getattr(value, "__qualname__", "") or type(value).__qualname__).rpartition(".")[2]
    return name if re.fullmatch(r"\w+", name, re.ASCII) else key.rpartition(".")[2]


def _registered(key: str, name: str, value: Any, needs: tuple[str, ...] = ()) -> str:
    try:
        found = digest(value)
    except Exception as err:  # whatever the user's code raises
        raise objects.unsendable(key, err) from err
    return objects.register(key, name, value, found, needs)


class Copies:
    """Makes models with the values of one that the user has; each is a copy of its own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = copy.deepcopy(model).cpu().train()

    def __call__(self) -> nn.Module:
        """Return another copy."""
        return copy.deepcopy(self._model)


def _solvers(rule: Any) -> dict[str, str]:
    """Return the names of the solver classes that a rule's entry has, by phase; "" is training."""
    entry = getattr(rule, "entry", None)
    parts = {"": entry, **getattr(entry, "phases", {})} if isinstance(rule, type) else {}
    return {
        phase: _named("algorithm", part.solver)
        for phase, part in parts.items()
        if isinstance(getattr(part, "solver", None), type)
    }


def _with_solvers(rule: Any, solvers: Mapping[str, str]) -> type:
    """Return the rule with references in place of solver classes."""
    from dataclasses import replace

    entry = rule.entry
    phases = {name: replace(p, solver=solvers.get(name, p.solver)) for name, p in entry.phases.items()}
    entry = replace(entry, solver=solvers.get("", entry.solver), phases=phases)
    fill: Callable[[dict[str, Any]], None] = lambda space: space.update(  # noqa: E731
        entry=entry, __module__=rule.__module__, __doc__=rule.__doc__
    )
    return new_class(rule.__name__, (rule,), {}, fill)
