"""A run at a link, as `bouquet run --link` does it: submitted, followed, or ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from server_app.cli import exits
from server_app.cli.common import check, sigterm_is_ctrl_c
from server_app.deploy.kits.kit import SubmitterKit, read_submitting_kit
from server_app.deploy.link import follow
from server_app.deploy.link.jobs import StoppedJobError
from task.config.read import flatten
from task.errors import ConfigError


def run_at_link(
    folder: Path, keys: dict[str, object], detach: bool, attach: str, stop: str, overwrite: bool
) -> None:
    """Submit a run to a link, follow it, or end it."""
    kit = read_submitting_kit(folder)
    if isinstance(kit, SubmitterKit):
        _run_at_remote_link(kit, keys, detach, attach, stop, overwrite)
        return
    if stop:
        follow.stop(kit, stop)
        left = f"; its results so far stay in {kit.runs / stop}" if (kit.runs / stop).exists() else ""
        typer.echo(f"asked the link to stop {stop}{left}")
        return
    job = follow.attach(kit, attach) if attach else follow.submit(kit, keys, overwrite=overwrite)
    if not attach and not keys.get("resume") and (note := follow.numbered_name(kit, keys, job)):
        typer.echo(note, err=True)
    if detach:
        typer.echo(f"job {job.name} is {job.state}; watch it: {_again(folder, job.name)}")
        return
    with _following(folder, kit.runs / job.name):
        follow.follow(kit, job)


def _run_at_remote_link(
    kit: SubmitterKit, keys: dict[str, object], detach: bool, attach: str, stop: str, overwrite: bool
) -> None:
    """The same with a submitter's kit."""
    from server_app.deploy.link import remote

    if overwrite:
        raise ConfigError("--overwrite: expected it with the kit of the link itself; got a submitter's")
    if stop:
        remote.stop(kit, remote.find(kit, stop, "--stop"))
        typer.echo(f"asked the link to stop {stop}")
        return
    if not attach and not keys.get("resume"):  # the link adds the keys of the run
        check(keys)
    job = remote.find(kit, attach, "--attach") if attach else remote.submit(kit, flatten(keys))
    if detach:
        typer.echo(f"job {job.name} is {job.state}; watch it: {_again(kit.path, job.name)}")
        return
    with _following(kit.path, kit.runs / job.name):
        remote.follow(kit, job)


def _again(folder: Path, name: str) -> str:
    return f"bouquet run --link {folder} --attach {name}"


@contextmanager
def _following(folder: Path, results: Path) -> Iterator[None]:
    """Let Ctrl-C end the following of a job, which goes on, and say how one that was stopped goes on."""
    name = results.name
    try:
        with sigterm_is_ctrl_c():
            yield
    except KeyboardInterrupt:
        typer.echo(f"detached; job {name} continues. Watch it again: {_again(folder, name)}", err=True)
        raise typer.Exit(exits.DETACHED) from None
    except StoppedJobError as err:
        again = f"`bouquet run --link {folder} --resume --run-name {name}` continues from the last checkpoint"
        left = f"its results so far: {results}; {again}" if results.exists() else "there are no results here"
        raise exits.StoppedError(f"{err}; {left}") from None
