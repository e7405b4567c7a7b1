"""Fetch replies, each by itself: a broken, huge or endless upload of one node does not delay the others.

Flower's grid fetches the replies to a list of messages one after the other. Of one whose parts are not all
there it waits for the rest, in the middle of the list, for as long as the upload may take, and an error in
one loses all of the list. So here each reply is asked for by itself, in a thread that is left behind when it
is stuck, and what goes wrong is that message's own. Our link says which replies are there, and holds the
question until one is; any other SuperLink is polled.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, runtime_checkable

from flwr.app import Message
from flwr.serverapp import Grid

from task import timing
from task.flower.grid import answered, ends_the_run, is_superlink_error, parts
from task.flower.transfer_budget import Allowance, granted, nothing

# Flower's own send_and_receive sleeps 3 s between polls. Here the pause is a fiftieth of the time waited so
# far, and no less than four times what the look took: a round is at most 2 % longer, and a long round with
# many nodes does not keep a SuperLink busy. A grid that knows when a reply is there (`Prompt`) is not polled.
SHARE = 0.02
REST = 4.0

Found = tuple[str, "Message | Exception"]  # id of the message that it answers, and the reply or what is wrong


@runtime_checkable
class Prompt(Protocol):
    """A grid that is notified of replies; those that it returns are already in this process."""

    def wait(self, timeout_s: float) -> None:
        """Return when a reply came since the last call, or after the time."""


class FetchedReplies:
    """Replies that were fetched but not taken yet.

    All pullers of a run share it: a reply is handed out once, and one that is being fetched when its puller
    is closed is for the next. What is no longer waited for is dropped, except `kept`.
    """

    def __init__(self) -> None:
        self.kept: set[str] = set()  # ids of messages whose replies are kept for a later request
        self._found: list[Found] = []
        self._change = threading.Condition()

    def put(self, found: Found) -> None:
        """Add a reply, or with no id an error that ends the run."""
        with self._change:
            self._found.append(found)
            self._change.notify_all()

    def take(self, wanted: Callable[[str], bool], timeout_s: float) -> list[Found]:
        """Return the replies that are wanted; if there are none, after the time at most."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while True:
                mine, others = list[Found](), list[Found]()
                for found in self._found:
                    if not found[0] or wanted(found[0]):
                        mine.append(found)
                    elif found[0] in self.kept:
                        others.append(found)
                self._found = others
                left = deadline - time.monotonic()
                if mine or left <= 0:
                    return mine
                self._change.wait(left)


def puller(grid: Grid, deadline: float, most_bytes: int, found: FetchedReplies) -> AtOnce | OneByOne:
    """Return what fetches replies from a grid.

    What is not whole by `deadline`, on the monotonic clock, or has more than `most_bytes`, is given up.
    `found` is that of the run.
    """
    return AtOnce(grid) if isinstance(grid, Prompt) else OneByOne(grid, deadline, most_bytes, found)


class AtOnce:
    """From a grid in this process: all that are there."""

    deadline = math.inf  # nothing is on its way

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._ids: set[str] = set()

    def add(self, ids: Iterable[str]) -> None:
        """Wait for the replies to these messages too."""
        self._ids |= set(ids)

    def drop(self, message_id: str) -> None:
        """Wait for the reply to this message no more."""
        self._ids.discard(message_id)

    def get(self, timeout_s: float) -> list[Found]:
        """Return what is there; if nothing is, after the time at most."""
        found = self._pull()
        if not found and timeout_s > 0:
            assert isinstance(self.grid, Prompt)
            self.grid.wait(min(timing.REPLY_LATER_S, timeout_s))
        return found

    def _pull(self) -> list[Found]:
        replies = list(self.grid.pull_messages(self._ids)) if self._ids else []
        self._ids -= {reply.metadata.reply_to_message_id for reply in replies}
        return [(reply.metadata.reply_to_message_id, reply) for reply in replies]

    def close(self) -> None:
        """Fetch no more."""


