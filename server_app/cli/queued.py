"""The waiting runs of a queue on disk, done by a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from server_app.cli.common import importing
from task import portable
from task.errors import ConfigError

if TYPE_CHECKING:
    from server_app.sweep.queue import SweepQueue


def work(queue: SweepQueue, jobs: int, warm_up: int | None = None) -> None:
    """Run the waiting runs; if there are none, skip the imports, which take seconds."""
    from server_app.sweep.queue import WAITING

    waiting = queue.count(WAITING)
    if not waiting:
        return
    asked = {bool(entry.keys.get("portable")) for entry in queue.entries if entry.state == WAITING}
    if asked == {True, False}:
        raise ConfigError(
            'run-config key "portable": the runs of a sweep share a process, whose kernels are fixed for all '
            "or none; expected one value; got both. Make two sweeps"
        )
    if True in asked:
        portable.start_again()
    with importing():
        from server_app.engines.simulate import available_cpus
        from server_app.run.prepare import check_measured
        from server_app.sweep.progress import Shown
        from server_app.sweep.scheduler import Scheduler, prepare_data
    from server_app.results.groups import SWEEP
    from task.references import check_origin
    from task.resolve.read import read_config

    for entry in queue.entries:
        check_origin(entry.keys, queue.folder / SWEEP)
        check_measured(read_config(entry.keys))
    cpus = available_cpus()
    jobs = min(jobs or cpus, waiting)
    nodes = max(1, cpus // jobs)
    typer.echo(f"sweep: {waiting} runs, {jobs} at once with {nodes} worker{'s' * (nodes > 1)} each", err=True)
    prepare_data(queue)
    with Shown(queue) as shown:
        scheduler = Scheduler(queue, jobs, nodes, warm_up=warm_up, ended=shown.ended, looked=shown.looked)
        scheduler.work()
    shown.done(waiting)
