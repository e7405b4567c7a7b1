"""A run at a link: which keys follow from the enrolled nodes, and what the terminal shows."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from server_app.deploy.calls.control import NodeState
from server_app.deploy.kits.kit import LinkKit, read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import follow, status
from server_app.deploy.link.jobs import FINISHED, RUNNING, Jobs
from server_app.deploy.link.submitters import AUDIT, LONGEST
from server_app.results.folder import RunFolder
from server_app.run.progress import Progress
from task.config.read import as_run_config
from task.errors import ConfigError
from task.resolve.read import read_config

OWN = {"dataset": "csv", "model": "logistic", "num-classes": 2}
PARTS = {"num-clients": 100, "fraction-train": 0.1}


def kit_of(folder: Path, nodes: int) -> LinkKit:
    provision(folder / "kits", "127.0.0.1:9092", [f"ward-{i}" for i in range(nodes)])
    return read_link_kit(folder / "kits" / "link")


@pytest.mark.parametrize(
    ("nodes", "keys", "least_nodes", "least_replies"),
    [
        (1, OWN, 1, 1),
        (2, OWN, 2, 2),
        (3, OWN, 2, 2),
        (5, OWN, 3, 3),
        (5, OWN | {"fraction-train": 0.4}, 3, 2),
        (5, OWN | {"fraction-train": 0.0}, 3, 1),
        (5, OWN | {"enough-replies": 2}, 3, 2),
        (5, OWN | {"enough-replies": 1}, 3, 1),
        (5, OWN | {"selection": "fedcs"}, 3, 1),
        (5, OWN | {"algorithm": "centralised"}, 3, 1),
        (5, OWN | {"dp.noise": 1.0, "dp.delta": 0.01}, 3, 1),
        (10, OWN | {"stragglers": 0.9, "drop-stragglers": True, "local-epochs": 2}, 6, 1),
        (3, PARTS, 2, 2),
        (3, PARTS | {"fraction-train": 0.01}, 2, 1),
        (3, OWN | {"min-nodes": 3, "min-replies": 1}, 3, 1),
    ],
)
def test_a_majority_of_the_enrolled_nodes_begins_and_answers_unless_the_user_says_otherwise(
    tmp_path: Path, nodes: int, keys: dict[str, Any], least_nodes: int, least_replies: int
) -> None:
    job = follow.submit(kit_of(tmp_path, nodes), keys | {"run-name": "a"})
    assert (job.keys["min-nodes"], job.keys["min-replies"]) == (least_nodes, least_replies)


def test_a_resumed_run_keeps_its_number_of_replies_though_nodes_were_enrolled_since(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 5)
    before = kit.runs / "a" / "config.json"
    before.parent.mkdir(parents=True)
    before.write_text(json.dumps({"run": {"min-replies": 2}}))
    job = follow.submit(kit, OWN | {"run-name": "a", "resume": True})
    assert (job.keys["min-nodes"], job.keys["min-replies"]) == (3, 2)


def test_a_run_names_its_nodes_and_its_majorities_are_of_those(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 5)
    job = follow.submit(kit, OWN | {"run-name": "a", "node-names": " ward-3, ward-1,ward-3"})
    assert job.keys["node-names"] == "ward-3,ward-1"
    assert job.nodes == {"ward-1", "ward-3"}
    assert (job.keys["min-nodes"], job.keys["min-replies"]) == (2, 2)
    with pytest.raises(
        ConfigError, match=r'"min-nodes": expected at most 2, the number of "node-names"; got 3'
    ):
        follow.submit(kit, OWN | {"run-name": "b", "node-names": "ward-1,ward-2", "min-nodes": 3})


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            "wart-2",
            r'"node-names" \(--node-names\): got .wart-2.. Did you mean "ward-2"\? Expected one of ward-0, w',
        ),
        ("ward-1", r'"node-names" \(--node-names\): ward-1 is revoked: got .ward-1.*one of ward-0, ward-2'),
        ("ward-0,", "got ''"),
    ],
)
def test_a_node_that_may_not_join_is_refused_at_submission(tmp_path: Path, nodes: str, words: str) -> None:
    kit = kit_of(tmp_path, 3)
    kit.revoked.mkdir(exist_ok=True)
    (kit.nodes / "ward-1.pub").rename(kit.revoked / "ward-1.pub")
    with pytest.raises(ConfigError, match=words):
        follow.submit(kit, OWN | {"run-name": "a", "node-names": nodes})
    assert Jobs(kit.jobs, kit.runs).all() == []


def test_a_simulations_data_are_refused_at_submission(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 3)
    keys = OWN | {"data-path": "sites", "partition": "natural", "num-clients": 0}
    with pytest.raises(
        ConfigError, match=r"got 'sites', which .*leave out data-path, partition, num-clients$"
    ):
        follow.submit(kit, keys)
    assert Jobs(kit.jobs, kit.runs).all() == []
    (kit.path / "sites").mkdir()
    assert follow.submit(kit, keys).keys["data-path"] == "sites"


def test_the_link_notes_who_submitted_what_also_where_it_refuses(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 3)
    with pytest.raises(ConfigError, match='"no-such-key" does not exist'):
        follow.submit(kit, OWN | {"no-such-key": "cnn"}, submitter="alice")
    with pytest.raises(ConfigError, match="does not exist"):
        follow.submit(kit, OWN | {"x\n\x1b" * 1000: 1})
    number = follow.submit(kit, OWN | {"run-name": "a"}).number
    lines = [line.split(" ", 1)[1] for line in (kit.logs / AUDIT).read_text().splitlines()]
    assert lines[0].startswith(
        'a run of alice was refused: run-config key "no-such-key" does not exist. Did you '
    )
    assert lines[1].startswith('a run of link was refused: run-config key "x ?x ?x')
    assert len(lines[1]) == LONGEST
    assert lines[2:] == [f"link submitted run a ({number})"]


def test_a_resumed_run_keeps_its_nodes_unless_others_are_named(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 3)
    config = kit.runs / "a" / "config.json"
    (config.parent / "checkpoint").mkdir(parents=True)
    (config.parent / "checkpoint" / "work").touch()
    config.write_text(json.dumps({"run": {"node-names": "ward-0,ward-2"}}))
    jobs = Jobs(kit.jobs, kit.runs)
    for more, nodes in (
        ({}, "ward-0,ward-2"),
        ({"node-names": "ward-1"}, "ward-1"),
        ({"node-names": ""}, ""),
    ):
        job = follow.submit(kit, OWN | {"run-name": "a", "resume": True} | more)
        assert job.keys.get("node-names", "") == nodes
        jobs.update(job, state=FINISHED)


def test_the_terminal_says_what_a_queued_job_waits_for(tmp_path: Path) -> None:
    kit = kit_of(tmp_path, 3)
    job = follow.submit(kit, OWN | {"run-name": "a"})
    words = follow._words(job, "waits for ward-1, where job b runs")
    assert words[-1] == "job a is queued: it waits for ward-1, where job b runs"


def test_the_terminal_says_which_attempt_failed_and_when_the_next_one_runs(tmp_path: Path) -> None:
    job = replace(follow.submit(kit_of(tmp_path, 3), OWN | {"run-name": "a"}), state=RUNNING, attempts=1)
    told = [
        follow._words(replace(job, attempts=attempts, failed=failed, reason=reason), "")[-1]
        for attempts, failed, reason in [(1, 0, ""), (1, 1, "got 0"), (2, 1, "got 0"), (2, 2, "got 0")]
    ]
    failed = ("attempt 1 failed: got 0", "attempt 2 failed: got 0")
    assert told == ["job a is running", failed[0], "attempt 2 of job a is running", failed[1]]


def test_the_terminal_names_in_yellow_what_a_run_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kit_of(tmp_path, 3)
    jobs = Jobs(kit.jobs, kit.runs)
    job = jobs.update(follow.submit(kit, OWN | {"run-name": "a"}), state=RUNNING, attempts=1)
    nodes = [
        {"name": "ward-1", "problem": "is not online, and never was"},
        {"name": "ward-2", "problem": ""},
    ]
    monkeypatch.setattr(follow, "read_status", lambda kit: {"state": status.YELLOW, "nodes": nodes})
    folder = RunFolder(kit.runs / "a")
    folder.path.mkdir(parents=True)
    card = {"at": "nodes", "input_shape": [2], "outputs": 2, "clients": 2}
    (folder.path / "config.json").write_text(json.dumps({"data": card}))
    row = {
        "round": 1,
        "asked": 2,
        "answered": 1,
        "quarantined": [{"client": "ward-2", "reason": "round 1: client ward-2: [b]NaN"}],
    }

    def later(seconds: float) -> None:
        if not folder.rounds():
            folder.append_round(row)
        else:
            jobs.update(job, state=FINISHED)

    monkeypatch.setattr(follow.time, "sleep", later)
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    progress = Progress("log", 1, "a", console)
    assert follow._watch(kit, jobs, job, progress).state == FINISHED
    text = console.file.getvalue()  # type: ignore[attr-defined]
    yellow = [line for line in text.splitlines() if "\x1b[33m" in line]
    assert len(yellow) == 2
    assert text.index("data      at the nodes") < text.index("round 1/1")
    assert "run a continued without a reply; round 1: client ward-2: [b]NaN" in yellow[0]
    assert "node ward-1 is not online, and never was" in yellow[1]  # it was not starting, after all


def test_the_terminal_names_a_node_that_is_left_out_of_a_run_shorter_than_the_status_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kit_of(tmp_path, 3)
    jobs = Jobs(kit.jobs, kit.runs)
    job = jobs.update(follow.submit(kit, OWN | {"run-name": "a"}), state=FINISHED, attempts=1)
    nodes = [{"name": f"ward-{i}", "id": str(i), "online": True, "problem": ""} for i in range(3)]
    monkeypatch.setattr(follow, "read_status", lambda kit: {"state": status.GREEN, "nodes": nodes})
    folder = RunFolder(kit.runs / "a")
    folder.path.mkdir(parents=True)
    folder.write_nodes([], [{"node": "2", "reason": "has data whose columns have other names"}])
    monkeypatch.setattr(follow.Rounds, "new", lambda rounds: [{"round": 0}])
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    follow._watch(kit, jobs, job, Progress("log", 1, "a", console))
    words = "node ward-2 has data whose columns have other names: run a continues without it"
    assert words in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_terminal_does_not_repeat_what_an_earlier_run_continued_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = kit_of(tmp_path, 1)
    jobs = Jobs(kit.jobs, kit.runs)
    jobs.update(follow.submit(kit, OWN | {"run-name": "before"}), state=FINISHED, attempts=1)
    RunFolder.create(kit.runs / "before", {"run": {}}, resume=False).write_nodes(
        [], [{"node": "1", "reason": "is odd"}]
    )
    ward = NodeState(1, "ward-0", b"", True, True, time.time())
    status.write_status(kit, status.Seen(nodes=[ward], answered=time.monotonic()), [], jobs)
    assert "node ward-0 is odd: run before continues without it" in status.read_status(kit)["warnings"]
    job = jobs.update(follow.submit(kit, OWN | {"run-name": "now"}), state=RUNNING, attempts=1)
    monkeypatch.setattr(follow.time, "sleep", lambda seconds: jobs.update(job, state=FINISHED))
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    follow._watch(kit, jobs, job, Progress("log", 1, "now", console))
    assert "ward-0" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_at_a_link_is_resumed_by_its_name_alone(tmp_path: Path) -> None:
    """The defaults took the place of the keys that it was started with."""
    kit = kit_of(tmp_path, 3)
    config = as_run_config(read_config({**OWN, "learning-rate": 0.25, "min-nodes": 3}))
    RunFolder.create(kit.runs / "a", {"run": config}, resume=False)
    job = follow.submit(kit, {"run-name": "a", "resume": True, "num-server-rounds": 30})
    assert {key: job.keys[key] for key in OWN} == OWN
    assert (job.keys["learning-rate"], job.keys["num-server-rounds"]) == (0.25, 30)
    assert job.keys["min-nodes"] == 2  # of the nodes that are enrolled now
    jobs = Jobs(kit.jobs, kit.runs)
    jobs.update(job, state=FINISHED)
    with pytest.raises(ConfigError, match=r'"learning-rate": expected 0.25, .*got 0.5'):
        follow.submit(kit, {"run-name": "a", "resume": True, "learning-rate": 0.5})
    with pytest.raises(ConfigError, match='"run-name": expected a free name'):
        follow.submit(kit, {"run-name": "a", "resume": True}, submitter="alice")
