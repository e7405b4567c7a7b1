"""Limits on fetching one reply: bytes and time.

Flower's grid gathers all parts of a reply that the sender's list names, as often as the list names them, and
an array's own list of its parts may name one part a million times: some megabytes become terabytes. It waits
up to two hours for missing parts, and polls for them with pauses of up to 10 s. Two of its functions are
replaced by counting ones; in a version of Flower with different internals they are not replaced, and the
reply is measured when it is complete.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Array

from task import timing
from task.errors import WireError
from task.flower.names import ARRAYS, FETCHING, fits
from task.numerics import pages

_current = threading.local()


def nothing(object_ids: list[str]) -> dict[str, bytes]:
    """Return no contents: all parts are to be fetched one by one."""
    return {}


class Allowance:
    """The remaining bytes and time for one reply, whose parts are fetched by several threads.

    The deadline is on the monotonic clock; `at_once` returns contents of parts that need not be fetched.
    """

    def __init__(
        self,
        most_bytes: int,
        deadline: float,
        at_once: Callable[[list[str]], dict[str, bytes]] = nothing,
    ) -> None:
        self.most_bytes, self.deadline, self.at_once = most_bytes, deadline, at_once
        self._fetched = self._made = 0
        self._lock = threading.Lock()

    def fetch(self, size: int) -> None:
        """Count bytes that were fetched; from time to time, free what their transfer left.

        Raises:
            WireError: They are too many.
        """
        with self._lock:
            before, self._fetched = self._fetched, self._fetched + size
            if before // pages.LARGE < self._fetched // pages.LARGE:
                pages.reclaim(pages.LARGE)
            # In addition to the content: the heads of the parts, and the names of the parts of parts.
            self._check(self._fetched, 2 * self.most_bytes + (1 << 20))

    def make(self, size: int) -> None:
        """Count bytes that arrays are made of; raises what `fetch` does."""
        with self._lock:
            self._made += size
            self._check(self._made, self.most_bytes)

    def _check(self, size: int, most: int) -> None:
        if size > most:
            raise WireError(f"a reply of {size} bytes or more, where at most {self.most_bytes} are expected")


@contextmanager
def granted(allowance: Allowance) -> Iterator[None]:
    """Hold what this thread fetches to an allowance."""
    _install()
    _current.allowance = allowance
    try:
        yield
    finally:
        _current.allowance = None


def _held() -> Allowance | None:
    return getattr(_current, "allowance", None)


def _install() -> None:
    """Replace Flower's functions, once."""
    if not getattr(Array.inflate, "counts", False) and fits(ARRAYS):
        _count_arrays()
    http_grid = sys.modules.get("flwr.superlink.grid.http_grid")  # loaded only if used
    if http_grid is not None and fits(FETCHING) and not hasattr(http_grid.pull_objects, "counts"):
        vars(http_grid)["pull_objects"] = _counting(http_grid.pull_objects)


def _counting(theirs: Callable[..., dict[str, bytes]]) -> Any:
    def pull_objects(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **more: Any) -> Any:
        allowance = _held()
        if allowance is None:
            return theirs(object_ids, pull_object_fn, **more)

        def fetch(object_id: str) -> bytes:
            content = pull_object_fn(object_id)
            allowance.fetch(len(content))
            return content

        times = {
            "max_time": max(allowance.deadline - time.monotonic(), 0.0),
            "max_tries_per_object": None,
            "initial_backoff": timing.PART_FIRST_S,
            "backoff_cap": timing.PART_LATER_S,
        }
        wanted = list(dict.fromkeys(object_ids))
        here = allowance.at_once(wanted)
        allowance.fetch(sum(map(len, here.values())))
        rest = [i for i in wanted if i not in here]
        return here | (theirs(rest, fetch, **{**more, **times}) if rest else {})

    pull_objects.counts = True  # type: ignore[attr-defined]
    return pull_objects


def _count_arrays() -> None:
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_children_ids_from_object_content,
    )

    theirs = Array.inflate.__func__  # type: ignore[attr-defined]

    def inflate(cls: type[Array], object_content: bytes, children: Any = None, **more: Any) -> Array:
        allowance = _held()
        if allowance is not None and children:
            parts = get_object_children_ids_from_object_content(object_content)
            listed = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
            for i in listed:
                allowance.make(len(children[parts[i]].data))
        return theirs(cls, object_content, children, **more)  # type: ignore[no-any-return]

    inflate.counts = True  # type: ignore[attr-defined]
    Array.inflate = classmethod(inflate)  # type: ignore[arg-type, assignment, method-assign]
