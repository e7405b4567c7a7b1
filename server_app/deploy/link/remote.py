"""Submits runs to a link with a submitter's kit, follows them and fetches their results into it.

All calls go to the link's port for submitters (server_app/deploy/link/submit_port.py).
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from server_app.deploy.calls.control_calls import Calls, LinkError, start
from server_app.deploy.kits.kit import SubmitterKit
from server_app.deploy.link.jobs import STOPPED, StoppedJobError
from server_app.deploy.link.runner import bundle
from server_app.deploy.link.submit_port import FILES, RESULTS, STATUS
from server_app.results.folder import is_one_folder
from server_app.results.lines import Row
from server_app.run.terminal import Terminal
from task import timing
from task.config.sections import Value
from task.errors import BouquetError, ConfigError
from task.storage.files import replacing

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SEARCHED = 1000  # runs, for a name


@dataclass(frozen=True)
class Submitted:
    """A run at a link.

    Attributes:
        number: Its number there.
        name: Of its result folder.
        state: "pending", "running" or "finished".
        how: Of a finished one: "completed", "failed" or "stopped".
        reason: Why it failed.
    """

    number: int
    name: str
    state: str
    how: str = ""
    reason: str = ""


@contextmanager
def _calls(kit: SubmitterKit) -> Iterator[Calls]:
    calls = Calls(kit.link, kit.ca_certificate, kit.token, timing.SUBMISSION_S)
    try:
        yield calls
    finally:
        calls.close()


def submit(kit: SubmitterKit, keys: Mapping[str, Value]) -> Submitted:
    """Submit a run of the app that is installed here.

    Raises:
        ConfigError: The link refuses it.
        LinkError: The link does not answer.
    """
    with _calls(kit) as calls:
        try:
            number = start(calls, bundle(), keys)
        except LinkError as err:
            if err.answered:
                raise ConfigError(f"the link did not accept the run: {_detail(err)}") from None
            raise
        return _runs(calls, run_id=number)[0]


def find(kit: SubmitterKit, name: str, option: str) -> Submitted:
    """Return the run of a name; `option` is where the name stands, for errors.

    Raises:
        ConfigError: This submitter has none of this name.
        LinkError: The link does not answer.
    """
    with _calls(kit) as calls:
        known = {run.name: run for run in _runs(calls, limit=SEARCHED)[::-1]}
    if name not in known:
        raise ConfigError(f"{option}: expected the name of a run of {kit.name} "
                          f"({', '.join(known) or 'none'}); got {name!r}")  # fmt: skip
    return known[name]


def stop(kit: SubmitterKit, run: Submitted) -> None:
    """Ask the link to end a run; its results so far stay there.

    Raises:
        ConfigError: It has ended.
        LinkError: The link does not answer.
    """
    with _calls(kit) as calls:
        try:
            calls("StopRun", run_id=run.number)
        except LinkError as err:
            if err.answered:
                raise ConfigError(_detail(err)) from None
            raise


def follow(kit: SubmitterKit, run: Submitted) -> None:
    """Print a run's log, which ends with the closing table, and fetch its results.

    Raises:
        StoppedJobError: It was stopped.
        BouquetError: It ended without a result; with the reason.
        LinkError: The link refuses the call, or does not answer once the run has ended.
        KeyboardInterrupt: The user stopped following; the run goes on.
    """
    terminal = Terminal()
    with _calls(kit) as calls:
        for text in _log(calls, run):
            terminal.print(COLOURS.sub("", text), end="", soft_wrap=True)
        (run,) = _runs(calls, run_id=run.number)
        folder = kit.runs / run.name
        for name in FILES:
            with suppress(_NoFileError):
                _fetch(calls, f"{RESULTS}{run.number}/{name}", folder / name)
    if run.how == STOPPED:
        raise StoppedJobError(f"job {run.name}: {run.reason or 'stopped'}")
    if run.how != "completed":
        raise BouquetError(f"job {run.name} {run.how or run.state}: {run.reason or 'no reason given'}")
    terminal.print(f"Fetched to: {folder}", soft_wrap=True)


def status(kit: SubmitterKit) -> Row:
    """Return the link's status, with the runs of this submitter.

    Raises:
        LinkError: The link does not answer.
    """
    with _calls(kit) as calls:
        found: Row = json.loads(b"".join(calls.fetch(STATUS)))
    return found


def _log(calls: Calls, run: Submitted) -> Iterator[str]:
    """Yield a run's log until the run ends; a link that restarts or cannot be reached is waited for."""
    after = 0.0
    while True:
        try:
            for answer in calls.stream("StreamLogs", run_id=run.number, after_timestamp=after):
                after = max(after, answer.latest_timestamp)
                yield answer.log_output
            return
        except LinkError as err:
            if err.answered:
                raise
            yield f"{err} The run goes on there; trying again\n"
            time.sleep(timing.RETRY_LONGEST_S)


class _NoFileError(Exception):
    """The link has no such file."""


def _fetch(calls: Calls, source: str, path: Path) -> None:
    try:
        with replacing(path) as temp, open(temp, "wb") as file:
            file.writelines(calls.fetch(source))
    except LinkError as err:
        if err.answered:
            raise _NoFileError from None
        raise


def _runs(calls: Calls, **which: int) -> list[Submitted]:
    """Return runs at the link, the newest first.

    Raises:
        BouquetError: The name of one is not that of a folder: its results would be written elsewhere.
    """
    found = calls("ListRuns", **which).run_dict
    runs = sorted(found.values(), key=lambda run: str(run.pending_at), reverse=True)
    return [
        Submitted(
            int(run.run_id),
            _folder(run.federation.partition("/")[2]),
            run.status.status,
            run.status.sub_status,
            run.status.details,
        )
        for run in runs
    ]


def _detail(err: LinkError) -> str:
    """Return what the link said, without the words around it."""
    _, _, text = str(err).partition(": ")
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["detail"])
    return str(err)


def _folder(name: str) -> str:
    if not is_one_folder(name):
        raise BouquetError(f"expected runs named as folders from the link; got {name!r}")
    return name
