"""Nodes die, come late, are slow, or their app fails."""

from __future__ import annotations

import contextlib
import itertools
import time

import psutil

from tests.faults.case import ENDLESS, Rig, case
from tests.faults.runs import Run

READY = "warm: ready for tasks"  # in the log of a node whose process can be asked


def blamed(run: Run, server_round: int, name: str) -> str:
    """Return why a client's reply was left out of a round."""
    lines = [q["reason"] for q in run.row(server_round)["quarantined"] if q["client"] == name]
    assert lines, f"round {server_round} does not name {name}: {run.row(server_round)['quarantined']}"
    return str(lines[0])


def killed(rig: Rig) -> tuple[Run, int]:
    """Kill all processes of ward-2 while it trains; return the run and the round that it was asked in."""
    run = rig.submit(3)
    run.wait_round(1)
    with run.fed.held(run, "ward-2"):
        run.fed.machines["ward-2"].kill()
    return run, run.done() + 1


@case(
    "R1",
    "Node killed during a round",
    "the round ends with the others within 75 s, and names the node",
    "SIGKILL to all processes of ward-2 while it trains; it stays away",
)
def node_killed(rig: Rig) -> str:
    run, asked = killed(rig)
    seconds = run.wait_round(asked)
    why = blamed(run, asked, "ward-2")
    assert run.row(asked)["answered"] == 2
    assert seconds <= 75, f"{seconds:.0f} s; {why}"
    run.wait_end()
    run.fed.start_node("ward-2")
    return f"round {asked} ended {seconds:.1f} s after, with 2 of 3; the log: {why[:110]}"


@case(
    "R2",
    "Node killed and restarted at once",
    "it is back within 75 s and does the work it had; the round is not lost; same final model",
    "SIGKILL to all processes of ward-2 while it trains, then `bouquet node` again",
)
def node_killed_and_back(rig: Rig) -> str:
    run, asked = killed(rig)
    run.fed.start_node("ward-2")
    seconds = run.wait_round(asked)
    run.wait_end()
    assert seconds <= 75, f"{seconds:.0f} s"
    assert run.row(asked)["answered"] == 3
    return f"round {asked} ended {seconds:.1f} s after, with 3 of 3; {rig.same(run)}"


@case(
    "R3",
    "ClientApp's process ended by SIGTERM or SIGKILL; a wrong return value; sys.exit",
    "an answer within 5 s; the order is repeated and the next round uses the node; same final model",
    "signals to the process of a task; an app that ends in each of these ways",
    tests=(
        "tests/system/test_warm.py::test_however_a_task_ends_its_message_is_answered_and_the_next_one_works",
    ),
)
def task_killed(rig: Rig) -> str:
    run = rig.submit(4)
    fed = run.fed
    told = []
    for kill in (psutil.Process.terminate, psutil.Process.kill):
        with fed.held(run, "ward-1"):
            kill(fed.machines["ward-1"].one("task"))
        asked = run.done() + 1
        seconds = run.wait_round(asked)
        assert run.row(asked)["answered"] == 3, run.row(asked)["quarantined"]
        told.append(f"{kill.__name__} {seconds:.1f} s")
    run.wait_end()
    return f"round done with 3 of 3 after {', '.join(told)}; {rig.same(run)}"


@case(
    "R4",
    "ClientApp raises",
    "the client is counted and named with the reason, the round goes on, and the client takes part again "
    "as soon as it can",
    "ward-3's data file is moved away for a round",
)
def client_raises(rig: Rig) -> str:
    run = rig.submit(6)
    fed = run.fed
    run.wait_round(1)
    with fed.without_data("ward-3"):
        hurt = fed.until(
            lambda: next((r["round"] for r in run.rows() if r["quarantined"]), 0), 120, "a quarantined reply"
        )
    why = blamed(run, hurt, "ward-3")
    assert run.row(hurt)["answered"] == 2
    assert 'data-path "[withheld]"' in why, why
    assert "ward-3.csv" in fed.log("ward-3", "warm")
    run.wait_end()
    back = next((r["round"] for r in run.rows() if r["round"] > hurt and r["answered"] == 3), 0)
    assert back, run.quarantined()
    return f"round {hurt} with 2 of 3 ({why[:90]}...), round {back} with 3 of 3 again"


@case(
    "R5",
    "Straggler that needs three times the deadline",
    "the round ends at the deadline + 5 s and names the straggler, which takes part again later",
    "SIGSTOP to the process of ward-2's task, SIGCONT after the round",
)
def straggler(rig: Rig) -> str:
    deadline = max(8.0, 4 * rig.pace()[0])
    run = rig.submit(8, round_timeout=deadline)
    fed = run.fed
    run.wait_round(1)
    with fed.held(run, "ward-2"):
        task = fed.machines["ward-2"].one("task")
        task.suspend()
    asked = run.done() + 1
    run.wait_round(asked)
    took = run.row(asked)["seconds"]["total"]
    why = blamed(run, asked, "ward-2")
    time.sleep(2 * deadline)
    with contextlib.suppress(psutil.NoSuchProcess):  # its message's time to live was over
        task.resume()
    run.wait_end()
    later = [r["round"] for r in run.rows() if r["round"] > asked and r["answered"] == 3]
    assert took <= deadline + 5, f"{took:.1f} s"
    assert later, run.quarantined()
    return (
        f"deadline {deadline:.0f} s: round {asked} took {took:.1f} s ({why[:80]}), back in round {later[0]}"
    )


