"""Who may submit runs to a link, and what: its owner anything, a submitter less.

A caller shows a token, which follows from the secret of its kit. The link knows the SHA-256 of each token and
reads it at each call, so a revoked one is refused at once. A submitter may not name code, paths or trackers,
as these are of the link's own machine; it touches no run of others; and it may not fill the queue.
"""

import hmac
import time
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from server_app.deploy.kits.kit import OWNER, LinkKit, digest_of
from server_app.deploy.link.jobs import Job, Jobs
from server_app.results.folder import RunFolder
from server_app.run.confined import PATHS
from task.config.read import flatten
from task.errors import ConfigError
from task.references import references_in
from task.storage.files import make_folder, private
from task.text import plain

MOST_JOBS = 16  # of a submitter that have not ended
MOST_KEYS, MOST_LETTERS = 1000, 65_536  # of run-config keys that came over the network
AUDIT, LONGEST = "audit.log", 1000  # letters of a line


def caller_of(kit: LinkKit, token: str) -> str:
    """Return who shows a token: `OWNER`, the name of a submitter, or "" if nobody's is this one."""
    known = {OWNER: digest_of(kit.token)}
    for name, path in kit.submitter_keys.items():
        with suppress(OSError, ValueError, IndexError):  # a damaged file lets nobody in
            known[name] = b64decode(path.read_bytes().split()[1], validate=True)
    shown = digest_of(token) if token.isascii() else b""
    same = [name for name, digest in known.items() if hmac.compare_digest(digest, shown)]  # all are compared
    return same[0] if same else ""


def may_see(caller: str, job: Job) -> bool:
    """Return whether a job is one that a caller may see, follow and stop."""
    return caller in (OWNER, job.submitter)


def check_keys(keys: Mapping[str, Any], submitter: str) -> None:
    """Refuse run-config keys that a submitter may not set.

    Raises:
        ConfigError: Naming the first one.
    """
    flat = flatten(keys)
    for key in (*PATHS, "tracker"):
        if flat.get(key):
            raise ConfigError(
                f'run-config key "{key}": expected none from {submitter}, as it names something on the '
                f"link's machine; got {flat[key]!r}. The link's owner may submit such a run"
            )
    if named := references_in(flat):
        raise ConfigError(
            f"run-config keys: expected no code or data set of a user's own from {submitter}; got "
            f'"{named[0]}". The link\'s owner may submit such a run'
        )


def check_submitter(jobs: Jobs, submitter: str, name: str, *, resume: bool) -> None:
    """Refuse a run of a submitter that has many, or whose name is another's; the owner may submit any.

    Raises:
        ConfigError: With the number of its runs, or the name.
    """
    if submitter == OWNER:
        return
    waiting = sum(job.submitter == submitter and not job.ended for job in jobs.all())
    if waiting >= MOST_JOBS:
        raise ConfigError(
            f"expected at most {MOST_JOBS} runs of {submitter} that are queued or running; got {waiting}. "
            "Stop one, or wait until one ends"
        )
    good = not name or (Path(name).name == name and may_take(jobs, name, submitter))
    if not good or (resume and not (name and _submitted(jobs, name))):
        raise ConfigError(
            f'run-config key "run-name": expected a free name, or with resume=true that of a run of '
            f"{submitter}; got {name!r}"
        )


def may_take(jobs: Jobs, name: str, submitter: str) -> bool:
    """Return whether a run of this name would be nobody else's; the owner may take any."""
    return submitter == OWNER or _submitted(jobs, name) in ("", submitter)


def _submitted(jobs: Jobs, name: str) -> str:
    """Return who submitted the run of a name, "" if there is none."""
    if job := jobs.read(name):
        return job.submitter
    folder = jobs.runs / name
    return str(RunFolder(folder).config().get("submitter", OWNER)) if folder.exists() else ""


def audit(kit: LinkKit, line: str) -> None:
    """Add a line to the link's record of who did what; what came from outside makes it no longer."""
    line = plain(" ".join(line.split())[:LONGEST])
    make_folder(kit.logs)
    with open(kit.logs / AUDIT, "a", opener=private, encoding="utf-8") as file:
        print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), line, file=file)
