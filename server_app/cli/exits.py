"""The exit codes of all commands; from 64 on they are those of sysexits.h, which systemd knows by name."""

from task.errors import ConfigError, DataError, UnreachableError

DONE = 0
NO = 1  # the answer is no: a red status, a contradiction, a broken promise
USAGE = 2  # an unknown command or option
DETACHED = 3  # the terminal stopped following a job, which continues
DATA = 65
UNREACHABLE = 69
FAILED = 70
FILES = 74
CONFIG = 78
INTERRUPTED = 130

MEANINGS = {
    DONE: "done",
    NO: "the answer is no: `status` is red, `verify` or `replay` differs, `audit` found a broken promise",
    USAGE: "usage: no such command or option",
    DETACHED: "`run --link`: Ctrl-C stopped following the job, which goes on",
    DATA: "data: missing, damaged or unfit for the run",
    UNREACHABLE: "the link is not running, or does not answer",
    FAILED: "the run failed, or there is a bug: the error says why; of a run, so do status and monitor",
    FILES: "a file or folder cannot be read or written, such as on a full disk",
    CONFIG: "configuration: a run-config key, the value of an option, a recipe, a kit, a certificate",
    INTERRUPTED: "interrupted by Ctrl-C; of a job that is followed: it was stopped",
}
LASTING = (USAGE, DATA, CONFIG)  # a restart would not help: services do not restart after these


class StoppedError(Exception):
    """The user stopped a command, or the job that it follows; the text says what is left and how to go on."""


def code_of(err: Exception) -> int:
    """Return the exit code of a command that ended with this error."""
    kinds = {ConfigError: CONFIG, DataError: DATA, UnreachableError: UNREACHABLE, OSError: FILES}
    return next((code for kind, code in kinds.items() if isinstance(err, kind)), FAILED)
