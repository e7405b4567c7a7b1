"""Replies that are wrong: of a client whose data are bad, and of a hostile node with a good key."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server_app.deploy.host.resource_limits import proportional_bytes
from tests.faults.case import Rig, case
from tests.faults.federation import MAX_REPLY
from tests.faults.hostile import REPLIES, SPECIAL

MALLORY, MORE = "mallory", "malvolio"  # who sends wrong replies, and who does all else that is wrong
REPLY_BYTES = int(MAX_REPLY[:-1]) << 20
GROWTH_BYTES = 8 * REPLY_BYTES  # that a process of the link may grow by under attack
TRACE = Path("/tmp/bouquet-was-here")  # what the pickle would make if it were run
IN_REPLIES = (
    "NaN", "infinity", "another shape", "another dtype", "a missing array", "an array more", "-1000 examples",
    "infinitely many examples", "a loss of NaN", "no metrics", "another's clients",
)  # fmt: skip


class _Peak(threading.Thread):
    """Watches the memory of the link's processes: at first, and the most."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(daemon=True)
        self.link = rig.fed().machines["link"]
        self.over = threading.Event()
        self.first: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def run(self) -> None:
        while not self.over.wait(0.2):
            for role in ("superlink", "task"):
                for process in self.link.roles().get(role, []):
                    now = proportional_bytes(process.pid)
                    if now:
                        self.first.setdefault(role, now)
                        self.most[role] = max(now, self.most.get(role, 0))


def attacked(rig: Rig, attacks: Sequence[str] = (*REPLIES,)) -> dict[str, Any]:
    """Let a hostile node attack once a round in one run; return what was seen, once for all who ask."""
    found: dict[str, Any] = rig.once(f"attacked: {attacks}", lambda: _attacked(rig, attacks))
    return found


def _attacked(rig: Rig, attacks: Sequence[str]) -> dict[str, Any]:
    TRACE.unlink(missing_ok=True)
    fed = rig.fed()
    rounds = len(attacks) + 2
    deadline = max(15.0, 4 * rig.pace()[0])
    name = MALLORY if REPLIES.keys() >= {*attacks} else MORE
    kit = rig.enrol(name)
    hostile = fed.begin_attack(
        "hostile", fed.address, str(kit / "ca.crt"), str(kit / "node.key"), name, str(REPLY_BYTES),
        json.dumps(list(attacks)),
    )  # fmt: skip
    peak = _Peak(rig)
    try:
        fed.until(lambda: name in fed.online(), 60, f"{name} online")
        run = rig.submit_to(fed, rounds, min_nodes=4, round_timeout=deadline)
        run.wait_round(0)
        time.sleep(1)
        peak.start()
        run.wait_end(rounds * (deadline + 10))
        out, err = hostile.communicate(timeout=120)
    finally:
        peak.over.set()
        with contextlib.suppress(ProcessLookupError):
            hostile.kill()
    assert hostile.returncode == 0, err[-2000:]
    told = json.loads(out)
    missed = [a for a in attacks if a not in told]
    assert not missed, f"not done: {missed}; {told}"
    words = rig.same(run)
    lines = {q["round"]: q["reason"] for q in run.quarantined() if q["client"] == name}
    honest = [q for q in run.quarantined() if q["client"] != name]
    assert not honest, honest
    return {
        "told": told, "lines": lines, "words": words, "first": peak.first, "most": peak.most, "run": run,
    }  # fmt: skip


def named(found: dict[str, Any], attacks: Sequence[str]) -> dict[str, str]:
    """Hold that each of these attacks was quarantined by name; return the log's lines."""
    lines = {}
    for attack in attacks:
        at = found["told"][attack]["round"]
        assert at in found["lines"], f"{attack}, round {at}: not named; {found['told'][attack]}"
        lines[attack] = found["lines"][at]
    return lines


def grown(found: dict[str, Any]) -> str:
    """Hold that no process of the link grew much under attack."""
    told = []
    for role, name in (("superlink", "SuperLink"), ("task", "ServerApp")):
        first, most = found["first"][role], found["most"][role]
        assert most - first <= GROWTH_BYTES, f"{name}: {first >> 20} to {most >> 20} MB"
        told.append(f"{name} {first >> 20} to at most {most >> 20} MB")
    return ", ".join(told)