class OneByOne:
    """From any other grid: each by itself, in a thread, and in further ones while some are stuck."""

    def __init__(self, grid: Grid, deadline: float, most_bytes: int, found: FetchedReplies) -> None:
        self.grid, self._found = grid, found
        self.deadline, self.most_bytes = deadline, most_bytes
        self._ids: deque[str] = deque()
        self._wanted: set[str] = set()
        self._change = threading.Condition()
        self._worker: threading.Thread | None = None  # the one that asks; others are stuck
        self._since = 0.0  # when it began to ask for what it asks for
        self._asks = True  # until the SuperLink cannot say which replies are there
        self._asking = False
        self._closed = False
        self._began = time.monotonic()

    def add(self, ids: Iterable[str]) -> None:
        """As `AtOnce.add`."""
        with self._change:
            new = [i for i in ids if i not in self._wanted]
            self._wanted.update(new)
            self._ids.extend(new)
            if new and self._asking:
                self._since = -math.inf  # the question that is held is not about these: another asks
            self._change.notify()

    def drop(self, message_id: str) -> None:
        """As `AtOnce.drop`."""
        with self._change:
            self._wanted.discard(message_id)

    def get(self, timeout_s: float) -> list[Found]:
        """As `AtOnce.get`.

        Raises:
            Exception: The SuperLink can no longer be asked.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            with self._change:
                if self._ids and (self._worker is None or now - self._since > timing.FETCH_S):
                    self._since = now
                    self._worker = threading.Thread(target=self._work, name="replies", daemon=True)
                    self._worker.start()
            found = self._found.take(self._still, max(min(deadline - now, timing.FETCH_S), 0.0))
            if not found and time.monotonic() < deadline:
                continue
            for message_id, what in found:
                if not message_id and isinstance(what, Exception):
                    raise what
            return found

    def _still(self, message_id: str) -> bool:
        with self._change:
            wanted = message_id in self._wanted
            self._wanted.discard(message_id)
            return wanted

    def _work(self) -> None:
        """Ask for one after the other, until there is nothing to ask for or this took too long."""
        me = threading.current_thread()
        left, swept = 0, 0.0  # of this look at all of them; the time that it took
        while True:
            with self._change:
                if self._closed or self._worker is not me:
                    return
                if not self._ids:
                    self._worker = None
                    return
            if left <= 0:
                left, swept = self._first_the_answered(), 0.0
            with self._change:
                if self._closed or self._worker is not me:
                    return
                if left <= 0 or not self._ids:
                    continue
                message_id = self._ids.popleft()
                if message_id not in self._wanted:
                    left -= 1
                    continue
                began = self._since = time.monotonic()
            again = self._ask(message_id)
            now = time.monotonic()
            left -= 1
            if now - began < timing.FETCH_S:  # one that took longer waited for a SuperLink that was away
                swept += now - began
            with self._change:
                if again:
                    self._ids.append(message_id)
                if self._worker is not me:
                    return  # another goes on
                self._since = now + 2 * timing.REPLY_LATER_S + REST * swept
                if again and left <= 0:
                    pause = min(max(timing.REPLY_FIRST_S, SHARE * (now - self._began)), timing.REPLY_LATER_S)
                    self._change.wait(max(pause, REST * swept))
                    left = 0

    def _first_the_answered(self) -> int:
        """Put what is answered at the front, waiting for the first; return how many to ask for.

        Those are all where the SuperLink cannot say which are answered; also where the question fails, since
        asking for each meets the same error and takes it for what it is.
        """
        began = time.monotonic()
        with self._change:
            if not self._asks:
                return len(self._ids)
            self._asking, self._since = True, began + timing.ANSWERED_S
            wanted = [i for i in self._ids if i in self._wanted]
        try:
            found = answered(self.grid, wanted, timing.ANSWERED_S)
        except Exception:  # asking for each meets the same error, and says it
            return len(wanted)
        finally:
            with self._change:
                self._asking = False
        with self._change:
            if found is None:
                self._asks = False
                return len(self._ids)
            first = [i for i in self._ids if i in found]
            self._ids = deque(first + [i for i in self._ids if i not in found and i in self._wanted])
            if not first:  # a link that holds no more questions says so at once
                self._change.wait(max(began + timing.REPLY_LATER_S - time.monotonic(), 0.0))
            return len(first)

    def _ask(self, message_id: str) -> bool:
        """Ask for a reply; return whether to ask again."""
        at_once = partial(parts, self.grid) if self._asks else nothing
        allowance = Allowance(self.most_bytes, self.deadline, at_once)
        try:
            with granted(allowance):
                replies = list(self.grid.pull_messages([message_id]))
        except Exception as err:  # it is raised in the thread that waits for the replies
            if is_superlink_error(err):
                return True
            self._found.put((message_id if not ends_the_run(err) else "", err))
            return False
        for reply in replies:
            self._found.put((message_id, reply))
        return not replies

    def close(self) -> None:
        """As `AtOnce.close`."""
        with self._change:
            self._closed = True
            self._change.notify()
