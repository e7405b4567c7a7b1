"""In-memory index of arrived messages: long polls are answered at once, an empty poll skips the database.

The database has the messages. This index has what the process has seen of them: which are complete, which are
in transit, and which a node has fetched but not answered. Nothing is lost with it: the database is queried
for what a new SuperLink does not know yet, and regularly in any case.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flwr.app import Metadata

from server_app.deploy.calls.protocol import object_ids
from task import timing
from task.flower.services import Protobuf

HELD_CALLS = 500  # at a time, of the thousand threads of Flower's gRPC server
UNKNOWN = ""  # instead of a message's id: one that was in transit when this process began


class Inbox:
    """The messages to one node. A call of the node takes a turn; a newer one ends it."""

    def __init__(self) -> None:
        self.looking = threading.Lock()  # held while querying the database
        self._change = threading.Condition()
        self._turn = 0
        self._open = True
        self._known = False  # whether these sets are complete
        self._whole: set[str] = set()  # and not delivered
        self._coming: dict[str, float] = {}  # incomplete, and since when on the monotonic clock
        self._out: dict[str, frozenset[str]] = {}  # delivered but not answered, and the parts of each
        self._looked_at = 0.0

    def enter(self) -> int:
        """Begin a call, and end the one before it; return its turn."""
        with self._change:
            self._turn += 1
            self._change.notify_all()
            return self._turn

    def leave(self, turn: int) -> None:
        """End a call whose caller is gone."""
        with self._change:
            self._turn += self._turn == turn
            self._change.notify_all()

    def close(self) -> None:
        """End all calls, those to come too."""
        with self._change:
            self._open = False
            self._change.notify_all()

    def worth_a_look(self, turn: int) -> bool:
        """Return whether there may be something for a call."""
        with self._change:
            old = time.monotonic() - self._looked_at > timing.INBOX_S
            return self._goes_on(turn) and (self._may() or (old and not self._coming))

    def wait(self, turn: int, until: float) -> bool:
        """Hold a call until there may be something for it; return whether there may.

        Args:
            turn: The call.
            until: On the monotonic clock.
        """
        with self._change:
            while self._goes_on(turn) and not self._may() and (left := until - time.monotonic()) > 0:
                due = [since + timing.PARTS_S - time.monotonic() for since in self._coming.values()]
                self._change.wait(max(min(left, *due, left), 0.0))
            return self._goes_on(turn) and self._may()

    def _goes_on(self, turn: int) -> bool:
        return self._open and self._turn == turn

    def _may(self) -> bool:
        late = time.monotonic() - timing.PARTS_S
        for order in [order for order, since in self._coming.items() if since <= late]:
            del self._coming[order]  # the node sees for itself that it cannot have it
            self._whole.add(order)
        # Of several the database returns the oldest, even if incomplete.
        return not self._coming and (not self._known or bool(self._whole or self._out))

    def stored(self, order: str, *, whole: bool) -> None:
        """Note a message to the node; it may be incomplete."""
        with self._change:
            if whole:
                self._coming.pop(order, None)
                self._coming.pop(UNKNOWN, None)  # it may have been this one; the next poll tells
                self._whole.add(order)
                self._change.notify_all()
            else:
                self._coming[order] = time.monotonic()

    def answered(self, order: str) -> None:
        """Note that all of the answer to a message is here."""
        with self._change:
            self._out.pop(order, None)

    def forget(self) -> None:
        """Make the next poll query the database."""
        with self._change:
            self._known = False
            self._coming.pop(UNKNOWN, None)
            self._change.notify_all()

    @property
    def known(self) -> bool:
        """Whether the index is complete for the node."""
        return self._known

    @property
    def unanswered(self) -> bool:
        """Whether the node has fetched messages that it has not answered."""
        return bool(self._out)

    def whole(self) -> frozenset[str]:
        """Return the messages that a poll should find."""
        with self._change:
            return frozenset(self._whole)

    def incomplete(self, before: frozenset[str]) -> None:
        """Note that a poll found an incomplete message; `before` is as of `looked`.

        If a message became complete since, it may be this one, and the next poll tells.
        """
        with self._change:
            if self._whole <= before:
                self._coming[UNKNOWN] = time.monotonic()

    def looked(self, before: frozenset[str], found: Protobuf) -> None:
        """Note what a poll found; `before` is what `whole` returned before it."""
        with self._change:
            self._looked_at = time.monotonic()
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                order = message.metadata.message_id
                self._whole.discard(order)
                self._out[order] = frozenset(object_ids(tree))
            if not found.messages_list:
                self._whole -= before
                self._out.clear()
                self._known = True

    def has(self, object_id: str) -> bool:
        """Return whether an object belongs to a message that the node has fetched but not answered."""
        with self._change:
            return any(object_id in parts for parts in self._out.values())

    def parts(self, order: str) -> frozenset[str]:
        """Return the parts of a message that the node has fetched but not answered."""
        with self._change:
            return self._out.get(order, frozenset())

    def had(self, order: str, parts: frozenset[str]) -> None:
        """Note a message that an earlier process delivered to the node."""
        with self._change:
            self._out.setdefault(order, parts)


@dataclass
class _Upload:
    """Messages that are pushed together, each with the objects of it that are missing."""

    missing: dict[str, set[str]] = field(default_factory=dict)
    metadata: dict[str, Metadata] = field(default_factory=dict)
    heard: float = field(default_factory=time.monotonic)  # when it began, or its node was last heard


@dataclass(eq=False)
class Question:
    """A ServerApp's question which of its messages are answered; it is waited for in an event loop."""

    wanted: frozenset[str]
    loop: asyncio.AbstractEventLoop
    found: set[str] = field(default_factory=set)
    rung: asyncio.Event = field(default_factory=asyncio.Event)

    def ring(self) -> None:
        """End the wait; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so has the wait
            self.loop.call_soon_threadsafe(self.rung.set)


class Arrivals:
    """What has arrived at a SuperLink, for those who wait for it."""

    def __init__(self) -> None:
        self._inboxes: dict[int, Inbox] = {}
        self._uploads: dict[str, _Upload] = {}  # by session
        self._questions: set[Question] = set()
        self._lock = threading.Lock()
        self._free = HELD_CALLS

    def inbox(self, node: int) -> Inbox:
        """Return what is known of the messages to a node."""
        with self._lock:
            return self._inboxes.setdefault(node, Inbox())

    @contextmanager
    def holding(self) -> Iterator[bool]:
        """Yield whether one call more may be held; it is counted while the block lasts."""
        with self._lock:
            may = self._free > 0
            self._free -= may
        try:
            yield may
        finally:
            with self._lock:
                self._free += may

    def close(self) -> None:
        """End all held calls."""
        self._call_all(Inbox.close)

    @contextmanager
    def asking(self, question: Question) -> Iterator[None]:
        """Report arrivals to a question."""
        with self._lock:
            self._questions.add(question)
        try:
            yield
        finally:
            with self._lock:
                self._questions.discard(question)

    def answered(self, order: str, node: int) -> None:
        """Note that all of the answer of a node to a message is here."""
        self.inbox(node).answered(order)
        with self._lock:
            asked = [question for question in self._questions if order in question.wanted]
        for question in asked:
            question.found.add(order)
            question.ring()

    def uploader(self, session: str) -> int | None:
        """Return which node uploads in a session; None if this process does not know it."""
        with self._lock:
            upload = self._uploads.get(session)
            return next((data.src_node_id for data in upload.metadata.values()), None) if upload else None

    def uploads(self, node: int) -> list[str]:
        """Return the sessions in which a node uploads; it was heard just now."""
        with self._lock:
            found = {
                session: upload
                for session, upload in self._uploads.items()
                if any(data.src_node_id == node for data in upload.metadata.values())
            }
            for upload in found.values():
                upload.heard = time.monotonic()
        return list(found)

    def prune(self) -> None:
        """Forget abandoned uploads."""
        with self._lock:
            old = time.monotonic() - timing.UPLOAD_S
            for session in [session for session, upload in self._uploads.items() if upload.heard < old]:
                del self._uploads[session]

    def stored(self, data: Metadata, missing: list[str], session_id: str) -> None:
        """Note a message that was stored in a session, with the objects of it that are missing."""
        if missing:
            with self._lock:
                upload = self._uploads.setdefault(session_id, _Upload())
                upload.missing[data.message_id] = set(missing)
                upload.metadata[data.message_id] = data
        self._note(data, whole=not missing)

    def took(self, session: str, object_ids: Iterable[str]) -> None:
        """Note objects that were stored in a session."""
        with self._lock:
            upload = self._uploads.get(session)
            whole = []
            for message, missing in upload.missing.items() if upload else ():
                missing.difference_update(object_ids)
                whole += [] if missing else [message]
            for message in whole if upload else ():
                assert upload is not None
                del upload.missing[message]
            if upload and not upload.missing:
                del self._uploads[session]
        for message in whole:
            assert upload is not None
            self._note(upload.metadata[message], whole=True)
        if upload is None:  # it began before this process did
            self._call_all(Inbox.forget)

    def _call_all(self, wake: Callable[[Inbox], None]) -> None:
        with self._lock:
            inboxes, questions = list(self._inboxes.values()), list(self._questions)
        for inbox in inboxes:
            wake(inbox)
        for question in questions:
            question.ring()

    def _note(self, data: Metadata, *, whole: bool) -> None:
        if not data.reply_to_message_id:
            self.inbox(data.dst_node_id).stored(data.message_id, whole=whole)
        elif whole:
            self.answered(data.reply_to_message_id, data.src_node_id)
