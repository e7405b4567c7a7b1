"""One node of three cannot take part, or is lost: the run goes on, and everybody can see without whom."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server_app.deploy.link.status import YELLOW
from task.errors import PACKAGES
from tests.faults.case import ENDLESS, ROOT, Rig, case
from tests.faults.federation import Federation
from tests.faults.runs import BOUQUET, Run

TESTS = "tests/strategies/test_client_registry.py::"
AGREEMENT = "tests/strategies/test_agreement.py"
COLUMNS = "has data that differ from those of the others in the names or kinds of its columns"


@case(
    "R22",
    "One enrolled node vetoes: it refuses to take part, its data have other columns, or it is silent",
    "the run begins without it within 60 s, with the majority; log and status name it and the reason",
    "ward-3's data file is moved away, then replaced by one of three columns; then all its processes are "
    "stopped by SIGSTOP before they register",
    tests=(
        f"{TESTS}test_one_of_three_nodes_vetoes_no_run",
        f"{TESTS}test_a_silent_node_holds_the_first_round_up_for_a_while_only",
        f"{TESTS}test_where_most_nodes_cannot_take_part_the_run_ends_before_it_begins",
        f"{TESTS}test_a_node_whose_partition_differs_is_left_out_by_majority",
        "tests/deploy/test_follow.py",
    ),
)
def veto(rig: Rig) -> str:
    fed = rig.fed()
    told = []
    with fed.without_data("ward-3"):
        told.append("refuses: " + _begins_without(rig, fed, "cannot take part"))
        (fed.data / "ward-3.csv").write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 20)
        told.append("other columns: " + _begins_without(rig, fed, COLUMNS))
    with fed.machines["ward-3"].asleep():
        # By the time that the run begins, its heartbeats may be overdue already.
        told.append("silent: " + _begins_without(rig, fed, "has not registered", "is not online"))
    run = rig.submit(2)
    run.wait_end()
    return f"{'; '.join(told)}; then with all three, {rig.same(run)}"


@case(
    "R23",
    "One node runs another app; one node is killed and stays away",
    "the run goes on; within 75 s `bouquet status` and the attached terminal are yellow, with the node's "
    "name and the reason",
    "ward-3 runs a copy of the app with one line more; then SIGKILL to all processes of ward-2 during a run",
    tests=(
        "tests/deploy/test_status.py::test_a_node_that_is_away_makes_it_yellow_and_is_named",
        "tests/deploy/test_status.py::test_a_node_of_another_app_is_named_with_both_apps_and_what_to_do",
        "tests/deploy/test_limits.py::test_a_node_of_another_app_is_turned_away_until_it_has_the_links",
        "tests/deploy/test_runner.py::test_a_run_goes_on_with_the_app_that_it_began_with_only",
        "tests/deploy/test_follow.py::test_the_terminal_names_in_yellow_what_a_run_goes_on_without",
        "tests/deploy/test_monitor.py::test_nodes_and_processes_are_those_of_the_status_file",
    ),
)
def degraded(rig: Rig) -> str:
    fed = rig.fed()
    fed.machines["ward-3"].stop()
    fed.start_node("ward-3", code=other_app(fed.folder / "other-app"))
    run = rig.submit_to(fed, ENDLESS, min_nodes=2, progress="log")
    screen = fed.folder / f"{run.name}.screen"
    try:
        with _terminal(fed, run, screen):
            run.wait_round(1)
            told = [_yellow(fed, "ward-3", "install the same version on both")]
            assert "PERMISSION_DENIED: this node runs app" in fed.machines["ward-3"].said()
            fed.restart_node("ward-3")  # the installed app: it joins the run that goes on
            fed.until(lambda: "ward-3" in run.rows()[-1]["selected"], 120, "a round with ward-3")
            fed.machines["ward-2"].kill()
            told.append(_yellow(fed, "ward-2", "is not online"))
            run.wait_round(run.done() + 2)
            assert run.rows()[-1]["answered"] == 2, run.rows()[-1]
            shown = fed.until(
                lambda: _says(screen, "node ward-2 is not online"), 30, "a line on the terminal"
            )
            assert _says(screen, "node ward-3 runs app"), screen.read_text()[-3000:]
    finally:
        fed.jobs.ask_to_stop(run.name)
    return f"status: {'; '.join(told)}; the terminal: {shown}"


@case(
    "R33",
    "The link is upgraded before its nodes, during a run, and then set back",
    "the run ends and says why and how to go on; nodes are turned away, and status names them with both "
    "apps; after the link is set back, nodes join by themselves, and --resume ends in the same final model",
    "the link is restarted with a copy of the app with one line more, then with the original app",
)
def link_upgraded(rig: Rig) -> str:
    fed = rig.fed()
    run = rig.submit(8, min_replies=3)
    run.wait_round(1)
    fed.machines["link"].stop()
    fed.start_link(code=other_app(fed.folder / "other-link-app"))
    fed.until(lambda: run.job().ended, 180, f"the end of {run.name}")
    why, at = run.job().reason, run.done()
    assert run.job().state == "failed", run.job()
    assert "it started with version" in why, why
    assert "--resume" in why, why
    *_, told = [_yellow(fed, name, "install the same version on both") for name in fed.wards]
    fed.until(lambda: not fed.online() & set(fed.wards), 60, "nodes that are turned away")
    fed.machines["link"].stop()
    fed.start_link()
    fed.until(lambda: fed.online() >= set(fed.wards), 90, "all nodes back")
    fed.submit(run.name, run.rounds, min_replies=3, resume=True).wait_end()
    return f"after round {at}: {why[:110]}; {told[:110]}; {rig.same(run)}"


@case(
    "R35",
    "A node's data have the same shape but another meaning: columns in another order, or a column, class "
    "or category with another name",
    "columns in another order are read by name, with the same final model; other names leave the node out "
    "before round 1, and status names it and the part that differs; the names stay in its own log",
    "ward-3's columns are reordered; then one of them is renamed",
    tests=(
        f"{AGREEMENT}::test_a_node_with_the_same_names_in_another_order_is_read_by_name",
        f"{AGREEMENT}::test_a_node_whose_data_mean_something_else_is_left_out_before_round_1",
        f"{AGREEMENT}::test_a_node_that_joins_late_is_read_by_name_or_left_out",
        f"{AGREEMENT}::test_where_no_side_is_most_nodes_no_run_begins_and_all_are_named",
        f"{AGREEMENT}::test_a_run_that_is_resumed_holds_nodes_to_what_it_began_with",
    ),
)
def meaning(rig: Rig) -> str:
    fed = rig.fed()
    path = fed.data / "ward-3.csv"
    before = path.read_text()
    rows = [line.split(",") for line in before.split()]
    try:
        path.write_text(
            "".join(",".join([d, label, b, a, split, c]) + "\n" for a, b, c, d, label, split in rows)
        )
        run = rig.submit(3, min_replies=3)
        run.wait_end()
        told = f"in another order: {rig.same(run)}"
        path.write_text(before.replace("a,b,c,d", "a,b,secret,d", 1))
        told += "; renamed: " + _begins_without(rig, fed, COLUMNS)
    finally:
        path.write_text(before)
    logs = "".join(p.read_text(errors="replace") for p in (fed.kits / "ward-3" / "logs").glob("*.log"))
    assert "secret (number)" in logs, logs[-2000:]
    assert "secret" not in "".join(
        p.read_text(errors="replace") for p in (fed.kits / "link").rglob("*.json*") if p.is_file()
    )
    return told


def _begins_without(rig: Rig, fed: Federation, *reasons: str) -> str:
    """Run three rounds without ward-3, for one of `reasons`; return what was seen."""
    run = rig.submit_to(fed, 3, min_nodes=2)
    seconds = run.wait_round(1)
    line = _yellow(fed, "ward-3", *reasons)
    assert (run.row(1)["asked"], run.row(1)["answered"]) == (2, 2), run.row(1)
    assert seconds <= 60, f"{seconds:.0f} s"
    run.wait_end()
    return f"round 1 after {seconds:.1f} s with 2 of 2 ({line[:110]})"


def _yellow(fed: Federation, name: str, *reasons: str) -> str:
    """Wait for a yellow status that names a node and a reason; return the line that ``status`` prints."""

    def line() -> str:
        status = fed.status()
        named = [w for w in status["warnings"] if f"node {name} " in w]
        lines = [w for w in named if any(reason in w for reason in reasons)]
        return lines[0] if lines and status["state"] == YELLOW else ""

    found: str = fed.until(line, 75, f"a yellow status that names {name}: {' or '.join(reasons)}")
    command = [BOUQUET, "status", str(fed.kits / "link")]
    env = os.environ | {"COLUMNS": "500"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done
    assert YELLOW in done.stdout, done.stdout
    assert f"node {name} " in done.stdout, done.stdout
    return found


def _says(screen: Path, words: str) -> str:
    """Return the line of a terminal that has these words, "" if there is none."""
    return next((line for line in screen.read_text().splitlines() if words in line), "")


@contextmanager
def _terminal(fed: Federation, run: Run, screen: Path) -> Iterator[None]:
    """Watch a run as a user does; what is printed goes to a file."""
    command = [BOUQUET, "run", "--link", str(fed.kits / "link"), "--attach", run.name]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    with screen.open("wb") as file:
        watching = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env)
    try:
        yield
    finally:
        watching.terminate()
        watching.wait(30)


def other_app(folder: Path, file: str = "client_app/app.py", more: str = "# another app\n") -> Path:
    """Write a copy of the app with `more` at the end of one of its files; return its folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    with (folder / file).open("a") as opened:
        opened.write(more)
    return folder