@case(
    "R6",
    "Too few nodes for a round",
    "the model is kept, the run waits, and says so after roll-call-timeout; it goes on when the nodes are "
    "back",
    "two of three nodes are stopped while min-replies is 3",
)
def too_few(rig: Rig) -> str:
    deadline = max(20.0, 4 * rig.pace()[0])
    run = rig.submit(4, min_replies=3, roll_call_timeout=10.0, round_timeout=deadline)
    fed = run.fed
    run.wait_round(1)
    for name in ("ward-1", "ward-2"):
        fed.machines[name].stop()
    began = time.monotonic()
    fed.until(lambda: run.job().reason, 240, "a reason")
    seconds, why, at = time.monotonic() - began, run.job().reason, run.done()
    assert run.job().state == "running"
    assert not (run.folder / "result.json").exists()
    for name in ("ward-1", "ward-2"):
        fed.start_node(name)
    began = time.monotonic()
    run.wait_end()
    later, rows = time.monotonic() - began, run.rows()
    for before, row in itertools.pairwise(rows):
        assert row["answered"] == 3 or row["model_sha256"] == before["model_sha256"], row
    assert [row["answered"] for row in rows if row["round"] > at] == [3] * (4 - at), run.quarantined()
    seen = f"went on after round {at}, finished {later:.1f} s after they were started"
    return f"after {seconds:.1f} s: {why[:90]}; {seen}"


@case(
    "R15",
    "A node comes late, leaves, and comes back with a new key",
    "it is used at the latest two rounds after the current one, or within 10 s; its old identity is not "
    "counted a second time",
    "ward-3 is started during a run, stopped, revoked and enrolled again",
    tests=("tests/strategies/test_client_identity.py",),
)
def late_and_renewed(rig: Rig) -> str:
    fed = rig.fed()
    fed.machines["ward-3"].stop()
    run = rig.submit_to(fed, ENDLESS, min_nodes=2)
    told = []
    try:
        run.wait_round(1)
        told.append("late: " + _joins(run))
        fed.machines["ward-3"].stop()
        left = run.done()
        gone = fed.until(
            lambda: next((r["round"] for r in run.rows()[left + 1 :] if "ward-3" not in r["selected"]), 0),
            120, "a round without ward-3",
        )  # fmt: skip
        told.append(f"left: not asked from round {gone}, {gone - left} after")
        fed.renew("ward-3")
        told.append("new key: " + _joins(run))
        rows = run.rows()
    finally:
        fed.jobs.ask_to_stop(run.name)
    for row in rows:
        assert len(set(row["selected"])) == len(row["selected"]) == row["asked"], row
        assert row["population"] <= 3, row
    return "; ".join(told)


@case(
    "R28",
    "A node that sleeps for several rounds, like a laptop, and wakes",
    "a run that can do without it goes on; a run that cannot waits, repeats that round, and ends in the "
    "same final model; the node answers by itself within 60 s",
    "SIGSTOP to all processes of ward-2, until a run with min-replies = 2 has done five rounds without it; "
    "then during a training of one with min-replies = 3, until its attempt fails without the node; SIGCONT",
    tests=(
        "tests/strategies/test_faults.py::test_a_round_that_lacks_a_needed_node_is_done_again_when_it_is_back",
        "tests/deploy/test_runner.py::test_nodes_of_a_run_that_has_begun_are_waited_for_however_long",
        "tests/deploy/test_policy.py::test_a_machine_that_sleeps_while_the_program_is_asked_trains",
    ),
)
def sleeps(rig: Rig) -> str:
    run = rig.submit(ENDLESS, roll_call_timeout=20.0)
    fed, node = run.fed, run.fed.machines["ward-2"]
    run.wait_round(1)
    with node.asleep():
        fed.until(lambda: "ward-2" not in fed.online(), 90, "ward-2 offline")
        run.wait_round(run.done() + 6)
        slept = run.done()
    woke = time.monotonic()
    fed.until(lambda: run.done() > slept and run.rows()[-1]["answered"] == 3, 60, "a round with ward-2")
    told = f"back after {time.monotonic() - woke:.1f} s"
    fed.jobs.ask_to_stop(run.name)
    run = rig.submit(4, min_replies=3, roll_call_timeout=20.0)
    run.wait_round(1)
    with contextlib.ExitStack() as sleep:
        with fed.held(run, "ward-2"):
            sleep.enter_context(node.asleep())
        fed.until(lambda: run.job().reason, 180, "a reason")
        at, why = run.done(), run.job().reason
    woke = time.monotonic()
    run.wait_round(at + 1, 60)
    told += f"; waited for: {why[:80]}, next round {time.monotonic() - woke:.1f} s after it woke"
    run.wait_end()
    assert not run.quarantined(), run.quarantined()
    return f"{told}; {rig.same(run)}"


def _joins(run: Run) -> str:
    """Start ward-3, which was stopped; return how long it took to be there, and to be asked."""
    fed = run.fed
    fed.until(lambda: "ward-3" not in fed.online(), 120, "ward-3 offline")  # it counts for a while
    began, before = time.monotonic(), fed.log("ward-3", "warm").count(READY)
    fed.start_node("ward-3")
    fed.until(lambda: "ward-3" in fed.online(), 120, "ward-3 online")
    # It says who it is once its libraries are loaded: on a busy machine many rounds later.
    fed.until(lambda: fed.log("ward-3", "warm").count(READY) > before, 120, f"ward-3's {READY!r}")
    seconds, runs, online = time.monotonic() - began, run.done() + 1, time.monotonic()
    used = fed.until(
        lambda: next((r["round"] for r in run.rows()[runs:] if "ward-3" in r["selected"]), 0),
        120, "a round with ward-3",
    )  # fmt: skip
    later = time.monotonic() - online  # a node that says who it is forks a process; rounds may take less
    seen = f"ready after {seconds:.1f} s, asked {used - runs} rounds and {later:.1f} s later"
    assert used <= runs + 2 or later <= 10, seen
    return seen
