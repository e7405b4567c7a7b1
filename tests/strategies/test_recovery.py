"""A finite reply that spoils the model: the run goes back to the last one that clients could train from."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from server_app.run.checkpoint import Checkpoint
from strategies import strategy_of
from strategies.engine.fold import Folded
from strategies.engine.journal import Snapshot
from strategies.engine.recovery import LastGood, oldest_checkpoint
from strategies.engine.state import ServerState
from task.numerics.arrays import sha256
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.support.federation import SIZES, Keep, OneRun, Played, owners_config, play
from tests.support.liar import Tamper, liar, times

HUGE = 1e8  # below what a single record is refused for; the model that it makes overflows in training


def run(owners: Path, algorithm: str, tamper: Any = None, journal: Keep | None = None, **keys: Any) -> Played:
    given = {"num_server_rounds": 5, "model": "2nn", "local_test_fraction": 0.25, **keys}
    return play(
        owners_config(owners, algorithm=algorithm, **given), nodes=len(SIZES), tamper=tamper, journal=journal
    )


def huge(a: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return times(HUGE)(a)


SPOILED = {
    "fedavg": {}, "fedatt": {}, "fedavgm": {}, "fednova": {}, "scaffold": {}, "feddyn": {},
    "adaptive-tau": {"adaptive_tau__budget": 1e6}, "fedprox": {}, "fsvrg": {}, "qfedavg": {},
    "apple": {"fraction_evaluate": 1.0},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("algorithm", sorted(SPOILED))
def test_a_run_survives_a_finite_reply_from_which_the_others_diverge(algorithm: str, owners: Path) -> None:
    played = run(owners, algorithm, liar(arrays=huge, rounds=[2]), **SPOILED[algorithm])
    rows = played.rows
    assert [row["rolled_back"] for row in rows] == [None, None, None, 1, None, None]
    assert [row["skipped"] for row in rows[1:]] == [False, False, True, False, False]
    assert rows[3]["model_sha256"] == rows[1]["model_sha256"] != rows[2]["model_sha256"]
    assert rows[3]["answered"] < len(SIZES) / 2
    assert rows[4]["answered"] == rows[5]["answered"] == len(SIZES)
    assert all(np.isfinite(a).all() for a in played.arrays(5).values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_log_says_so(owners: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        run(owners, "fedavg", liar(arrays=huge, rounds=[2]))
    said = [r.getMessage() for r in caplog.records if "rolling back" in r.getMessage()]
    why = "round 3: most clients diverge from the model of round 2"
    assert said == [f"{why}; rolling back to the model after round 1"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_liar_that_does_it_again_is_undone_again(owners: Path) -> None:
    rows = run(owners, "fedavg", liar(arrays=huge, rounds=[2, 4]), num_server_rounds=6).rows
    assert [row["rolled_back"] for row in rows] == [None, None, None, 1, None, 3, None]
    assert len({rows[t]["model_sha256"] for t in (1, 3, 5)}) == 1
    assert rows[6]["answered"] == len(SIZES)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_clients_that_diverge_from_the_proved_model_itself_go_nowhere(owners: Path) -> None:
    """There is one step back: what diverges from the last good model too diverges for reasons of its own."""
    everyone = liar(arrays=times(float("nan")), rounds=[3, 4], nodes=range(len(SIZES)))
    rows = run(owners, "fedavg", everyone).rows
    assert [row["rolled_back"] for row in rows] == [None, None, None, 1, None, None]
    assert [row["skipped"] for row in rows[1:]] == [False, False, True, True, False]


def test_replies_that_are_missing_or_misshapen_are_no_reason_to_go_back(owners: Path) -> None:
    def cut(a: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(list(a.items())[1:])

    rows = run(owners, "fedavg", liar(arrays=cut, rounds=[3], nodes=range(len(SIZES)))).rows
    assert [row["rolled_back"] for row in rows] == [None] * 6
    assert rows[3]["model_sha256"] == rows[2]["model_sha256"]


def test_what_adaptive_tau_has_spent_stays_spent(owners: Path) -> None:
    keys = {"adaptive_tau__budget": 1e6, "adaptive_tau__fixed_tau": 2}
    played = run(owners, "adaptive-tau", liar(arrays=huge, rounds=[2]), **keys)
    spent = [s.numbers["spent"] for s in played.keep.snapshots]
    assert spent == sorted(spent)
    assert len(set(spent)) == len(spent)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm"])
def test_a_resumed_run_goes_back_as_well(algorithm: str, every: int, owners: Path, tmp_path: Path) -> None:
    """It was killed in round 3, the model of round 2 being the bad one, and had a checkpoint on disk."""
    tamper = liar(arrays=huge, rounds=[2])
    whole = run(owners, algorithm, tamper)
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").mkdir()
    for snapshot in whole.keep.snapshots[:3]:
        if snapshot.round % every == 0 or snapshot.round == 2:
            checkpoint.commit(snapshot, checkpoint.write_arrays(snapshot), {})
    found = Checkpoint(tmp_path / "checkpoint").read()
    assert found is not None
    assert found[0].good is not None
    again = run(owners, algorithm, tamper, Keep(found[0]))
    for key in ("model_sha256", "rolled_back", "skipped"):
        assert [row[key] for row in again.rows] == [row[key] for row in whole.rows[3:]]


class Filed(Keep):
    """Keeps checkpoints in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir()
        self.checkpoint, self.filed, self.used = Checkpoint(folder), set[int](), list[int]()

    def round_done(self, row: Any, clients: Any, snapshot: Snapshot, clock: Any) -> None:
        super().round_done(row, clients, snapshot, clock)
        self.checkpoint.commit(snapshot, self.checkpoint.write_arrays(snapshot), {})
        self.filed.add(snapshot.round)

    def mapped(self, server_round: int, like: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        while server_round not in self.filed:  # it is written while the next round trains
            time.sleep(0.01)
        found = self.checkpoint.mapped(server_round, like)
        self.used += [server_round] if found else []
        return found


@pytest.mark.skipif(os.name != "posix", reason="states lie in files on POSIX systems alone")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm", "scaffold"])
def test_a_state_in_the_file_of_its_checkpoint_is_gone_back_to(
    algorithm: str, owners: Path, tmp_path: Path
) -> None:
    journal, tamper = Filed(tmp_path / "checkpoint"), liar(arrays=huge, rounds=[2])
    rows = run(owners, algorithm, tamper, journal).rows
    assert rows[3]["rolled_back"] == 1
    assert journal.used == [0, 1, 3, 4]  # from which rounds 1, 2, 4 and 5 trained
    shas = [row["model_sha256"] for row in run(owners, algorithm, tamper).rows]
    assert [row["model_sha256"] for row in rows] == shas


def trouble(bad: dict[int, range], gone: dict[int, range]) -> Tamper:
    """Return a tamper function: by round, the nodes whose clients diverge and those that do not answer."""

    def tamper(node: int, reply: Message) -> Message | None:
        server_round = int(reply.metadata.group_id)
        if reply.metadata.message_type != "train":
            return reply
        if node in gone.get(server_round, ()):
            return None
        spoil = liar(arrays=times(float("nan")), nodes=bad.get(server_round, ()))
        return spoil(node, reply)

    return tamper


def kept_in(owners: Path) -> dict[str, Any]:
    """Return keys of a run whose clients keep something, with a folder for it."""
    return {"num_server_rounds": 8, "state_dir": str(owners.parent / "state"), "round_timeout": 1.0}


@pytest.mark.parametrize("every", [1, 4])
def test_a_resumed_run_that_lacks_a_node_may_go_back_from_its_checkpoint(every: int, owners: Path) -> None:
    """Without the node most clients diverge; what they kept before the checkpoint's last round is there."""
    keys = kept_in(owners) | {"checkpoint_every": every}
    last = 5 + every  # the latest round whose training may be lost with the server after the checkpoint of 4
    keys["num_server_rounds"] = last
    first = run(owners, "scaffold", trouble({5: range(2)}, {}), OneRun(), **keys)
    assert [row["rolled_back"] for row in first.rows] == [None] * (last + 1)
    keys["num_server_rounds"] = 8
    journal = OneRun(first.keep.snapshots[4])
    rows = run(owners, "scaffold", trouble({5: range(2)}, {5: range(2, 4)}), journal, **keys).rows
    assert [row["rolled_back"] for row in rows] == [3, None, None, None]
    assert [row["answered"] for row in rows] == [1, 5, 5, 5]


def test_a_run_may_go_back_over_many_rounds_in_which_few_answered(owners: Path) -> None:
    """No model of these rounds proved itself."""
    tamper = trouble({6: range(5)}, dict.fromkeys((3, 4, 5), range(3)))
    rows = run(owners, "scaffold", tamper, **kept_in(owners)).rows
    assert [row["rolled_back"] for row in rows] == [None] * 6 + [1, None, None]
    assert [row["answered"] for row in rows] == [0, 5, 5, 2, 2, 2, 0, 5, 5]


# ------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    ("server_round", "every", "wanted"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1), (9, 1, 7), (9, 5, 5), (6, 5, 0), (7, 5, 5), (12, 5, 10), (9, 0, 7)],
)
def test_the_oldest_checkpoint_to_resume_from(server_round: int, every: int, wanted: int) -> None:
    """The previous round's checkpoint may not be there yet, that of two rounds before is if it is due."""
    assert oldest_checkpoint(server_round, every) == wanted


