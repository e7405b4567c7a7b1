"""Why a run had too few usable replies: its error says so, and ends it at once where no try would help."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message

from strategies import FedAvg
from strategies.engine.journal import Journal
from strategies.engine.refusals import failed_again, reasons, refused_for_good, too_few_replies
from strategies.engine.registration_phase import RegistrationPhase
from strategies.membership.client_registry import ClientRegistry
from task.config.read import read_checked
from task.errors import (
    LASTING,
    CodeError,
    ConfigError,
    DataError,
    NodesError,
    OrderError,
    RefusedError,
    RepliesError,
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
from task.features import against_divergence
from task.wire import messages as wire
from task.wire.messages import RejectedReply
from tests.strategies.test_faults import WARDS, wards
from tests.support.apps import adds, named_app
from tests.support.federation import Keep
from tests.support.grid import LocalGrid


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
        (WireError("training message: expected a record 'w'; got none"), "order"),
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


def test_a_reason_has_no_number_of_a_node_and_its_sentence_one_full_stop() -> None:
    lines = [line(c, 'node 6014866166875244395: config: "cnn" expects images. Choose another.') for c in "ab"]
    said = 'round 1: client a, b: config: "cnn" expects images. Choose another. Correct that, and'
    assert str(too_few_replies("round 1", lines, lines)).startswith(said)
    assert reasons([line("a", "node ward-1: no")]) == "client a: node ward-1: no"


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
    [
        ("policy: no", RefusedError, 1),
        ("busy", NodesError, 5),
        ("MemoryError at x", TooLittleMemoryError, 2),
        ("order: training message: expected record 'w'; got none", OrderError, 2),
    ],
)
def test_a_run_that_all_nodes_refuse_ends_in_its_first_round_and_says_why(
    reason: str, kind: type[Exception], rounds: int
) -> None:
    keep = Strict()
    with pytest.raises(kind, match=reason) as caught:
        play_wards(keep, dict.fromkeys(WARDS, reason))
    assert [row["round"] for row in keep.rows] == list(range(rounds))
    assert "ward-1" in str(caught.value)


def play_wards(keep: Keep, reasons: dict[str, str], begin: int = 1, field: str = "") -> Keep:
    """Do five rounds of the wards; those with a reason fail for it from a round on."""

    def refuse(node: int, reply: Message) -> Message:
        name = names[reply.metadata.src_node_id]
        trains = wire.METRICS in reply.content and "roll_call" not in reply.content
        if trains and int(reply.metadata.group_id) >= begin and name in reasons:
            line = RejectedReply(name, 1, field, "a trained client", reasons[name])
            reply.content.clear()
            reply.content.update(wire.reply_content(wire.NodeReply([], {}, failed=[line])))
        return reply

    grid = wards(tamper=refuse)
    names = {grid.node(i): ward for i, ward in enumerate(WARDS)}
    initial = wire.pack_arrays({"w": np.zeros(2, np.float32)})
    FedAvg().start(grid, initial, 5, timeout=5.0, journal=keep)
    return keep


class Remarks(Strict):
    """Notes what the user is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.remarks: list[str] = []

    def remark(self, line: str) -> None:
        self.remarks.append(line)


@pytest.mark.parametrize(
    ("reasons", "field", "rounds"),
    [
        (dict.fromkeys(WARDS, "data: line 3"), "", 4),
        (dict.fromkeys(WARDS, "busy"), "", 6),
        (dict.fromkeys(WARDS, "NaN"), "arrays/w", 6),  # a model that diverged may recover
        ({"ward-1": "data: line 3"}, "", 6),
    ],
)
def test_a_run_that_has_trained_ends_with_its_model_when_no_client_can_train_any_more(
    reasons: dict[str, str], field: str, rounds: int
) -> None:
    keep = play_wards(Remarks(), reasons, begin=2, field=field)
    assert [row["round"] for row in keep.rows] == list(range(rounds))
    ends = [line for line in keep.remarks if "the run ends after round 3: rounds 2 to 3: " in line]  # type: ignore[attr-defined]
    assert len(ends) == (rounds < 6)
    assert all("data: line 3. Correct these data" in line for line in ends)
    rest = Remarks()
    rest.snapshot = keep.snapshots[-1]
    assert [row["round"] for row in play_wards(rest, {}).rows] == list(range(rounds, 6))  # it may be resumed


