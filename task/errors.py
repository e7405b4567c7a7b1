"""The error tree of Bouquet.

Every message says what is wrong, where (key, file, client, round), what was expected, what was got,
and what to do.

A node sends its errors to the server. Parts that only the node's own log may have are marked as `local(...)`:
values of cells, labels, names of columns, classes, files and folders. `public` has words of `Instead` for it.
"""

import difflib
import errno
import os
import re
import traceback
from collections.abc import Iterable
from typing import Literal

# Code points for private use, which `local` removes from values. A part is BEGIN, words, MIDDLE, value, END.
_BEGIN, _MIDDLE, _END = "\ue000", "\ue001", "\ue002"
_MARKS = re.compile(f"{_BEGIN}[^{_MIDDLE}]*{_MIDDLE}|[{_BEGIN}{_MIDDLE}{_END}]")
_MARKED = re.compile(f"{_BEGIN}([^{_MIDDLE}]*){_MIDDLE}[^{_END}]*{_END}")
# All that may leave a machine in the place of a part.
Instead = Literal["[withheld]", "its program", "its target", "the values in its list", "another", ""]
WITHHELD: Instead = "[withheld]"
PLACE, NOTE = "one of its files", f" ({WITHHELD}: only the node's own log has it)"
PACKAGES = ("client_app", "server_app", "strategies", "task")  # of the app


class BouquetError(Exception):
    """Base of all errors that Bouquet raises on purpose."""

    def __str__(self) -> str:
        return _MARKS.sub("", super().__str__())

    @property
    def public(self) -> str:
        """The text, in one line, with other words for each `local` part.

        One that it begins with is the place of the error: a file or folder.
        """
        text = " ".join(_MARKED.sub(r"\1", super().__str__()).splitlines())
        if text.startswith(WITHHELD):
            text = PLACE + text.removeprefix(WITHHELD)
        return text + NOTE * (WITHHELD in text)


class ConfigError(BouquetError):
    """A run-config key, a recipe or a command-line option is wrong."""


class DataError(BouquetError):
    """A data set, a partition or a client's own data are missing, damaged or unfit for the run."""


class WireError(BouquetError):
    """A message lacks a field, has one too many, or one with an unusable value.

    `field` is its name, as in the catalogue; "" if the message as a whole is at fault.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class FieldError(WireError):
    """One field of one client's reply failed its check; an array's is ``record/array``."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        super().__init__(f"field {field!r}: expected {expected}; got {got}", field)
        self.expected = expected
        self.got = got


class NodesError(WireError):
    """Too few nodes are online, or none gives a usable reply; the run can go on when they are back."""


class AbsentError(NodesError):
    """Too few nodes or clients are online; nothing is wrong with those that are."""


class UnreachableError(BouquetError):
    """A link is not running, or does not answer."""


class CodeError(BouquetError):
    """User code, or the app's own, failed; a retry would fail, too."""


class RepliesError(BouquetError):
    """Replies that came in time but are unusable; the next ones to the same order would be, too."""


class OrderError(BouquetError):
    """Clients cannot do what the server's messages ask for; the next messages would ask for the same."""


class StateError(BouquetError):
    """A checkpoint or a client's kept state is damaged or belongs to something else."""


class RefusedError(BouquetError):
    """The owner of this machine does not allow what a run asks for."""


class TooLittleMemoryError(BouquetError):
    """Nodes ran out of memory again where they did before."""


class SecureAggregationError(BouquetError):
    """A message of a secure round violates the protocol, so this side stops."""


# Bugs: they end what runs, with their traceback, and are never retried.
MISTAKES = (AssertionError, AttributeError, ImportError, NameError, NotImplementedError, TypeError)
# Bugs that not even hostile bytes can cause.
UNFED = (ImportError, NameError, NotImplementedError)


def local(value: object, instead: Instead = WITHHELD) -> str:
    """Return a value as a part of a message that does not leave this machine, but for the words `instead`."""
    return f"{_BEGIN}{instead}{_MIDDLE}{_MARKS.sub('', str(value))}{_END}"


def reason(err: BaseException) -> str:
    """Return a library's or the system's error as a part of a message: the system's own words are public."""
    text, head = str(err), ""
    if isinstance(err, OSError) and err.errno is not None:
        head = f"[Errno {err.errno}] {os.strerror(err.errno)}"
        head = head if text.startswith(head) else ""
    rest = text[len(head) :]
    return head + (local(rest, "" if head else WITHHELD) if rest else "")


def public(err: BaseException) -> str:
    """Return what a node may tell the server of an error.

    The text of an unexpected error may contain data, so only its kind and its place in the code are sent.
    """
    if isinstance(err, BouquetError):
        return err.public
    what = type(err).__name__
    if isinstance(err, OSError) and err.errno is not None:
        what = f"{what} ({os.strerror(err.errno)})"
    elif of_memory(str(err)) and not isinstance(err, MemoryError):
        what = f"{what} (not enough memory)"
    frames = [
        (str(f.f_globals.get("__name__", "?")), line) for f, line in traceback.walk_tb(err.__traceback__)
    ]
    ours = [(name, line) for name, line in frames if name.partition(".")[0] in PACKAGES]
    where = [f" at {name}, line {line}" for name, line in (ours or frames)[-1:]]
    return f"{what}{''.join(where)}; the node's own log says more"


