"""A node's exchange with its SuperLink: fetch a message, have it served, send the answer; and the heartbeats.

A message that this node has fetched but not answered when it ends is redelivered by a Bouquet link, so
nothing of it is written to the disk here.
"""

import contextlib
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from server_app.deploy.calls.fleet_client import (
    FleetClient,
    NotLetInError,
    RefusedMessageError,
    read_reply,
)
from server_app.deploy.flower.error_reply import error_reply
from server_app.deploy.flower.portable_run import keys_of_run, wants_fixed_kernels
from server_app.deploy.host.policy import Site, trains
from server_app.deploy.host.processes import say
from server_app.deploy.host.resource_limits import MEMORY
from server_app.deploy.host.tasks import TaskFailedError, Tasks
from task import timing
from task.flower.services import Protobuf
from task.numerics import pages
from task.storage.files import write_json
from task.wire.messages import one_line
from task.wire.registration import REGISTER

REGISTRATION = f"query.{REGISTER}"  # type of the message that asks what data a node has
MOST_REMARKS = 100  # different ones that tasks of a run make to the operator
RUNS = 4  # whose apps and states are kept in memory
SHARE = 0.05  # a pause between polls is at most this share of the silence before it


@dataclass
class _KnownRun:
    """What is known of a run."""

    description: bytes
    bundle: bytes
    series: int
    keys: Mapping[str, Any] | None  # None: they cannot be read
    portable: bool  # whether its tasks need fixed kernels


