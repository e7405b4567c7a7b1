"""Is the app that a SuperLink sends the one that is installed here?

A bundle (FAB) lists its files with their hashes. The warm processes run the installed code, whatever the
bundle holds, so a list that lies gains nothing.
"""

import hashlib
import io
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

CONTENT = ".info/CONTENT"
PACKAGES = ("client_app", "server_app", "strategies", "task")
OF_A_NODE = ("client_app", "task")  # what a node runs of them


def installed(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the SHA-256 of each Python file of the packages, by its path in a bundle.

    Call it when they are imported: files may change later, what was imported does not.
    """
    root = Path(__file__).resolve().parents[3]
    files = [p for package in packages for p in sorted((root / package).rglob("*.py"))]
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def difference(bundle: bytes, here: Mapping[str, str]) -> str:
    """Return how a bundle differs from what `installed` returned, "" if it does not."""
    packages = {path.partition("/")[0] for path in here}
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            lines = archive.read(CONTENT).decode("utf-8").strip().splitlines()
        listed = dict(line.split(",")[:2] for line in lines)
    except (zipfile.BadZipFile, KeyError, ValueError) as err:
        return f"its list of files cannot be read ({type(err).__name__})"
    sent = {p: h for p, h in listed.items() if p.endswith(".py") and p.partition("/")[0] in packages}
    if not sent:
        return "it is another app"
    differ = sorted(p for p in sent.keys() | here.keys() if sent.get(p) != here.get(p))
    if not differ:
        return ""
    more = f" and {len(differ) - 1} more files" if len(differ) > 1 else ""
    return f"{differ[0]}{more} differ"


def forget(packages: Iterable[str] = PACKAGES) -> None:
    """Let the next import of the packages find the bundle's instead of the installed ones."""
    names = set(packages)
    for module in [m for m in sys.modules if m.partition(".")[0] in names]:
        del sys.modules[module]
