"""The server side dies: ServerApp, SuperLink, the whole machine."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence

import psutil

from server_app.run.checkpoint import Checkpoint
from tests.faults.case import NotCoveredError, Rig, case
from tests.faults.federation import DISK_MB
from tests.faults.machine import until
from tests.faults.runs import Run

ROUNDS = 10
LATEST = 0.9  # of the time of an undisturbed run: the last moment at which something is killed


def kill_at(rig: Rig, victims: Sequence[str]) -> tuple[Run, list[str]]:
    """Kill processes of the link at random moments of one run; return the run and what was done.

    Args:
        rig: The rig.
        victims: Of each, when it is killed: "serverapp", "superlink" or "link".
    """
    _, whole = rig.pace()
    run, began, told = rig.submit(ROUNDS), time.monotonic(), []
    moments = sorted(rig.random.uniform(0.0, LATEST * whole) for _ in victims)
    for moment, victim in zip(moments, victims, strict=True):
        last = -1
        while time.monotonic() < began + moment:
            last = max(last, run.done())
            time.sleep(0.01)
        if run.job().ended:
            break
        link = run.fed.machines["link"]
        at = run.done()
        if victim == "link":
            link.kill()
            checkpoint_is_whole(run)
            run.fed.start_link()
        else:
            role = "task" if victim == "serverapp" else "superlink"
            with contextlib.suppress(psutil.NoSuchProcess):
                link.one(role).kill()
            checkpoint_is_whole(run)
        told.append(f"{victim} {moment:.1f} s in, after round {at}")
        killed = time.monotonic()
        run.wait_round(min(at + 1, ROUNDS))
        told[-1] += f", next round {time.monotonic() - killed:.1f} s later"
        rig.facts.setdefault("recovery", []).append(time.monotonic() - killed)
        began += time.monotonic() - killed  # the next moment is one of the run's own time
    run.wait_end()
    return run, told


def checkpoint_is_whole(run: Run) -> None:
    """Hold that what a killed server left can be read, and is a round that it had told of, or the next."""
    found = Checkpoint(run.folder / "checkpoint").read()
    if found is not None:
        assert 0 <= found[0].round <= ROUNDS


def each(rig: Rig, victim: str) -> str:
    """Kill one process at a random moment of a run, as often as is wanted."""
    slowest, tales = 0.0, []
    for _ in range(rig.repeat):
        run, told = kill_at(rig, [victim])
        rig.same(run)
        tales += told
        slowest = max([slowest, *rig.facts.get("recovery", [])])
        rig.facts["recovery"] = []
    assert slowest <= 90, f"{slowest:.0f} s until the next round; {tales}"
    some = "; ".join(tales[:2])
    return (
        f"{len(tales)} of {rig.repeat} runs hit ({some}), all models as undisturbed, slowest {slowest:.1f} s"
    )


@case(
    "R9",
    "ServerApp killed",
    "the run resumes by itself from the last committed round, within 90 s; same final model",
    "SIGKILL at a random moment of a 10-round run",
)
def server_app_killed(rig: Rig) -> str:
    return each(rig, "serverapp")


@case(
    "R10",
    "SuperLink killed",
    "the run finishes and no round is lost; same final model",
    "SIGKILL at a random moment of a 10-round run; its supervisor restarts it",
)
def superlink_killed(rig: Rig) -> str:
    return each(rig, "superlink")


@case(
    "R11",
    "SuperLink away for 75 s",
    "the run goes on when it is back, without any intervention; same final model",
    "SIGSTOP to the supervisor, SIGKILL to the SuperLink, 75 s, SIGCONT",
)
def superlink_away(rig: Rig) -> str:
    run = rig.submit(4)
    run.wait_round(1)
    link = run.fed.machines["link"]
    supervisor, superlink = link.one("supervisor"), link.one("superlink")
    supervisor.suspend()
    superlink.kill()
    try:
        time.sleep(75)
        at = run.done()
    finally:
        supervisor.resume()
    back = time.monotonic()
    run.wait_round(min(at + 1, 4))
    seconds = time.monotonic() - back
    run.wait_end()
    seen = f"next round {seconds:.1f} s after it was back, attempt {run.job().attempts}"
    return f"{seen}; {rig.same(run)}"


@case(
    "R31",
    "A rolling restart: every node and the link, one after the other, during a run",
    "with min-replies = all nodes no round is lost or skipped; same final model",
    "`bouquet node` and `bouquet link` are ended by SIGTERM and restarted, each after a further round",
)
def rolling_restart(rig: Rig) -> str:
    run = rig.submit(12, min_replies=3)
    fed, told = run.fed, []
    run.wait_round(1)
    for name in (*fed.wards, "link"):
        began, at = time.monotonic(), run.done()
        fed.machines[name].stop()
        fed.start_link() if name == "link" else fed.start_node(name)
        fed.until(lambda: fed.online() >= set(fed.wards), 90, f"all online after {name}")
        run.wait_round(min(at + 1, run.rounds))
        told.append(f"{name} {time.monotonic() - began:.1f} s")
    run.wait_end()
    assert not run.quarantined(), run.quarantined()
    return f"next round after {', '.join(told)}; {rig.same(run)}"


@case(
    "R12",
    "Kills at random moments, including the whole machine",
    "there is always a readable checkpoint, and rounds are in order, each once; same final model",
    "SIGKILL to the ServerApp, the SuperLink and the whole link at random moments of one run",
    tests=("tests/server_app/test_checkpoint.py",),
)
def killed_again_and_again(rig: Rig) -> str:
    kills = 0
    for _ in range(rig.repeat):
        victims = ["serverapp", "superlink", "link"]
        rig.random.shuffle(victims)
        run, told = kill_at(rig, victims)
        rig.same(run)
        kills += len(told)
    return (
        f"{kills} kills in {rig.repeat} run(s); rounds in order, checkpoints whole, all models as undisturbed"
    )


@case(
    "R16",
    "SuperLink's disk full, database locked for 10 s",
    "the health check is red within 30 s; the run goes on by itself after the repair; same final model",
    "an exclusive lock on the database; then a file that fills its disk",
)
def database_in_trouble(rig: Rig) -> str:
    run = rig.submit(6)
    run.wait_round(1)
    path = run.fed.link_kit.database
    with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        time.sleep(10)
        database.execute("ROLLBACK")
    at = run.done()
    seconds = run.wait_round(min(at + 1, 6))
    told = f"locked 10 s: next round {seconds:.1f} s after"
    if rig.network is None:
        run.wait_end()
        rig.same(run)
        raise NotCoveredError(f"{told}; a full disk needs root, for a disk of its own")
    filler = run.fed.link_kit.state / "filler"
    began = time.monotonic()
    with contextlib.suppress(OSError), filler.open("wb") as file:
        for _ in range(DISK_MB):
            file.write(b"\0" * (1 << 20))
            file.flush()
    try:
        red = until(_red(run), 30, "a red health check")
        seconds_red = time.monotonic() - began
        time.sleep(3)
    finally:
        filler.unlink()
    mended = time.monotonic()
    run.wait_end()
    seconds = time.monotonic() - mended
    return (
        f"{told}; full: red after {seconds_red:.1f} s ({red}), finished {seconds:.1f} s after the repair; "
        f"{rig.same(run)}"
    )


def _red(run: Run) -> Callable[[], str]:
    def look() -> str:
        status = run.fed.status()
        return str(status["warnings"][0])[:70] if status["state"] == "red" else ""

    return look
