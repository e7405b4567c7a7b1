"""Jobs as files: submitted once, changed by the link only, stopped by a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server_app.deploy.link.jobs import FINISHED, QUEUED, RUNNING, Jobs
from task.errors import ConfigError, StateError


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path / "jobs", tmp_path / "runs")


def write_result(jobs: Jobs, name: str, text: str = "{}") -> None:
    folder = jobs.runs / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(text)


def test_a_job_is_read_as_it_was_written(jobs: Jobs) -> None:
    job = jobs.submit("a", {"seed": 7, "fedprox.mu": 0.5, "algorithm": "fedprox"})
    assert jobs.read("a") == job
    assert (job.state, job.attempts, job.runs, job.ended) == (QUEUED, 0, (), False)
    running = jobs.update(job, state=RUNNING, runs=(2**64 - 1,), attempts=1)
    assert jobs.read("a") == running
    assert running.updated >= job.updated


def test_two_jobs_of_one_name_are_refused_until_the_first_is_over(jobs: Jobs) -> None:
    first = jobs.submit("a", {})
    with pytest.raises(ConfigError, match=r"queued.*--attach a"):
        jobs.submit("a", {})
    jobs.update(first, state=FINISHED)
    assert jobs.submit("a", {}).id != first.id


def test_only_a_result_that_came_after_the_submission_is_the_jobs(jobs: Jobs) -> None:
    write_result(jobs, "a")
    job = jobs.submit("a", {})
    assert not jobs.has_result(job)
    (jobs.runs / "a").rename(jobs.runs / "a.1")
    assert not jobs.has_result(job)
    write_result(jobs, "a")
    assert jobs.has_result(job)


def test_the_folder_that_was_there_before_is_known_by_its_identity(jobs: Jobs) -> None:
    assert jobs.folder_id("a") == ""
    (jobs.runs / "a").mkdir(parents=True)
    (jobs.runs / "a" / "config.json").write_text(json.dumps({"id": "old"}))
    assert jobs.submit("a", {}).folder_before == "old"


def test_a_stop_is_for_one_job_and_not_for_the_next_of_its_name(jobs: Jobs) -> None:
    job = jobs.submit("a", {})
    assert not jobs.shall_stop(job)
    jobs.ask_to_stop("a")
    assert jobs.shall_stop(job)
    jobs.update(job, state=FINISHED)
    assert not jobs.shall_stop(jobs.submit("a", {}))


def test_what_is_over_or_unknown_cannot_be_stopped(jobs: Jobs) -> None:
    jobs.update(jobs.submit("a", {}), state=FINISHED)
    jobs.submit("b", {})
    with pytest.raises(ConfigError, match=r"\(b\); got 'a', which has finished"):
        jobs.ask_to_stop("a")
    with pytest.raises(ConfigError, match="got 'c'"):
        jobs.ask_to_stop("c")


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "a"}', '{"runs": 3}'])
def test_a_damaged_file_is_named_and_hides_no_other_job(jobs: Jobs, content: str) -> None:
    jobs.submit("b", {})
    jobs.path("a").write_text(content)
    with pytest.raises(StateError, match=r"a\.json"):
        jobs.read("a")
    assert [job.name for job in jobs.all()] == ["b"]
    assert len(jobs.damaged()) == 1


def test_jobs_come_in_the_order_in_which_they_were_submitted(jobs: Jobs) -> None:
    for name in ("c", "a", "b"):
        jobs.submit(name, {})
    assert [job.name for job in jobs.all()] == ["c", "a", "b"]
