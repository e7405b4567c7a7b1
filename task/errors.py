"""The error tree of Bouquet.

::

    BouquetError
    ├── ConfigError   a run-config key, a recipe or a command-line option is wrong
    ├── DataError     a data set, a partition or a client's own data cannot be used
    ├── WireError     a message does not hold what the catalogue says it must
    │   ├── FieldError   one field of one client's reply
    │   └── NodesError   too few nodes, or none with a usable reply: the run can go on when they are back
    └── StateError    a checkpoint or a client's kept state cannot be used

Every message says what is wrong, where (key, file, client, round), what was expected, what was got,
and what to do.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class BouquetError(Exception):
    """Base of all errors that Bouquet raises on purpose."""


class ConfigError(BouquetError):
    """A run-config key has an unusable value, or does not exist."""


class DataError(BouquetError):
    """A data set or partition is missing, damaged or does not fit the configuration."""


class WireError(BouquetError):
    """A message lacks a field, has one too many, or one with an unusable value.

    Args:
        message: The whole sentence.
        field: Name of the field at fault, as in the catalogue ("" if the message as a whole is).
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class FieldError(WireError):
    """One field of one client's reply failed its check.

    Args:
        field: Name of the field, ``record/array`` for an array.
        expected: What was expected of it.
        got: What came.
    """

    def __init__(self, field: str, expected: str, got: str) -> None:
        super().__init__(f"field {field!r}: expected {expected}; got {got}", field)
        self.expected = expected
        self.got = got


class NodesError(WireError):
    """Too few nodes are online, or none gives a usable reply; a resume goes on when they are back."""


class StateError(BouquetError):
    """A checkpoint or a client's kept state is damaged or belongs to something else."""


PASSES = "PassingError"
# What a disk or a system says that is full, busy or away for a time; the same call works when that is over.
PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK}
    | {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
)


def may_pass(err: BaseException | None) -> bool:
    """Return whether an error comes of one of the system that may pass, however it was wrapped since."""
    while err is not None:
        if isinstance(err, OSError) and err.errno in PASSING:
            return True
        err = err.__cause__ or err.__context__
    return False


def kind_of(err: BaseException) -> str:
    """Return the name of an error for whoever decides whether to try again: `PASSES`, or its class."""
    return PASSES if may_pass(err) else type(err).__name__


def choose_from(what: str, got: object, choices: Iterable[str]) -> str:
    """Return the sentence that refuses `got` and names the choices and the nearest of them."""
    names = sorted(choices)
    near = difflib.get_close_matches(str(got), names, n=1, cutoff=0.5)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f"{what}: expected one of {', '.join(names)}; got {got!r}.{hint}"
