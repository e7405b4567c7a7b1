"""``RUN/arrivals.jsonl``: the order in which updates arrived, written to disk before they count.

Its first line names the run; the others are those of `strategies.engine.arrival_log`. The file only grows: a
resumed run follows the recorded order and then appends to it. An incomplete last line is an event without
consequences; a resume removes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server_app.results.folder import RunFolder
from strategies.engine.arrival_log import ArrivalLog
from task.config.knobs import Config
from task.errors import ConfigError, StateError
from task.privacy.releases import Releases

FILE = "arrivals.jsonl"


def check_deployed(config: Config) -> None:
    """Refuse real arrivals in a simulation.

    Raises:
        ConfigError: Saying what to do.
    """
    if config.server.order_of_arrival == "real":
        raise ConfigError(
            'run-config key "order-of-arrival": expected "virtual" in a simulation, where only simulated '
            'devices have arrival times; got "real". Run it on a link (bouquet run --link KIT, bouquet '
            'federation); "bouquet replay RUN" then repeats it in the simulation'
        )


def order_of(folder: RunFolder) -> ArrivalLog:
    """Return a run's order of arrival, to continue it.

    Raises:
        StateError: The file is damaged, or of another run.
    """
    run_id, file = str(folder.config()["id"]), Releases(folder.path / FILE)
    lines = file.lines()

    def write(line: Mapping[str, Any]) -> None:
        if not file.path.exists():
            file.append({"event": "run", "id": run_id})
        file.append(line)

    return ArrivalLog(_events(file.path, lines, run_id), write, str(file.path))


def finished_order_of(folder: RunFolder) -> ArrivalLog:
    """Return a finished run's order of arrival.

    Raises:
        StateError: The file is missing, damaged, or of another run; or its last line is not whole.
    """
    path = folder.path / FILE
    data = path.read_bytes() if path.exists() else b""
    if not data:
        raise StateError(f"{path}: expected the order in which updates arrived; got none. Restore the file")
    if not data.endswith(b"\n"):
        raise StateError(
            f"{path}: expected whole lines; got {len(data)} bytes, the last incomplete. If the run's "
            "server was killed, resume the run, which removes that line; else restore the file"
        )
    return ArrivalLog(_events(path, Releases(path).lines(), str(folder.config()["id"])), None, str(path))


def _events(path: Path, lines: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
    if not lines:
        return []
    first = lines[0]
    if first.get("event") != "run" or first.get("id") != run_id:
        got = first.get("id") if first.get("event") == "run" else first
        raise StateError(f"{path}: expected the order of arrival of run {run_id}; got that of {got}")
    return lines[1:]
