"""The policy of a node's owner: which code, how many rounds and examples, and when to train."""

import subprocess
import time
from dataclasses import dataclass

from server_app.deploy.host.processes import say
from task import timing
from task.errors import RefusedError, local
from task.storage.files import private

HOOK_LOOKS = 10


@dataclass(frozen=True)
class Site:
    """What the owner of this machine allows.

    Attributes:
        apps: "installed" or "any": which code may run.
        max_rounds: Training messages of a run that are answered; 0 = no limit.
        min_examples: Fewest examples that an update is computed from; 0 = no limit. The installed app sees to
            it (`client_app.data.owner`); for another app it is unknown.
        min_steps: Fewest local steps that it is computed in, likewise.
        may_train: Program that is asked before each training task; "" = none.
        threads: Most threads of a task; 0 = no limit.
        audit: File to which refusals are appended; "" = only the log.
    """

    apps: str = "installed"
    max_rounds: int = 0
    min_examples: int = 0
    min_steps: int = 0
    may_train: str = ""
    threads: int = 0
    audit: str = ""


def trains(message_type: str) -> bool:
    """Return whether a message of this type asks for training."""
    return message_type.partition(".")[0] == "train"


def may_train(site: Site, trained: int, *, installed: bool) -> None:
    """Refuse a training that the site's policy does not allow.

    Args:
        site: What is allowed.
        trained: Training messages of this run so far.
        installed: Whether the run's app is the installed one.

    Raises:
        RefusedError: With the reason.
    """
    if site.max_rounds and trained >= site.max_rounds:
        raise RefusedError(f"policy: max-rounds = {site.max_rounds} of this run are done")
    for key, least in (("min-examples", site.min_examples), ("min-steps", site.min_steps)):
        if least and not installed:
            raise RefusedError(
                f"policy: {key} = {least}; expected 0, as another app's work cannot be counted"
            )
    if site.may_train:
        ask(site.may_train)


def ask(hook: str) -> None:
    """Ask a program whether to train now; exit code 0 means yes.

    Raises:
        RefusedError: With what it printed; the server hears of its standard output alone.
    """
    program = local(hook, "its program")
    try:
        asked = subprocess.Popen(
            [hook], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as err:
        raise RefusedError(f"not training: {program} cannot be run: {err.strerror}") from None
    with asked:
        for _ in range(HOOK_LOOKS):  # a machine that sleeps meanwhile loses one of them
            try:
                out, noise = (
                    text.strip()[-200:] for text in asked.communicate(timeout=timing.HOOK_S / HOOK_LOOKS)
                )
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            asked.kill()
            raise RefusedError(f"not training: {program} did not answer within {timing.HOOK_S:g} s")
    if asked.returncode:
        said = out or f"exit code {asked.returncode}"
        raise RefusedError(f"not training: {program} said {said}{local(f' ({noise})' if noise else '', '')}")


def audit(site: Site, line: str) -> None:
    """Write down that something was refused."""
    say(f"audit: {line}")
    if site.audit:
        with open(site.audit, "a", opener=private, encoding="utf-8") as file:
            print(time.strftime("%Y-%m-%dT%H:%M:%S%z"), line, file=file)