# Kinds of failure. Those of `LASTING` last until someone acts, so a retry fails, too: a reason begins with
# the kind. The others are transient.
LASTING: dict[str, type[BouquetError]] = {
    "config": ConfigError,  # a key, or a node's options
    "data": DataError,
    "policy": RefusedError,  # an owner's policy; "not now" is transient
    "state": StateError,
    "code": CodeError,
    "reply": RepliesError,
    "order": OrderError,  # a client that cannot read or follow a message
    "memory": TooLittleMemoryError,  # a second time
}
PASSING_KIND, ABSENT, NODES = "passing", "absent", "nodes"  # the system; nodes that are away; anything else
_WORD = re.compile(rf"(?:^|: |<')({'|'.join(LASTING)}): ")  # a reason may have been passed on several times
# Unexpected errors that are bugs, unless they come from the packages below.
_MISTAKES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, RuntimeError,
    SyntaxError, TypeError, ValueError,
)  # fmt: skip
_OF_MEMORY = re.compile(r"MemoryError|not enough memory|allocate memory|out of memory|--max-memory")
_NETWORK = ("flwr", "grpc", "httpx", "httpcore", "ray")
# Transient errors of a disk or system: full, busy or away; the same call works later.
PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK}
    | {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
)


def is_transient(err: BaseException | None) -> bool:
    """Return whether a transient error of the system caused this one, however it was wrapped."""
    while err is not None:
        if isinstance(err, OSError) and err.errno in PASSING:
            return True
        err = err.__cause__ or err.__context__
    return False


def of_memory(reason: str) -> bool:
    """Return whether a reason says that memory was short; one retry is allowed."""
    return bool(_OF_MEMORY.search(reason))


def kind_of(err: BaseException) -> str:
    """Return an error's kind: a word of `LASTING`, `PASSING_KIND`, `ABSENT` or `NODES`."""
    if is_transient(err):
        return PASSING_KIND
    if isinstance(err, BouquetError):
        said = _WORD.match(str(err))
        if not said and isinstance(err, WireError) and not isinstance(err, NodesError):
            return "order"
        words = (word for word, kind in LASTING.items() if isinstance(err, kind) and word != "policy")
        return said[1] if said else next(words, ABSENT if isinstance(err, AbsentError) else NODES)
    return "code" if _is_mistake(err) else NODES


def _is_mistake(err: BaseException) -> bool:
    """Return whether an unexpected error is a bug, not one of the network or of memory."""
    if not isinstance(err, _MISTAKES) or "memory" in str(err):
        return False
    modules = [str(f.f_globals.get("__name__", "")) for f, _ in traceback.walk_tb(err.__traceback__)]
    return all(name.partition(".")[0] not in _NETWORK for name in (type(err).__module__, *modules[-1:]))


def with_kind(err: BaseException, text: str) -> str:
    """Return what is said of an error with the word of its kind before it, if that lasts."""
    word = kind_of(err)
    return text if word not in LASTING or text.startswith(f"{word}: ") else f"{word}: {text}"


def split_kind(reason: str) -> tuple[str, str]:
    """Return the kind that a reason begins with, as `kind_of` names it, and the rest; "" = none."""
    kind, _, rest = reason.partition(": ")
    return (kind, rest) if kind in (*LASTING, PASSING_KIND, ABSENT, NODES) else ("", reason)


def kind_of_reply(field: str, got: str) -> str:
    """Return the kind of failure that made a reply useless: a word of `LASTING`, "" = it may pass.

    `field` is what the gate refused, "" if it was not the gate; `got` is the reason.
    """
    return "reply" if field else kind_in(got)


def kind_in(reason: str) -> str:
    """Return the word of the kind that a reason begins with; "" = it may pass."""
    said = _WORD.search(reason)
    return said[1] if said else ""


FEW = 20  # names that are listed next to the one that was probably meant,
SURE = 0.7  # and all of them if it is less like what was typed


def choose_from(what: str, got: object, choices: Iterable[str]) -> str:
    """Return the sentence that refuses `got`: the nearest choice first, then all if they are few."""
    names = sorted(choices)
    if not names:
        return f"{what}: expected one of its public names, of which it has none; got {got!r}."
    near = difflib.get_close_matches(str(got), names, n=1, cutoff=0.5)
    if not near:
        return f"{what}: expected one of {', '.join(names)}; got {got!r}."
    surely = len(names) > FEW and difflib.get_close_matches(str(got), near, cutoff=SURE)
    known = f"{len(names)} names" if surely else ", ".join(names)
    return f'{what}: got {got!r}. Did you mean "{near[0]}"? Expected one of {known}.'
