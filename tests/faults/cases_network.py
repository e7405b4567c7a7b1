"""The network: cuts, slow cables, wrong clocks, no way out."""

from __future__ import annotations

import time
from functools import partial

from tests.faults.case import ENDLESS, NotCoveredError, Rig, case
from tests.faults.cases_nodes import blamed
from tests.faults.clock import Clock, possible
from tests.faults.federation import FAR
from tests.faults.runs import Run

RATE = "64kbit"  # at which the model takes about 20 s


@case(
    "R13",
    "A node's network cut for 10, 30 and 80 s",
    "10 and 30 s lose nothing, 80 s at most one round's update; nothing is restarted by hand",
    "iptables DROP in ward-3's network namespace, during its training",
)
def cuts(rig: Rig) -> str:
    net = rig.net()
    told = []
    for cut_s, rounds in ((10, 4), (30, 4), (80, ENDLESS)):
        run = rig.submit(rounds, round_timeout=150.0)
        run.wait_round(1)
        with run.fed.held(run, FAR), net.cut():
            time.sleep(1)
            run.fed.release(FAR)
            time.sleep(cut_s - 1)
        healed = time.monotonic()
        if rounds == ENDLESS:
            run.fed.until(partial(_whole, run), 180, f"a round with {FAR}; {run.quarantined()}")
        else:
            run.wait_end()
        lost = [q for q in run.quarantined() if q["client"] == FAR]
        assert len(lost) <= (1 if cut_s > 60 else 0), lost
        others = [q for q in run.quarantined() if q["client"] != FAR]
        assert not others, others
        words = f"{len(lost)} lost" if lost else f"0 lost, {rig.same(run)}"
        told.append(f"{cut_s} s: {words}, whole {time.monotonic() - healed:.1f} s after")
    return "; ".join(told)


@case(
    "R14",
    "A node's network cut during an upload",
    "the round ends at its deadline + 10 s, the others' replies are kept, and the node is back later",
    f"ward-3 uploads through a token bucket of {RATE} (tc tbf), and is cut after 5 s",
)
def cut_upload(rig: Rig) -> str:
    net = rig.net()
    deadline = max(25.0, 5 * rig.pace()[0])
    run = rig.submit(6, round_timeout=deadline)
    fed = run.fed
    run.wait_round(1)
    with net.slow(RATE):
        with fed.held(run, FAR):
            asked = run.done() + 1
        time.sleep(5)
        assert run.done() < asked, "the upload was over before the cut"
        with net.cut():
            run.wait_round(asked)
    took = run.row(asked)["seconds"]["total"]
    why = blamed(run, asked, FAR)
    assert run.row(asked)["answered"] == 2, run.row(asked)["quarantined"]
    assert took <= deadline + 10, f"{took:.1f} s"
    run.wait_end()
    later = [r["round"] for r in run.rows() if r["round"] > asked and r["answered"] == 3]
    assert later, run.quarantined()
    seen = f"round {asked} took {took:.1f} s with 2 of 3 ({why[:70]}), back in round {later[0]}"
    return f"deadline {deadline:.0f} s: {seen}"


@case(
    "R18",
    "A node's clock is wrong, 6 s or 10 min ahead",
    "it is refused, and says that its clock differs",
    "calls with a valid key, signed with other times",
    tests=(
        "tests/deploy/test_node.py::test_a_refused_time_is_explained",
        "tests/deploy/test_node.py::test_a_refusal_is_said_with_its_reason",
    ),
)
def wrong_clock(rig: Rig) -> str:
    found = rig.member()
    assert found["60 s behind"] == "ok", found
    refused = ("6 s ahead", "10 min ahead", "10 min behind")
    for shift in refused:
        assert found[shift] == "UNAUTHENTICATED: Invalid timestamp", found
    return f"refused {', '.join(refused)}; accepted 60 s behind"


@case(
    "R27",
    "A bad Wi-Fi: 5 % of the packets lost in each direction, 200 ms there and back",
    "no reply is lost, however long the rounds take; same final model",
    "ward-3's packets go through a process that drops and delays them between two TUN devices, so the "
    "kernel's TCP sees real losses (this also works on kernels without netem)",
)
def bad_wifi(rig: Rig) -> str:
    net = rig.net()
    with net.bad_air(0.05, 0.1) as counts:
        rig.fed().restart_node(FAR)
        rig.fed().ready()
        run = rig.submit(3, min_replies=3)
        run.wait_end()
    assert not run.quarantined(), run.quarantined()
    seconds = [row["seconds"]["total"] for row in run.rows()[1:]]
    came, dropped = counts
    assert dropped > 0, counts
    told = ", ".join(f"{s:.1f}" for s in seconds)
    return f"{dropped} of {came} packets lost, rounds of {told} s; {rig.same(run)}"


@case(
    "R29",
    "The link's clock is set back during a run, by 3 s and by 10 min, and corrected later",
    "3 s lose nothing; with 10 min nodes are refused and say so, and the run goes on by itself when the "
    "clock is right; same final model",
    "a library that is loaded into the link's processes shifts their time of day",
    tests=(
        "tests/deploy/test_held_calls.py::test_messages_go_through_when_the_clock_is_set_back",
        "tests/deploy/test_held_calls.py::test_a_clock_that_is_set_back_holds_up_no_node",
        "tests/deploy/test_held_calls.py::test_who_is_dead_is_so_as_soon_as_else_when_the_clock_is_set_back",
    ),
)
def clock_set_back(rig: Rig) -> str:
    if why := possible():
        raise NotCoveredError(why)
    fed = rig.fed()
    clock = Clock(fed.folder / "clock")
    fed.machines["link"].stop()
    fed.start_link(clock)
    fed.ready()
    try:
        run = rig.submit_to(fed, 8, min_replies=3)
        run.wait_round(1)
        clock.set(-3)
        run.wait_round(run.done() + 2)
        assert not run.quarantined(), run.quarantined()
        at = run.done()
        clock.set(-600)
        words = "differs from the SuperLink's"
        said = fed.until(
            lambda: next((n for n in fed.wards if words in fed.machines[n].said()), ""),
            60,
            "a node that says so",
        )
        clock.set(0)
        began = time.monotonic()
        run.wait_end()
        seconds = time.monotonic() - began
    finally:
        clock.set(0)
        fed.machines["link"].stop()
        fed.start_link()
        fed.ready()  # for the case that comes next
    return f"{said} said so after round {at}; finished {seconds:.1f} s after it was right; {rig.same(run)}"


@case(
    "R19",
    "No network except the federation's own: no index, no DNS",
    "runs work, and no packet tries to go anywhere else",
    "namespaces with a default route that leads nowhere; iptables counts the packets that try",
)
def air_gap(rig: Rig) -> str:
    net = rig.net()
    run = rig.submit(2)
    run.wait_end()
    strays = net.strays()
    assert strays == 0, f"{strays} packets"
    return f"{strays} stray packets in {len(run.fed.runs_seen)} runs; {rig.same(run)}"


def _whole(run: Run) -> bool:
    """Return whether all three clients were in the last round, which is not the first."""
    return run.done() > 1 and run.rows()[-1]["answered"] == 3
