"""Play a case: a run of real clients through the ServerApp, some of whose nodes' replies are mutated."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Error, Message
from flwr.common.serde import message_from_proto, message_to_proto
from numpy.random import Generator

from client_app.app import make_app
from server_app import app as server
from server_app.results.folder import RunFolder
from server_app.run.recorder import Recorder
from strategies.engine.journal import Snapshot
from strategies.transport.packed import PackingGrid
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import as_run_config
from task.errors import NodesError, StateError
from task.resolve.read import read_config
from task.wire import registration
from task.wire.messages import clients_of
from tests.fuzz.aliases import ALIASES, PLAIN, renamed
from tests.fuzz.draws import TEXTS, pick
from tests.fuzz.mutate import mutate
from tests.support.federation import owners_config, write_owners
from tests.support.grid import LocalGrid
from tests.support.horizontal import HORIZONTAL
from tests.test_catalogue import ACTIVE

ROUNDS = 3  # the first one is mutated; what it leaves behind shows in the others
SIZES = {"anna": 14, "ben": 24, "cleo": 46, "dora": 18, "emil": 32, "fay": 18, "gus": 22}
FORMS = {"plain": (7, False), "merged": (3, False), "packed": (3, True), "packed-plain": (7, True)}
BAD = {7: ((0, 3), (2, 5)), 3: ((0,), (1,))}  # by number of nodes: which of those asked are mutated
QUERY = "query.roll_call"


@dataclass(frozen=True)
class Variant:
    """A run to disturb: an algorithm, a selection policy or a knob that changes the messages."""

    name: str
    keys: Mapping[str, Any]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of the messages whose answers are mutated, the frequent ones first."""
        phases = ALGORITHMS[str(self.keys["algorithm"])].phases
        before = tuple(f"train.{name}" for name in phases)
        ask = ("evaluate.candidates",) if self.keys.get("selection") == "power-of-choice" else ()
        return ("train", *before, *ask, "evaluate", QUERY)


def _variants() -> Iterator[Variant]:
    for name in sorted(HORIZONTAL):
        model = "mlp" if ALGORITHMS[name].personal else "logistic"
        yield Variant(name, {"model": model, **ACTIVE[name], "algorithm": name})
    more: dict[str, dict[str, Any]] = {
        "power-of-choice": {"selection": "power-of-choice"},
        "power-of-choice-last": {"selection": "power-of-choice", "select.losses": "last"},
        "oort": {"selection": "oort"},
        "proportional": {"selection": "proportional", "algorithm": "fednova"},
        "adaptive-tau-seconds": {"algorithm": "adaptive-tau", "adaptive-tau.resource": "seconds"},
        "target": {"target-accuracy": 0.999},
        "ala": {"ala": True, "model": "mlp"},
    }
    for name, keys in more.items():
        yield Variant(name, {"algorithm": "fedavg", "model": "logistic", "fraction-train": 0.8} | keys)


VARIANTS = {variant.name: variant for variant in _variants()}


@dataclass(frozen=True)
class Case:
    """One run, wholly said by its variant, its form and its seed."""

    variant: str
    form: str
    seed: int

    @property
    def command(self) -> str:
        """What repeats it."""
        return f"python -m tests.fuzz --case {self.variant}:{self.form}:{self.seed}"

    def draws(self) -> Generator:
        """Return the generator of everything that the case draws."""
        text = f"{self.variant}:{self.form}".encode()
        return np.random.default_rng([self.seed, *text])