def test_a_run_whose_replies_are_all_unusable_ends_with_its_second_round_and_says_it_once() -> None:
    keep = Strict()
    with pytest.raises(RepliesError) as caught:
        play_wards(keep, {ward: f"{i}e33" for i, ward in enumerate(WARDS)}, field="arrays/w")
    assert [row["round"] for row in keep.rows] == [0, 1]
    assert str(caught.value).count("arrays/w") == 1
    assert "client ward-1, ward-2, ward-3: field 'arrays/w'" in str(caught.value)
    assert "Repair" not in str(caught.value)


def test_clients_that_were_drawn_stand_for_the_others_if_all_fail_alike() -> None:
    """Twelve of forty clients are asked in each round; of some nodes' clients no reply is usable."""
    amounts = {f"c{i:02}": 0.5 for i in range(40)}

    def rounds(bad: set[int], min_replies: int) -> list[int]:
        def nan(node: int, reply: Message) -> Message:
            if node in bad and wire.ARRAYS in reply.content:
                for name, array in (record := reply.content.array_records[wire.ARRAYS]).items():
                    record[name] = Array(np.full_like(array.numpy(), np.nan))
            return reply

        hosts = [{"client-name": name} for name in amounts]
        counts = dict.fromkeys(amounts, 1)
        app = named_app(lambda context: {str(context.node_config["client-name"]): 1}, adds(amounts, counts))
        keep, initial = Strict(), wire.pack_arrays({"w": np.zeros(2, np.float32)})
        run = FedAvg(fraction_train=0.3, min_replies=min_replies, seed=4)
        with suppress(RepliesError, NodesError):
            run.start(LocalGrid(app, hosts, tamper=nan), initial, 5, timeout=5.0, journal=keep)
        return [row["round"] for row in keep.rows]

    assert rounds(set(range(40)), 1) == [0, 1]
    assert rounds(set(range(39)), 12)[:4] == [0, 1, 2, 3]
    assert rounds(set(range(0, 40, 2)), 1) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dataset": "csv"}, True),
        ({"dataset": "csv", "standardise": True}, False),
        ({"dataset": "digits"}, False),
    ],
)
def test_a_table_that_is_not_standardised_is_named_as_the_likely_cause_of_divergence(
    keys: dict[str, Any], said: bool
) -> None:
    remedy = against_divergence(read_checked(keys))
    assert ("standardise" in remedy) == said
    nan = [RejectedReply("a", 1, "arrays/w", "finite numbers", "NaN")]
    other = [RejectedReply("a", 1, "arrays/w", "shape (2,)", "(3,)")]
    assert (remedy in str(too_few_replies("round 1", nan, nan, remedy))) or not said
    assert "standardise" not in str(too_few_replies("round 1", other, other, remedy))


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
    assert refused_for_good(first, "ab", 1, before_end=True, again=failed_again({}, first.values())) == []
    again = {c: line(c, "RuntimeError (not enough memory) at torch") for c in "ab"}
    twice = failed_again(first, again.values())
    lasting = refused_for_good(again, "ab", 1, before_end=True, again=twice)
    error = too_few_replies("rounds 1 to 2: expected 1", again.values(), lasting)
    assert type(error) is TooLittleMemoryError
    assert "give these nodes more memory" in str(error)
    assert kind_of(error) == "memory"
    assert failed_again(first, [line("a", "busy")]) == set()


def test_a_lack_of_memory_is_said_without_the_errors_own_words() -> None:
    err = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes.")
    assert public(err).startswith("RuntimeError (not enough memory)")
    assert of_memory(public(err))
    assert of_memory(public(MemoryError("64 bytes")))
