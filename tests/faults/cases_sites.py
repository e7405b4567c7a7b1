"""S12, S14, S16, S24: what a run may learn and choose on machines that are not its user's."""

from __future__ import annotations

import contextlib
import re
import stat

import pytest

from server_app.deploy.link.jobs import Job
from task.errors import ConfigError
from tests.faults.case import ENDLESS, Rig, case
from tests.faults.cases_nodes import blamed
from tests.faults.federation import Federation
from tests.faults.runs import KEYS
from tests.support.contents import contents

SECRET = "smith-4711"


def _failed(fed: Federation, name: str) -> Job:
    """Return a job once an attempt of it has failed, and end it."""
    fed.until(lambda: fed.job(name).ended or fed.job(name).reason, 240, f"the failure of {name}")
    if not fed.job(name).ended:
        fed.jobs.ask_to_stop(name)
        fed.until(lambda: fed.job(name).ended, 60, f"the end of {name}")
    return fed.job(name)


@case(
    "S12",
    "A run sets paths on nodes and on the link",
    "nothing is read or written there; the run is refused with the name of the key; files have mode 0600, "
    "folders 0700",
    "runs with cache-dir and data-path outside the kit are submitted, also past the check of the command; "
    "one with a cache-dir inside the kit reaches the nodes",
    tests=(
        "tests/client_app/test_owner.py::test_a_run_names_no_folder_of_a_node",
        "tests/client_app/test_owner.py::test_a_run_names_no_data_of_a_node",
        "tests/client_app/test_owner.py::test_what_a_node_writes_is_its_owners_whatever_the_umask",
        "tests/deploy/test_confined.py::test_paths_outside_are_refused",
        "tests/deploy/test_submit_port.py::test_a_submitter_names_nothing_of_the_machine_nor_others_runs",
    ),
)
def paths(rig: Rig) -> str:
    fed = rig.fed()
    theirs = fed.folder / "theirs"
    with pytest.raises(ConfigError, match='"cache-dir": expected a path below'):
        rig.submit(1, cache_dir=str(theirs))
    (fed.folder / "shadow").write_text(f"{SECRET}\n")
    for key, path in (("data-path", fed.folder / "shadow"), ("cache-dir", theirs)):
        fed.jobs.submit(f"outside-{key}", KEYS | {key: str(path), "num-server-rounds": 1})
        job = _failed(fed, f"outside-{key}")
        assert f'run-config key "{key}": expected a path below' in job.reason, job.reason
        assert SECRET not in job.reason
    inside = rig.submit(1, cache_dir=str(fed.link_kit.path / "cache" / "other"))
    reason = _failed(fed, inside.name).reason
    assert 'run-config key "cache-dir": expected none' in reason, reason
    assert not theirs.exists()
    for kit in ("link", *fed.wards):
        for path in (fed.kits / kit).rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(path.lstat().st_mode)
                others = path.is_symlink() or path.is_mount()  # the rig mounts a disk of its own
                assert others or mode & 0o077 == 0, f"{path}: {mode:04o}"
    return f"three refused; on nodes: {reason[:80]}"


@case(
    "S14",
    "An error in a site's data",
    "the server gets line and column, but no value, label or path; the node's own log has everything",
    "ward-3's table gets a bad cell during a run; the link's whole kit is searched for it",
    tests=(
        "tests/client_app/test_owner.py::test_the_server_hears_of_line_and_column_and_the_nodes_log_of_all",
        "tests/client_app/test_owner.py::test_names_of_classes_and_pictures_stay",
        "tests/client_app/test_owner.py::test_of_an_error_that_nobody_foresaw_kind_and_place_are_told",
        "tests/client_app/test_owner.py::test_every_value_in_an_error_of_data_or_state_is_vetted",
    ),
)
def errors(rig: Rig) -> str:
    run = rig.submit(6)
    fed = run.fed
    table = fed.data / "ward-3.csv"
    before = table.read_text()
    run.wait_round(1)
    try:
        table.write_text(before + f"1,2,{SECRET},4,0,train\n")
        hurt = fed.until(
            lambda: next((r["round"] for r in run.rows() if r["quarantined"]), 0), 120, "a quarantined reply"
        )
    finally:
        table.write_text(before)
    why = blamed(run, hurt, "ward-3")
    line = len(before.splitlines()) + 1
    assert f"line {line}, column 3" in why, why
    run.wait_end()
    for path, content in contents(fed.kits / "link"):
        assert SECRET.encode() not in content, path
        assert b"ward-3.csv" not in content, path
    log = fed.log("ward-3", "warm")
    assert SECRET in log
    assert "ward-3.csv" in log
    return f"the server: {why[-110:]}"