@dataclass
class Played:
    """What a run left.

    Attributes:
        case: The case.
        kind: Type of the messages whose answers were mutated.
        bad: Which of those messages.
        said: By client that a mutated reply was to answer for, the mutation.
        honest: Clients of that message type and round whose replies were left alone.
        asked: By (round, message type), all clients that were asked.
        registered: By client, the training examples that its node says it has.
        strange: Clients that a node with a mutated registration was asked for.
        error: What left the run, with its traceback; "" = nothing did.
        no_nodes: Whether that was the error for a run that nobody can train.
        folder: The result folder; `rows`, `clients` and `result` are its content.
        snapshots: The server's arrays after each round.
        printed: What the terminal showed.
        logged: Lines of the log.
    """

    case: Case
    kind: str
    bad: tuple[int, ...]
    said: dict[str, str] = field(default_factory=dict)
    honest: set[str] = field(default_factory=set)
    asked: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    error: str = ""
    no_nodes: bool = False
    folder: Path = Path()
    rows: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    registered: dict[str, int] = field(default_factory=dict)
    strange: set[str] = field(default_factory=set)
    printed: str = ""
    logged: list[str] = field(default_factory=list)

    @property
    def models(self) -> list[str]:
        """Digest of the model after each round, round 0 first."""
        return [row["model_sha256"] for row in self.rows]

    def lines(self, server_round: int) -> list[dict[str, Any]]:
        """Return the quarantine lines of a round."""
        return [line for row in self.rows if row["round"] == server_round for line in row["quarantined"]]


Mutate = Callable[[Message, Message, str], tuple[Message, str]]
"""Given an order, its reply and the message type: the reply that arrives, and what was done to it."""


class FuzzGrid(LocalGrid):
    """Hands some replies to messages of one type, in the first round, to a mutator."""

    def __init__(
        self, nodes: int, keys: Mapping[str, Any], played: Played, bad: tuple[int, ...], do: Mutate
    ) -> None:
        # One pool whose nodes say the same of themselves: this process opens their data once.
        super().__init__(make_app(simulation=True), [{} for _ in range(nodes)], keys)
        self.played, self.bad, self.do = played, bad, do
        self._chosen = False
        self._strangers: set[int] = set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids: list[str] = []
        given = sorted(messages, key=lambda m: self.index[m.metadata.dst_node_id])
        due = any(m.metadata.message_type == self.played.kind for m in given) and not self.played.said
        for i, message in enumerate(given):
            clients = clients_of(message)
            self._chosen = due and i in {at % len(given) for at in self.bad}
            if due and not self._chosen:
                self.played.honest |= set(clients)
            if self._chosen and self.played.kind == QUERY:
                self._strangers.add(message.metadata.dst_node_id)
            if message.metadata.dst_node_id in self._strangers:
                self.played.strange |= set(clients)
            key = int(message.metadata.group_id or 0), message.metadata.message_type
            self.played.asked.setdefault(key, []).extend(clients)
            ids += super().push_messages([message])
        return ids

    def _deliver(self, message: Message) -> Message | None:
        asked = clients_of(message)
        message.content = renamed(message.content, PLAIN)
        reply = super()._deliver(message)
        if reply is not None and reply.has_content():
            reply.content = renamed(reply.content, ALIASES)
        if reply is not None and message.metadata.message_type == QUERY:
            told = registration.read_registration(reply.content)
            self.played.registered |= dict(zip(told.clients, told.num_examples.tolist(), strict=True))
        if not self._chosen or reply is None:
            return reply
        reply, said = self.do(message, reply, self.played.kind)
        self.played.said |= dict.fromkeys(asked or ["a node"], said)
        return message_from_proto(message_to_proto(reply))