@case(
    "R7",
    "Replies with NaN, infinity, wrong shapes, dtypes, names and counts",
    "each is refused, named and logged; the model is the same as without them; the run goes on",
    "a hostile node with a valid key sends them one by one",
    tests=("tests/strategies/test_hostile.py",),
)
def wrong_replies(rig: Rig) -> str:
    found = attacked(rig)
    lines = named(found, IN_REPLIES)
    some = lines["NaN"]
    return f"{len(lines)} kinds refused and named ({some[:90]}...); {found['words']}"


@case(
    "R8",
    "All replies of all rounds are bad",
    "the model is kept; the run ends at once and says which clients failed, why, and what to do; it finishes "
    "with --resume once the data are back; same final model",
    "the data files of all three nodes are moved away during round 1",
)
def all_bad(rig: Rig) -> str:
    run = rig.submit(3)
    fed = run.fed
    with fed.held(run, *fed.wards), fed.without_data(*fed.wards):
        fed.release(*fed.wards)
        began = time.monotonic()
        fed.until(lambda: run.job().ended, 180, "the end")
        seconds, job = time.monotonic() - began, run.job()
        assert job.state == "failed", job
        assert all(ward in job.reason for ward in fed.wards), job.reason
        assert "resume the run" in job.reason, job.reason
        rows = run.rows()
        assert {r["model_sha256"] for r in rows} == {rows[0]["model_sha256"]}, rows
        assert not (run.folder / "result.json").exists()
    fed.submit(run.name, run.rounds, resume=True).wait_end()
    return f"ended after {seconds:.1f} s: {job.reason[:100]}; model kept; resumed: {rig.same(run)}"


@case(
    "R17",
    "A reply of twice the allowed size",
    "it is refused during the upload, and named; memory of SuperLink and ServerApp stays bounded",
    f"a hostile node uploads 2 x {MAX_REPLY}",
)
def too_large(rig: Rig) -> str:
    found = attacked(rig, SPECIAL)
    lines = named(found, ("a reply too large",))
    said = found["told"]["a reply too large"]["said"]
    assert said.startswith("RESOURCE_EXHAUSTED"), said
    return f"{lines['a reply too large'][:110]}; {grown(found)}"


@case(
    "S6",
    "A pickle, an .npy that claims 30 GB, an unknown form, a zip with ..",
    "nothing runs, nothing is allocated, the reply is refused and named; the run goes on",
    "a hostile node sends them; a bundle that leaves its folder",
    tests=(
        "tests/task/test_npy.py",
        "tests/task/test_wire.py",
        "tests/deploy/test_warm.py::test_a_bundle_that_cannot_be_read_differs",
    ),
)
def bombs(rig: Rig) -> str:
    found = attacked(rig)
    lines = named(found, ("an .npy of 30 GB", "a pickle", "an unknown form"))
    assert not TRACE.exists(), "the pickle was run"
    return f"{lines['an .npy of 30 GB'][:90]}; {lines['a pickle'][:80]}; {grown(found)}"


@case(
    "S8",
    "A captured call sent again; a reply in another node's name; a flood; half a reply",
    "each is refused; the run goes on within its deadlines",
    "a hostile node sends them; the metadata of an earlier call are sent again",
)
def replays(rig: Rig) -> str:
    found = attacked(rig, SPECIAL)["told"]
    assert found["a reply in another node's name"]["said"].startswith("PERMISSION_DENIED"), found
    assert found["a flood"]["said"].startswith("RESOURCE_EXHAUSTED"), found["a flood"]
    assert found["a replay"]["said"].startswith("ABORTED"), found["a replay"]
    member = rig.member()
    assert member["the same call again"].startswith("ABORTED"), member
    assert member["as another node"].startswith("UNAUTHENTICATED"), member
    assert member["activate another's key"].startswith("UNAUTHENTICATED"), member
    return "; ".join(
        f"{name}: {found[name]['said'][:60]}"
        for name in ("a replay", "a reply in another node's name", "a flood")
    )
