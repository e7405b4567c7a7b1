"""Turns a ``flwr run`` at a link into a job: ``python -m server_app.deploy.link.submission KIT CALLER``.

The request comes on standard input. It is read in a process of its own that ends with it: the bundle and the
keys are a stranger's until they are checked, and the user's own code that the keys of the owner name is then
imported as it is now.

A run at a link is always one of the installed app. So the bundle must be equal to that, file by file, but for
the values below ``[tool.flwr.app.config]``, which count as if they were given with ``-c``.
"""

import io
import json
import sys
import tomllib
import zipfile
from typing import Any

from server_app.deploy.calls.control_calls import read_start
from server_app.deploy.host.app_integrity import difference, installed, own_app
from server_app.deploy.host.host import PROJECT, app_folder
from server_app.deploy.kits.kit import OWNER, LinkKit, read_link_kit
from server_app.deploy.link.follow import submit
from server_app.deploy.link.jobs import Job
from server_app.deploy.link.submitters import MOST_KEYS, MOST_LETTERS
from task import trust
from task.config.read import flatten
from task.errors import BouquetError, ConfigError
from task.references import references_in

REFUSED = 65  # exit code


def submission(kit: LinkKit, caller: str, body: bytes) -> Job:
    """Queue the run that a request asks for.

    Raises:
        BouquetError: The app is not the installed one, a key is wrong, or the caller may not submit this run.
    """
    bundle, given = read_start(body)
    if differs := difference(bundle, installed()):
        raise ConfigError(
            f"expected the app that is installed at the link, bouquet {own_app()}; got another: {differs}. "
            "Submit from the same version, unchanged"
        )
    keys = _changed(bundle) | given
    letters = sum(len(key) + len(str(value)) for key, value in keys.items())
    if len(keys) > MOST_KEYS or letters > MOST_LETTERS:
        raise ConfigError(
            f"run-config keys: expected at most {MOST_KEYS} with {MOST_LETTERS:,} letters; got {len(keys)} "
            f"with {letters:,}"
        )
    if caller == OWNER:
        trust.user_named(references_in(keys))  # as `bouquet run --link` does
    return submit(kit, keys, submitter=caller)


def _changed(bundle: bytes) -> dict[str, Any]:
    """Return the run-config keys whose values in a bundle are not those of the installed app."""
    with app_folder() as folder:
        ours = _config((folder / PROJECT).read_bytes())
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            theirs = _config(archive.read(PROJECT))
    except (KeyError, ValueError, AttributeError, RecursionError, zipfile.BadZipFile) as err:
        raise ConfigError(
            f"{PROJECT} of the app: expected keys below [tool.flwr.app.config]; got {type(err).__name__}: "
            f"{err}"
        ) from None
    same = {
        key for key, value in ours.items() if type(theirs.get(key)) is type(value) and theirs[key] == value
    }
    if wrong := [k for k, v in theirs.items() if not isinstance(v, bool | int | float | str)]:
        raise ConfigError(f'run-config key "{wrong[0]}": expected a bool, number or text in {PROJECT}')
    return {key: value for key, value in theirs.items() if key not in same}


def _config(project: bytes) -> dict[str, Any]:
    return flatten(tomllib.loads(project.decode("utf-8"))["tool"]["flwr"]["app"].get("config", {}))


def main() -> None:
    """Start from the command line; print the job's name and number, or what is wrong."""
    folder, caller = sys.argv[1:]
    try:
        job = submission(read_link_kit(folder), caller, sys.stdin.buffer.read())
    except BouquetError as err:
        print(err)
        sys.exit(REFUSED)
    print(json.dumps({"name": job.name, "number": job.number}))


if __name__ == "__main__":
    main()