def snapshot(number: int, good: Snapshot | None = None) -> Snapshot:
    return Snapshot(number, {"arrays/w": np.full(3, number, np.float32)}, {"falls": number}, good)


def test_a_checkpoint_keeps_the_file_of_the_state_to_go_back_to(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    for n in (1, 2, 3):
        at = snapshot(n, snapshot(n - 1) if n > 1 else None)
        checkpoint.commit(at, checkpoint.write_arrays(at), {"n": n})
    assert sorted(p.name for p in tmp_path.glob("round-*")) == ["round-2.safetensors", "round-3.safetensors"]
    found = Checkpoint(tmp_path).read()
    assert found is not None
    assert (found[0].round, found[1]) == (3, {"n": 3})
    assert found[0].good is not None
    assert sha256(found[0].good.arrays) == sha256(snapshot(2).arrays)
    assert found[0].good.numbers == {"falls": 2}
    proved = snapshot(4)
    checkpoint.commit(proved, checkpoint.write_arrays(proved), {})
    assert [p.name for p in tmp_path.glob("round-*")] == ["round-4.safetensors"]


def test_the_file_that_a_checkpoint_counts_on_is_not_written_again_after_a_resume(tmp_path: Path) -> None:
    """A crash between the two writes would leave a checkpoint whose checksum is of other bytes."""
    first = Checkpoint(tmp_path)
    one = replace(snapshot(1), arrays=snapshot(1).arrays | {"selection/names": np.zeros(2, np.uint8)})
    first.commit(one, first.write_arrays(one), {})
    again = Checkpoint(tmp_path)
    assert again.read() is not None
    before = (tmp_path / "round-1.safetensors").read_bytes()
    two = snapshot(2, snapshot(1))
    again.commit(two, again.write_arrays(two), {})
    assert (tmp_path / "round-1.safetensors").read_bytes() == before
    found = Checkpoint(tmp_path).read()
    assert found is not None
    assert found[0].good is not None


def test_a_checkpoint_without_such_a_state_reads_as_before(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.commit(snapshot(1), checkpoint.write_arrays(snapshot(1)), {})
    assert "good" not in checkpoint.latest.read_text()
    found = checkpoint.read()
    assert found is not None
    assert found[0].good is None


# --------------------------------------------------------------------------------------- the judge


def folded(good: int, bad: int, late: int = 0) -> Folded:
    lines = [wire.RejectedReply(f"bad-{i}", 1, "arrays/w", "finite numbers", "NaN") for i in range(bad)]
    lines += [wire.RejectedReply(f"late-{i}", 1, "", "a reply within 5 s", "none") for i in range(late)]
    return Folded(None, lines, {f"good-{i}": {} for i in range(good)}, 0)


def test_who_decides() -> None:
    state = ServerState({"w": np.zeros(1, np.float32)})
    for good, bad, late, back in ((2, 2, 0, False), (1, 2, 2, True), (0, 1, 4, True), (3, 2, 0, False)):
        judge = LastGood()
        judge.begin(1, state)
        assert judge.judge([folded(5, 0)], 5) is None
        judge.updated()
        judge.begin(2, state)
        found = judge.judge([folded(good, bad, late)], 5)
        assert (found is not None) is back, (good, bad, late)
        assert found is None or found.round == 0


def test_a_model_that_only_few_trained_from_has_not_proved_itself() -> None:
    states = [ServerState({"w": np.full(1, i, np.float32)}) for i in range(3)]
    judge = LastGood()
    for server_round, good in ((1, 5), (2, 1)):  # of 5
        judge.begin(server_round, states[server_round - 1])
        assert judge.judge([folded(good, 0, 5 - good)], 5) is None
        judge.updated()
    judge.begin(3, states[2])
    back = judge.judge([folded(1, 4)], 5)
    assert back is not None
    assert (back.round, back.state) == (0, states[0])


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_private_run_never_goes_back(noise: float) -> None:
    """How many clients diverged is not protected, and to go back would show it."""
    judge = strategy_of("fedavg")(read_config({"dp.noise": noise})).last_good
    state = ServerState({"w": np.zeros(1, np.float32)})
    judge.begin(1, state)
    judge.judge([folded(5, 0)], 5)
    judge.updated()
    judge.begin(2, state)
    assert (judge.judge([folded(0, 5)], 5) is None) is bool(noise)
