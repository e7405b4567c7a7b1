"""How the monitor reads whole files that others replace meanwhile: never an exception.

What cannot be read becomes a line of text about it, a *problem*, that the page shows.
"""

from __future__ import annotations

from pathlib import Path

from server_app.results.lines import Row, parse, problem


def read_object(path: Path, problems: list[str]) -> Row | None:
    """Return a JSON object; None if there is none, or with a problem if it cannot be read."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as err:
        problems.append(problem(path, err))
    except ValueError as err:
        problems.append(f"{path.name}: damaged: {err}")
    return None


def modified(*paths: Path) -> float | None:
    """Return when the latest of these files was written, in seconds since 1970; None if none is there."""
    times = []
    for path in paths:
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)
