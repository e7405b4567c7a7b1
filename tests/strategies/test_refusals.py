"""Why a run had too few usable replies: its error says so, and ends it at once where no try would help."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from strategies import FedAvg
from strategies.engine.journal import Journal
from strategies.engine.refusals import reasons, refused_for_good, short_again, too_few_replies
from strategies.engine.registration_phase import RegistrationPhase
from strategies.membership.client_registry import ClientRegistry
from task.errors import (
    LASTING,
    CodeError,
    ConfigError,
    DataError,
    NodesError,
    RefusedError,
    StateError,
    TooLittleMemoryError,
    WireError,
    kind_in,
    kind_of,
    of_memory,
    public,
    split_kind,
    with_kind,
)
from task.wire import messages as wire
from task.wire.messages import RejectedReply
from tests.strategies.test_faults import WARDS, wards
from tests.support.federation import Keep


def full() -> StateError:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as err:
            raise StateError("ward-1.npz: cannot be written") from err
    except StateError as err:
        return err


@pytest.mark.parametrize(
    ("err", "kind"),
    [
        (ConfigError("x"), "config"),
        (DataError("x"), "data"),
        (StateError("x"), "state"),
        (RefusedError("policy: min-examples = 10"), "policy"),
        (ConfigError("policy: packages: expected one"), "policy"),
        (TypeError("x"), "code"),
        (KeyError("w"), "code"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "code"),
    ],
)
def test_what_lasts_has_the_word_of_its_kind_in_front(err: Exception, kind: str) -> None:
    assert kind_of(err) == kind
    said = with_kind(err, str(err))
    assert said == with_kind(err, said), "the word stands there once"
    for through in (said, f"node ward-1: {said}", f"<class 'x.BouquetError'>:<'{said}'>"):
        assert kind_in(through) == kind
    assert split_kind(said)[0] == kind


@pytest.mark.parametrize(
    "err",
    [
        full(),
        OSError(errno.EIO, "x"),
        ConnectionResetError(),
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        NodesError("too few"),
        WireError("odd"),
        RefusedError("not training: on battery"),
    ],
)
def test_what_may_pass_has_none(err: Exception) -> None:
    assert kind_of(err) not in LASTING
    assert kind_in(with_kind(err, f"node ward-1: {err}")) == ""


def line(client: str, got: str, field: str = "") -> RejectedReply:
    return RejectedReply(client, 1, field, "a reply", got)


def test_reasons_are_said_once_each_with_their_clients() -> None:
    lines = [
        line("a", "policy: no"),
        line("b", "policy: no"),
        *(line(f"c{i}", f"reason {i}") for i in range(5)),
    ]
    text = reasons(lines)
    assert text == "client a, b: policy: no; client c0: reason 0; client c1: reason 1; and 3 more clients"


@pytest.mark.parametrize(
    ("got", "kind", "advice"),
    [
        ("config: no such layer", ConfigError, "Correct that"),
        ("data: line 3", DataError, "Correct these data"),
        ("policy: min-examples = 10", RefusedError, "[policy] of their kit.toml"),
        ("code: NameError at net, line 3", CodeError, "That is a bug"),
        ("it went offline", NodesError, "Repair the nodes"),
    ],
)
def test_nodes_are_to_be_repaired_only_where_they_are_at_fault(
    got: str, kind: type[Exception], advice: str
) -> None:
    lines = {c: line(c, got) for c in "abc"}
    error = too_few_replies("round 1: expected 2", lines.values(), refused_for_good(lines, "abc", 2))
    assert type(error) is kind
    assert advice in str(error)
    assert got in str(error)
    assert ("Repair" in str(error)) == (kind is NodesError)


def test_a_run_may_yet_succeed_while_enough_clients_are_left() -> None:
    lines = {c: line(c, "data: bad") for c in "ab"}
    assert refused_for_good(lines, "abcd", 2) == []
    assert refused_for_good(lines, "abc", 2) == list(lines.values())
    gate = {c: line(c, "NaN", "arrays/w") for c in "ab"}
    assert refused_for_good(gate, "ab", 1, before_end=True) == []
    assert refused_for_good(gate, "ab", 1) == list(gate.values())


class Strict(Keep):
    """A journal that takes a run without training for an error, as a deployed one's does."""

    nothing_trained = Journal.nothing_trained


@pytest.mark.parametrize(
    ("reason", "kind", "rounds"),
    [("policy: no", RefusedError, 1), ("busy", NodesError, 5), ("MemoryError at x", TooLittleMemoryError, 2)],
)
def test_a_run_that_all_nodes_refuse_ends_in_its_first_round_and_says_why(
    reason: str, kind: type[Exception], rounds: int
) -> None:
    def refuse(node: int, reply: Message) -> Message:
        if wire.METRICS in reply.content and "roll_call" not in reply.content:
            reply.content.clear()
            reply.content.update(wire.reply_content(failed(reply)))
        return reply

    def failed(reply: Message) -> wire.NodeReply:
        name = names[reply.metadata.src_node_id]
        return wire.NodeReply([], {}, failed=[RejectedReply(name, 1, "", "a trained client", reason)])

    grid = wards(tamper=refuse)
    names = {grid.node(i): ward for i, ward in enumerate(WARDS)}
    keep = Strict()
    initial = wire.pack_arrays({"w": np.zeros(2, np.float32)})
    with pytest.raises(kind, match=reason) as caught:
        FedAvg().start(grid, initial, 5, timeout=5.0, journal=keep)
    assert [row["round"] for row in keep.rows] == list(range(rounds))
    assert "ward-1" in str(caught.value)


def test_nodes_that_cannot_take_part_for_a_time_end_no_run_for_good() -> None:
    from tests.strategies.test_client_registry import hosts

    def register(reason: str) -> None:
        grid: Any = hosts({"refused": reason}, {"refused": reason})
        RegistrationPhase(ClientRegistry(0.3, 1), 1).run(grid)

    with pytest.raises(NodesError, match="No space left"):
        register("x.npz: [Errno 28] No space left on device")
    with pytest.raises(ConfigError, match="line 3"):
        register("data: line 3")


def test_a_lack_of_memory_lasts_from_the_second_round_on() -> None:
    got = "MemoryError at client_app.training, line 3; the node's own log says more"
    first = {c: line(c, got) for c in "ab"}
    assert refused_for_good(first, "ab", 1, before_end=True, short=short_again({}, first.values())) == []
    again = {c: line(c, "RuntimeError (not enough memory) at torch") for c in "ab"}
    short = short_again(first, again.values())
    lasting = refused_for_good(again, "ab", 1, before_end=True, short=short)
    error = too_few_replies("rounds 1 to 2: expected 1", again.values(), lasting)
    assert type(error) is TooLittleMemoryError
    assert "give these nodes more memory" in str(error)
    assert kind_of(error) == "memory"
    assert short_again(first, [line("a", "busy")]) == set()


def test_a_lack_of_memory_is_said_without_the_errors_own_words() -> None:
    err = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes.")
    assert public(err).startswith("RuntimeError (not enough memory)")
    assert of_memory(public(err))
    assert of_memory(public(MemoryError("64 bytes")))
