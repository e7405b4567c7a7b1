"""Objects of a Python program in place of references: ``run(model=Net, dataset=(x, y), loss=my_loss)``.

An object that other processes cannot import (it was made in ``__main__`` or in a notebook, it is a lambda, a
module with values, or arrays) is registered here under a name that takes the place of ``net:Net``:
``python:Net.3f2a9c81``, with the first digits of its SHA-256 (`task.object_digest`). So two runs have the
same key if and only if they were given the same thing.

The workers of a simulation are forked with this register, or get it by ``cloudpickle``, which also sends what
``__main__`` defines. No other process has it: a config that names an object is refused there.
"""

import copyreg
import io
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from task.errors import ConfigError

PYTHON = "python:"  # what an object's name begins with


class Data:
    """Marks objects that workers do not get: they read the data from the cache."""


@dataclass(frozen=True)
class _Given:
    value: Any
    digest: str  # SHA-256
    needs: tuple[str, ...] = ()  # names of further objects, such as the solver of a rule


def _read_only(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


# The entries of algorithms have some, which a rule of the user's own takes along.
copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))

_given: dict[str, _Given] = {}  # by name


def is_object(reference: str) -> bool:
    """Return whether a run-config value names an object of a Python program."""
    return reference.startswith(PYTHON)


def register(key: str, name: str, value: Any, digest: str, needs: tuple[str, ...] = ()) -> str:
    """Register an object for this process and its workers; return what takes the place of a reference.

    Args:
        key: The run-config key that it is for.
        name: What it is called, letters and digits.
        value: The object.
        digest: Its SHA-256.
        needs: Names of registered objects that go with it.

    Raises:
        ConfigError: It could not be sent to a worker.
    """
    if not isinstance(value, Data):
        import cloudpickle

        try:
            cloudpickle.Pickler(_Nowhere()).dump(value)
        except Exception as err:  # whatever the user's code raises
            raise unsendable(key, err) from err
    found = f"{PYTHON}{name}.{digest[:8]}"
    _given[found] = _Given(value, digest, needs)
    return found


def unsendable(key: str, err: Exception) -> ConfigError:
    """Return the error of an object that cannot leave its process."""
    argument = argument_of(key)
    return ConfigError(
        f"run({argument}=...): expected an object that can be sent to the processes that train; got one that "
        f"cannot be pickled: {type(err).__name__}: {err}. Make what it holds (an open file, a lock, a "
        "connection) where it is used, or put its code into a module, such as net.py, and give "
        f'{argument}="net:NAME"'
    )


def find(key: str, reference: str) -> Any:
    """Return the object of that name.

    Raises:
        ConfigError: This process has none, saying what to do.
    """
    if reference not in _given:
        raise absent(key, reference)
    return _given[reference].value


def absent(key: str, reference: str) -> ConfigError:
    """Return the error of a process that was not given the object."""
    argument = argument_of(key)
    return ConfigError(
        f'run-config key "{key}": "{reference}" is an object of the Python program that started the run, and '
        f"this process does not have it. Call bouquet.run({argument}=...) with the same object; to resume, "
        "also with resume=True. For the command line, a federation or a deployment, put its code into a "
        f"module, such as net.py, and name that (data: into a file, or into a function): "
        f'{key}="net:NAME"'
    )


def digest_of(reference: str) -> str:
    """Return an object's SHA-256; "" if this process does not have it."""
    return _given[reference].digest if reference in _given else ""


def file_of(reference: str) -> str:
    """Return the file, or a notebook's cell, that the code of an object is in; "" if it is none."""
    value: Any = _given[reference].value if reference in _given else None
    if isinstance(value, type):
        value = next((v for v in vars(value).values() if hasattr(v, "__code__")), None)
    return str(getattr(getattr(value, "__code__", None), "co_filename", ""))


def not_repeatable(references: Iterable[tuple[str, str]]) -> str:
    """Return the sentence for a run with objects, given (key, reference) pairs; "" if it has none."""
    keys = sorted({key for key, reference in references if is_object(reference)})
    if not keys:
        return ""
    given = ", ".join(f"{argument_of(key)}=..." for key in keys)
    return (
        f"This run cannot be repeated from its config alone: {', '.join(keys)} "
        f"{'was' if len(keys) == 1 else 'were'} given as Python objects. To repeat it, call "
        f"bouquet.run(repeat=FOLDER, {given}) with the same objects."
    )


def argument_of(key: str) -> str:
    """Return a key as an argument of `bouquet.run`."""
    return key.replace("-", "_").replace(".", "_")


class Sent:
    """The objects of a run, for its workers; they are pickled only if a worker is spawned."""

    def __init__(self, references: Iterable[str]) -> None:
        names = [r for r in references if r in _given]
        self._given = {r: _given[r] for name in names for r in (name, *_given[name].needs)}

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        sent = {
            name: _Given(None if isinstance(given.value, Data) else given.value, given.digest, given.needs)
            for name, given in self._given.items()
        }
        return _received, (cloudpickle.dumps(sent),)

    def take_over(self) -> None:
        """Register them in this process, where they are not."""
        for name, given in self._given.items():
            _given.setdefault(name, given)


def _received(data: bytes) -> Sent:
    import cloudpickle

    sent = Sent(())
    sent._given = cast(dict[str, _Given], cloudpickle.loads(data))
    return sent


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B")) if not isinstance(data, bytes) else len(data)
