"""A stopped run's result, written in a process of its own: ``python -m server_app.deploy.link.stopped``.

Models need torch, which would stay in the link's own process as long as it is up, some 300 MB.
"""

import subprocess
import sys
from pathlib import Path

from server_app.deploy.host.processes import how_it_ended
from task.errors import BouquetError

FAILED = 65  # exit code
WAIT_S = 300.0


def finish_stopped(folder: Path) -> None:
    """Write what a run has that its user stopped, see `server_app.run.stopped`.

    Raises:
        BouquetError: Checkpoint or journal are damaged, nothing can be written, or the process was ended.
    """
    command = [sys.executable, "-m", "server_app.deploy.link.stopped", str(folder)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=WAIT_S
        )
    except subprocess.TimeoutExpired:
        raise BouquetError(f"the process that writes it took more than {WAIT_S:g} s") from None
    if done.returncode == FAILED:
        raise BouquetError(done.stdout.strip())
    if done.returncode:
        trace = done.stderr.strip().rpartition("\n")[2] or "no word; is there too little memory?"
        raise BouquetError(f"the process that writes it {how_it_ended(done.returncode)}: {trace}")


def main() -> None:
    """Start from the command line: the run's folder."""
    from server_app.run.stopped import finish_stopped

    try:
        finish_stopped(Path(sys.argv[1]), "by the user")
    except (BouquetError, OSError) as err:
        print(err)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