@case(
    "S16",
    "An update computed from very few examples",
    "a site's policy refuses it; the error names bound, record, number and key, and an audit line is written",
    "runs with batch-size = 1: one of one local step, and one of adaptive-tau; ward-1 allows them",
    tests=(
        "tests/client_app/test_owner.py::test_what_a_record_is_computed_from",
        "tests/client_app/test_owner.py::test_an_update_from_less_than_the_owner_allows_is_refused",
    ),
)
def few_examples(rig: Rig) -> str:
    fed = rig.fed()
    config = fed.kits / "ward-1" / "kit.toml"
    before = config.read_text()
    try:
        # So that one answers, and the others' reasons stand in the row of the round.
        config.write_text(re.sub(r"(?m)^min-examples = .*$", "min-examples = 0", before))
        fed.restart_node("ward-1")
        for keys, record in (
            ({"local_steps": 1}, "'arrays' of fedavg"),
            ({"algorithm": "adaptive-tau", "adaptive-tau.fixed-tau": 20}, "'gradient' of adaptive-tau"),
        ):
            run = rig.submit(1, batch_size=1, min_replies=1, **keys)
            run.wait_end()
            assert run.row(1)["answered"] == 1, run.quarantined()
            for name in ("ward-2", "ward-3"):
                why = blamed(run, 1, name)
                assert f"min-examples = 10; {record} would be computed from 1 examples" in why, why
                audit = (fed.kits / name / "logs" / "audit.log").read_text()
                assert f"refused train of run {run.job().runs[-1]}: policy: min-examples = 10" in audit
    finally:
        config.write_text(before)
        fed.restart_node("ward-1")
    return f"two of three refuse: {why[-150:]}"


@case(
    "S24",
    "A node joins whose client is first by name, in an FLTrust run without a root",
    "the client that was first in round 1 remains the only trusted one; while it is away the model is "
    "kept, and no other client takes its place",
    "ward-1 is started during a run that began with ward-2 and ward-3; then all processes of ward-2 are "
    "stopped",
    tests=(
        "tests/strategies/test_robust_more.py::test_who_joins_later_does_not_become_the_root_by_its_name",
        "tests/strategies/test_robust_more.py::test_a_root_that_nobody_is_ends_the_run_before_round_1",
    ),
)
def newcomer(rig: Rig) -> str:
    fed = rig.fed()
    fed.machines["ward-1"].stop()
    fed.until(lambda: "ward-1" not in fed.online(), 120, "ward-1 offline")
    run = rig.submit_to(fed, ENDLESS, algorithm="fltrust", min_nodes=2, min_replies=1, round_timeout=20.0)
    try:
        run.wait_round(1)
        fed.start_node("ward-1")
        fed.until(lambda: "ward-1" in run.rows()[-1]["selected"], 120, "a round with ward-1")
        joined = run.done()
        run.wait_round(joined + 2)
        assert not any(row["skipped"] for row in run.rows()[1:]), run.quarantined()
        fed.machines["ward-2"].stop()
        fed.until(lambda: run.rows()[-1]["skipped"], 240, "a round without ward-2, whom the server trusts")
        assert "ward-1" in fed.online()
        log = fed.log("link", "warm")
        trusted = set(re.findall(r'client "(.*?)", which the server trusts', log))
        assert trusted == {"ward-2"}, trusted
    finally:
        fed.jobs.ask_to_stop(run.name)
        fed.start_node("ward-2")
    return f"ward-1 joined in round {joined}; without ward-2 round {run.done()} kept the model"
