"""Replace functions of Flower by ours."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def replace(owner: object, **functions: Callable[..., Any]) -> None:
    """Replace functions of an object or a module, by name.

    A call with an argument that ours does not know goes to Flower's: it may mean something.
    """
    for name, ours in functions.items():
        vars(owner)[name] = _instead(getattr(owner, name), ours)


def _instead(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    bind = inspect.signature(ours).bind

    @functools.wraps(ours, updated=())
    def call(*args: Any, **options: Any) -> Any:
        try:
            bind(*args, **options)
        except TypeError:
            return theirs(*args, **options)
        return ours(*args, **options)

    return call
