"""Build an app's bundle as Flower's command line does, and set the environment of Flower's programs."""

import io
import zipfile
from pathlib import Path

from task.errors import PACKAGES


def build_bundle(folder: Path) -> bytes:
    """Return the app's folder as the bundle that `flwr build` makes, compressed.

    Flower would look at every file of the folder, those of a ``.venv`` too, and stores files as they are. A
    node that may run any app downloads the bundle before its first message: at 256 kbit/s the stored one
    takes more than a minute.
    """
    from flwr.cli.build import build_fab_from_files

    paths = [folder / ".gitignore", folder / "pyproject.toml"]
    paths += [path for package in PACKAGES for path in (folder / package).rglob("*")]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(build_fab_from_files(files)[0])) as stored,
        zipfile.ZipFile(packed, "w") as archive,
    ):
        for file in stored.infolist():
            archive.writestr(file, stored.read(file), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process that keeps its files in a folder and asks no other machine."""
    return {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
