"""A node's own data, checked before the node connects: ``python -m server_app.deploy.node.own_data``.

It reads as the app does, in a process of its own, which gives its memory back when it ends. What it reads
lies in the cache afterwards, where the runs find it.
"""

import resource
import subprocess
import sys
from pathlib import Path

from server_app.deploy.host.modules import module_command
from server_app.deploy.host.processes import how_it_ended
from server_app.deploy.host.resource_limits import MemoryLimit, data_bytes, spell
from task.errors import BouquetError, ConfigError, DataError

UNUSABLE, TOO_LARGE = 65, 66  # exit codes


def check_data(data: Path, name: str, cache: Path, max_memory: int = 0, column_types: str = "") -> str:
    """Read a node's own data; return what they are, one line.

    Args:
        data: The file or folder.
        name: The node's name.
        cache: Cache folder of the node.
        max_memory: Most bytes that reading them may take; 0 = no limit.
        column_types: What the owner declares of a csv file's columns; "" = nothing.

    Raises:
        DataError: They cannot be used: file, line and column, what was expected, what to do.
        ConfigError: Reading them takes more memory than the node may use.
        BouquetError: The process that reads them was ended.
    """
    place = data.expanduser().resolve()
    command = module_command("server_app.deploy.node.own_data", str(place), name)
    command += [str(cache), str(max_memory), column_types]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = done.stdout.strip()
    if done.returncode == UNUSABLE:
        raise DataError(f"--data: {said}")
    if done.returncode == TOO_LARGE:
        raise ConfigError(
            f"--max-memory {spell(max_memory)}: reading {place} needs more. Give the node more "
            "memory, or less data"
        )
    if done.returncode:
        trace = done.stderr.strip().rpartition("\n")[2] or "no output; is there too little memory?"
        raise BouquetError(f"--data: the process that reads {place} {how_it_ended(done.returncode)}: {trace}")
    return said


def main() -> None:
    """Start from the command line: data, name, cache folder, most bytes of memory, declared types."""
    from task.datasets import check_owned

    data, name, cache, max_memory, column_types = sys.argv[1:]
    if most := int(max_memory):
        limit = data_bytes() + max(most - MemoryLimit(most).used(), 0)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        print(check_owned(Path(data), name, Path(cache), column_types))
    except (ConfigError, DataError) as err:
        print(err)
        sys.exit(UNUSABLE)
    except MemoryError:
        sys.exit(TOO_LARGE)


if __name__ == "__main__":
    main()
