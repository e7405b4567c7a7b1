"""Fetching raw data that are not there: whole or not at all, next to what the user put there."""

import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from task.errors import DataError, local
from task.storage.files import FILE, make_folder


def download(
    name: str, places: Sequence[Path], folder: str, kind: str, advice: str = "", **options: Any
) -> Path:
    """Download a data set to ``place/folder`` of the first place that can be written; return that folder.

    The class `kind` of torchvision's data sets fetches it, with `options`.

    Raises:
        DataError: The download failed; the error says which files to put where by hand, and gives `advice`.
    """
    place = next((p for p in places if _writable(p)), places[-1])
    target = place / folder
    temporary = ""
    try:
        temporary = tempfile.mkdtemp(prefix=".download-", dir=place)
        from torchvision import datasets

        getattr(datasets, kind)(temporary, download=True, **options)
        for path in sorted((Path(temporary) / folder).rglob("*")):
            if path.is_file():  # one by one, since the folder may hold something already
                goal = target / path.relative_to(Path(temporary) / folder)
                make_folder(goal.parent)
                path.chmod(FILE)
                path.replace(goal)
    except Exception as err:  # torchvision raises RuntimeError, URLError, OSError, zipfile's errors, ...
        looked = " or ".join(dict.fromkeys(str(p / folder) for p in places))  # two places may be one
        raise DataError(
            f"{name}: no data in {local(looked)}, and the download "
            f"failed: {local(' '.join(str(err).split()))}. Put the unpacked files into {local(target)}, or "
            'set the run-config key "data-dir" (or $BOUQUET_DATA) to the folder that holds them.' + advice
        ) from err
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def _writable(place: Path) -> bool:
    """Tell whether the folder exists, or can be made, and may be written.

    The mode counts, not `os.access`: to the super-user that says yes even of folders made read-only.
    """
    try:
        make_folder(place)
        return bool(place.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    except OSError:
        return False
