"""Jobs as files: submitted once, changed by the link only, stopped by a file."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from server_app.deploy.link.jobs import FINISHED, QUEUED, RUNNING, Job, Jobs, waiting
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


def queue(*wanted: str) -> list[Job]:
    """Return jobs, the oldest first, from texts such as ``a running ward-1,ward-2``."""
    made = []
    for text in wanted:
        name, state, nodes = (*text.split(), "")[:3]
        made.append(Job(name, {"node-names": nodes}, name, state))
    return made


@pytest.mark.parametrize(
    ("jobs", "waits"),
    [
        (("a queued 1,2", "b queued 3"), {}),
        (("a running", "b queued"), {"b": "waits for all nodes, where job a runs"}),
        (("a running 1,2", "b queued 2,3"), {"b": "waits for 2, where job a runs"}),
        (("a running 1,2", "b queued"), {"b": "waits for 1, 2, where job a runs"}),
        (("a running", "b queued 1"), {"b": "waits for 1, where job a runs"}),
        # c could run at once, but would then be before b on node 2
        (
            ("a running 1", "b queued 1,2", "c queued 2", "d queued 3"),
            {"b": "waits for 1, where job a runs", "c": "waits for 2, where job b comes first"},
        ),
        (("a running 1", "b running 2", "c queued"),
         {"c": "waits for 1, where job a runs; for 2, where job b runs"}),
        (
            ("a running", "b queued", "c queued", "d queued", "e queued", "f finished"),
            {
                "b": "waits for all nodes, where job a runs",
                "c": "waits for all nodes, where job a runs; for all nodes, where job b comes first",
                "d": "waits for all nodes, where job a runs; for all nodes, where job b comes first; "
                "for all nodes, where job c comes first",
                "e": "waits for all nodes, where job a runs; for all nodes, where job b comes first; "
                "for all nodes, where job c comes first; and for 1 more jobs",
            },
        ),
        (("a finished", "b failed", "c stopped", "d queued"), {}),
        (
            ("a running 1", "b queued 2", "c queued 3", "d queued 4"),
            {"d": "waits until fewer than 3 jobs run (max-runs in the link's kit.toml)"},
        ),
    ],
)  # fmt: skip
def test_a_job_waits_for_its_nodes_and_for_those_that_came_first(
    jobs: tuple[str, ...], waits: dict[str, str]
) -> None:
    assert waiting(queue(*jobs), 3) == waits


def test_no_job_is_overtaken_for_ever_and_no_node_has_two() -> None:
    """Whatever is submitted and however long it runs; the clock is a counter."""
    rng = random.Random(5)
    for most in (1, 2, 4):
        jobs: list[Job] = []
        for now in range(400):
            if now < 300:
                nodes = ",".join(map(str, rng.sample(range(6), rng.randint(0, 3))))
                jobs.append(Job(f"j{now}", {"node-names": nodes}, f"j{now}", created=now))
            held = waiting(jobs, most)
            for i, job in enumerate(jobs):
                if job.state == QUEUED and job.id not in held:
                    earlier = [other for other in jobs[:i] if not other.ended and other.shares(job)]
                    assert not earlier
                    jobs[i] = replace(job, state=RUNNING)
            running = [job for job in jobs if job.state == RUNNING]
            assert len(running) <= most
            assert not any(a.shares(b) for a, b in itertools.combinations(running, 2))
            assert running or all(job.ended for job in jobs)  # something always goes on
            over = rng.choice(running) if running else None
            jobs = [replace(job, state=FINISHED) if job is over else job for job in jobs]
        while any(not job.ended for job in jobs):
            held = waiting(jobs, most)
            assert set(held) < {job.id for job in jobs if not job.ended}
            jobs = [replace(job, state=FINISHED) if job.id not in held else job for job in jobs]