def mutation(rng: Generator) -> Mutate:
    """Return what mutates one reply after the other."""

    def do(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
        if rng.random() < 0.04 or reply.has_error():
            error = Error(pick(rng, [0, 2, 77]), pick(rng, [*TEXTS, "   \n"]))
            return Message(error, reply_to=order), f"an error: {error.code}, {error.reason!r:.80}"
        reply.content, said = mutate(rng, reply.content, kind)
        return reply, said

    return do


def refuse(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
    """Answer with an error instead: the run that a run with a refused reply is compared with."""
    return Message(Error(2, "refused"), reply_to=order), "refused"


def leave(order: Message, reply: Message, kind: str) -> tuple[Message, str]:
    """Leave the reply as it is: the run that a run with mutated evaluations is compared with."""
    return reply, "nothing"


class Player:
    """Plays cases in one folder.

    Args:
        folder: Data, state and results of the runs; those of a run go with the next.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_owners(folder / "owners.npz", SIZES)
        self._known: dict[tuple[str, str, str, tuple[int, ...]], list[str]] = {}

    def play(self, case: Case) -> Played:
        """Play a case with its mutations."""
        rng = case.draws()
        variant, (nodes, _) = VARIANTS[case.variant], FORMS[case.form]
        kind = variant.kinds[0] if rng.random() < 0.5 else pick(rng, variant.kinds)
        bad = pick(rng, BAD[nodes])
        return self._play(case, kind, bad, mutation(rng))

    def disturb(self, case: Case, kind: str, do: Mutate) -> Played:
        """Play the run of a case with a disturbance of one's own instead of the seed's."""
        return self._play(case, kind, BAD[FORMS[case.form][0]][0], do)

    def without(self, played: Played) -> list[str]:
        """Return the models of the same run in which the mutated replies are errors instead."""
        return self._models(played, refuse)

    def undisturbed(self, played: Played) -> list[str]:
        """Return the models of the same run without any mutation."""
        return self._models(played, leave)

    def _models(self, played: Played, do: Mutate) -> list[str]:
        kind, bad = (played.kind, played.bad) if do is refuse else ("", ())
        key = played.case.variant, played.case.form, kind, bad
        if key not in self._known:
            self._known[key] = self._play(played.case, kind, bad, do).models
        return self._known[key]

    def keys(self, variant: Variant) -> dict[str, Any]:
        """Return the run config of a variant."""
        given = owners_config(
            self.folder / "owners.npz", num_server_rounds=ROUNDS, fraction_evaluate=1.0,
            local_test_fraction=0.3, cache_dir=str(self.folder / "cache"), progress="log", run_name="fuzz",
            state_dir=str(self.folder / "state"), runs_dir=str(self.folder / "runs"),
            roll_call_timeout=5.0, round_timeout=30.0,
        )  # fmt: skip
        return given | dict(variant.keys)

    def _play(self, case: Case, kind: str, bad: tuple[int, ...], do: Mutate) -> Played:
        for name in ("runs", "state"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        nodes, is_packed = FORMS[case.form]
        played = Played(case, kind, bad)
        config = read_config(self.keys(VARIANTS[case.variant]))
        grid: Any = FuzzGrid(nodes, as_run_config(config), played, bad, do)
        with _watched(played):
            try:
                played.folder = server.run(PackingGrid(grid) if is_packed else grid, config)  # type: ignore[arg-type]
            except Exception as err:
                played.no_nodes = isinstance(err, NodesError)
                played.error = "".join(traceback.format_exception(err))
        folder = RunFolder(self.folder / "runs" / "fuzz")
        with contextlib.suppress(StateError):  # `check` reads the files with a parser of its own
            played.rows, played.clients, played.result = folder.rounds(), folder.clients(), folder.result()
        return played


@contextlib.contextmanager
def _watched(played: Played) -> Iterator[None]:
    """Keep snapshots, terminal and log of the runs of the block."""

    class Keeper(Recorder):
        def round_done(self, row: Any, clients: Any, snapshot: Snapshot, clock: Any) -> None:
            played.snapshots.append(snapshot)
            super().round_done(row, clients, snapshot, clock)

    out, handler, logger = io.StringIO(), _Lines(), logging.getLogger("flwr")
    kept, logger.handlers, logger.propagate = (logger.handlers, logger.propagate), [handler], False
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(server, "Recorder", Keeper))
        stack.enter_context(mock.patch("os.fsync"))  # the files are gone with the next case
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that overflow: the results are checked
        try:
            yield
        finally:
            logger.handlers, logger.propagate = kept
            played.printed, played.logged = out.getvalue(), handler.lines


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