class MessageLoop:
    """Serves the messages of one SuperLink, one after the other, in threads of its own.

    Args:
        client: The SuperLink's Fleet API.
        tasks: Serve the messages: those with fixed kernels (`task.portable`) those of portable runs.
        site: What the owner of this machine allows.
        node_config: The node config that the app gets.
        max_memory: Most bytes of all processes of the node; 0 = no limit.
        rounds: File in which the training messages of each run are counted.
        identity: Returns what the node config has besides in a run, by the run's id.
    """

    def __init__(
        self,
        client: FleetClient,
        tasks: Mapping[bool, Tasks],
        site: Site,
        node_config: Mapping[str, Any],
        max_memory: int,
        rounds: Path,
        identity: Callable[[int], Mapping[str, str]] = lambda run: {},
    ) -> None:
        self.client, self.site = client, site
        self._by_kernels = tasks
        self._tasks = tasks[False]  # those that serve, or served last
        self.refused = ""  # why the SuperLink does not let this node in, "" if it does
        self.lacks_memory = ""  # why the node cannot take part; "" = it can
        self.held = False  # whether that may be because it believes that an earlier process is online
        self._settings: dict[str, Any] = {
            "site": asdict(site),
            "node-config": dict(node_config),
            "max-memory": max_memory,
        }
        self._rounds, self._identity = rounds, identity
        self._trained: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            self._trained = json.loads(rounds.read_text("utf-8"))
        self._runs: OrderedDict[int, _KnownRun] = OrderedDict()
        self._kept: OrderedDict[int, bytes] = OrderedDict()  # what apps keep, by series of runs
        self._serving = 0  # the run whose message is served, or was last
        self._said = (0, set[str]())  # a run, and what its tasks have told the operator
        self._active = threading.Event()
        self._over = threading.Event()

    def start(self) -> None:
        """Begin."""
        for work in (self._serve, self._beat):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def close(self) -> None:
        """Leave the SuperLink."""
        self._over.set()
        self.client.close()

    def _serve(self) -> None:
        pause_s = float(timing.RETRY_FIRST_S)
        while not self._over.is_set():
            try:
                node = self.client.activate()
                self.refused, pause_s = "", timing.RETRY_FIRST_S
                self._settings["node"] = node
                self._active.set()
                self._pull()
            except NotLetInError as err:
                self.refused, self.held = str(err), err.held
            except RefusedMessageError:
                pass  # it ends
            except Exception as err:  # any error: this thread must continue
                say(f"node: {type(err).__name__}: {err}")
            self._active.clear()
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, timing.RETRY_LONGEST_S)

    def _beat(self) -> None:
        while not self._over.wait(timing.BEAT_PAUSE_S if self._active.is_set() else timing.RETRY_FIRST_S):
            if self._active.is_set():
                try:
                    self.client.beat()
                    self._end_needless()
                except NotLetInError:
                    self._active.clear()  # so that the node activates itself again
                except RefusedMessageError as err:
                    if not self._over.is_set():
                        say(f"node: heartbeat: {err}")

    def _end_needless(self) -> None:
        """End the task of a run that has ended, so that the next message does not wait for it."""
        tasks = self._tasks
        task = tasks.number  # first: if another run began since, this one is over
        if task and self.client.has_ended(self._serving):
            tasks.end(task, "its run has ended")

    def _pull(self) -> None:
        """Fetch messages and serve them, until the SuperLink no longer knows this node.

        Raises:
            NotLetInError: It does.
        """
        silent_since = time.monotonic()
        while self._active.is_set() and not self._over.is_set():
            asked = time.monotonic()
            try:
                found = self.client.pull()
            except RefusedMessageError as err:
                if not self._over.is_set():
                    say(f"node: {err}")
                found = None
            if found is not None:
                self._answer(*found)
                pages.trim(always=True)
                silent_since = time.monotonic()
            elif (now := time.monotonic()) - asked < timing.HOLD_S / 2:  # the SuperLink has no long polls
                pause_s = SHARE * (now - silent_since)
                self._over.wait(min(max(pause_s, timing.PULL_FIRST_S), timing.PULL_LATER_S))

    def _answer(self, message: Protobuf, tree: Protobuf) -> None:
        """Serve a message and send the result; an answer that is no longer needed is dropped."""
        about = message.metadata
        try:
            order = self._order(message, tree)
            began = time.monotonic()
            head, objects, answer_tree = self._serve_one(message, order)
            self.client.push(head, answer_tree, objects.__getitem__, time.monotonic() - began)
            self._note_memory(head, about.message_type)
        except RefusedMessageError as err:
            if self.client.has_ended(about.run_id):
                say(f"{self._named(about.run_id)} has ended or was stopped; it needs no answer")
            else:
                say(f"message {about.message_id[:8]} of run {about.run_id}: {err}")

    def _order(self, message: Protobuf, tree: Protobuf) -> Iterator[bytes]:
        """Return what the task reads; what it has read is gone from this process."""
        about = message.metadata
        run = self._run(about.run_id)
        objects = self.client.objects(about.run_id, tree)
        self.client.confirm(about.run_id, about.message_id)
        is_training, key = trains(about.message_type), str(about.run_id)
        trained = self._trained.get(key, 0)
        if is_training and self.site.max_rounds:
            self._trained[key] = trained + 1
            write_json(self._rounds, self._trained)
        settings = self._settings | {"trains": is_training, "trained": trained, "keys": run.keys}
        settings["node-config"] = {**settings["node-config"], **self._identity(about.run_id)}
        kept = self._kept.get(run.series, b"")
        pieces = [
            json.dumps(settings).encode(),
            run.description,
            run.bundle,
            kept,
            message.SerializeToString(),
        ]
        return chain(pieces, _freeing(objects))

    def _run(self, run: int) -> _KnownRun:
        if run not in self._runs:
            found = self.client.run(run)
            bundle = self.client.bundle(found)
            keys = keys_of_run(found, bundle)
            self._runs[run] = _KnownRun(
                found.SerializeToString(), bundle, found.series_id, keys, wants_fixed_kernels(keys)
            )
            while len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(run)
        return self._runs[run]

    def _note_memory(self, answer: Protobuf, message_type: str) -> None:
        """Say that a message needed more memory than the node may use; a node that cannot register ends."""
        if (at := answer.error.reason.find(MEMORY)) >= 0:
            why = answer.error.reason[at:]
            say(why)
            if message_type == REGISTRATION:
                self.lacks_memory = f"{why}. Give the node more memory, or the run less data"

    def _tell(self, run: int, remarks: str) -> None:
        """Say what a task tells the operator; no line twice in a run, whatever the numbers in it."""
        if self._said[0] != run:
            self._said = run, set()
        whose = self._named(run)
        for line in remarks.splitlines():
            words = re.sub(r"\d", "", line)
            if words not in self._said[1] and len(self._said[1]) < MOST_REMARKS:
                self._said[1].add(words)
                say(line if line.startswith(whose) else f"{whose}: {line}")

    def _named(self, run: int) -> str:
        """Return a run in words."""
        keys = self._runs[run].keys if run in self._runs else None
        return one_line(f"run {(keys or {}).get('run-name') or run}")

    def _keep(self, series: int, state: bytes) -> None:
        """Store an app's state for the next message of a series of runs."""
        self._kept[series] = state
        self._kept.move_to_end(series)
        while len(self._kept) > RUNS:
            self._kept.popitem(last=False)

    def _serve_one(
        self, message: Protobuf, order: Iterable[bytes]
    ) -> tuple[Protobuf, Mapping[str, bytes], Protobuf]:
        """Return head, objects and tree of the answer to a message; it has one however its task ends."""
        about = message.metadata
        self._serving = about.run_id
        try:
            self._tasks = self._by_kernels[self._runs[about.run_id].portable]
            answer = self._tasks.run(order, about.ttl)
            self._tell(about.run_id, answer.remarks.decode(errors="replace"))
            head, tree = read_reply(answer.head, answer.tree, answer.objects, message)
        except (TaskFailedError, ValueError) as err:
            say(f"message {about.message_id[:8]} of run {about.run_id}: {err}")
            return error_reply(message, str(err))
        self._keep(self._runs[about.run_id].series, answer.state)
        return head, answer.objects, tree


def _freeing(objects: list[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield objects as a task reads them; each is gone from the list then."""
    objects.reverse()
    size = 0
    while objects:
        name, content = objects.pop()
        size += len(content)
        yield name.encode() + content
        del content
    pages.reclaim(size)
