"""A stopped run's result, written in a process of its own: ``python -m server_app.deploy.link.stopped``.

Models need torch, which would stay in the link's own process as long as it is up, some 300 MB.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server_app.deploy.host.modules import module_command
from server_app.deploy.host.processes import how_it_ended
from server_app.deploy.link.jobs import Job, Jobs
from task import trust
from task.errors import BouquetError
from task.references import references_in

FAILED = 65  # exit code
WAIT_S = 300.0


def finish_stopped(jobs: Jobs, job: Job) -> None:
    """Write what a run has that its user stopped, see `server_app.run.stopped`; wait for the end of that.

    Nothing is written once the job was submitted again: its result would count as that of the new one.

    Raises:
        BouquetError: Checkpoint or journal are damaged, nothing can be written, or the process was ended.
    """
    place = (str(jobs.folder), str(jobs.runs), job.name, job.id)
    command = module_command("server_app.deploy.link.stopped", *place)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=WAIT_S
        )
    except subprocess.TimeoutExpired:
        raise BouquetError(f"the process that writes it took more than {WAIT_S:g} s") from None
    if done.returncode == FAILED:
        raise BouquetError(done.stdout.strip())
    if done.returncode:
        trace = done.stderr.strip().rpartition("\n")[2] or "no output; is there too little memory?"
        raise BouquetError(f"the process that writes it {how_it_ended(done.returncode)}: {trace}")


def main() -> None:
    """Start from the command line: the folders of jobs and of results, the job's name and id."""
    from server_app.run.stopped import finish_stopped

    folder, runs, name, job_id = sys.argv[1:]
    jobs = Jobs(Path(folder), Path(runs))

    @contextmanager
    def writing() -> Iterator[bool]:
        with jobs.submitting():  # only now: until here it may take minutes, on a busy machine
            job = jobs.read(name)
            yield job is not None and job.id == job_id

    if (job := jobs.read(name)) is not None:
        trust.user_named(references_in(job.keys))  # as its ServerApp had them
    try:
        finish_stopped(jobs.runs / name, "by the user", writing)
    except (BouquetError, OSError) as err:
        print(err)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
