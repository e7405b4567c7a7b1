"""Compare the app that a SuperLink sends with the one that is installed here.

A bundle (FAB) lists its files with their hashes. The warm processes run the installed code, whatever the
bundle holds, so a list that lies gains nothing.
"""

import hashlib
import io
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from server_app.deploy.host.host import PROJECT
from task.config.read import flatten
from task.config.sections import Value
from task.errors import PACKAGES, RefusedError
from task.units import human_bytes

CONTENT = ".info/CONTENT"
OF_A_NODE = ("client_app", "task")  # what a node runs of them
HEADER_LETTERS = 100
MOST_FILES = 20_000  # of a bundle; ours has some 600
MOST_UNPACKED = 64 * 2**20  # bytes; Flower takes 10 MB packed
MOST_LISTED = 2**20  # bytes of its list of files and of its pyproject.toml
APPS = "apps.json"  # in the folder of the link's database: the apps that nodes report
LEFT_OUT = "left-out.json"  # there: what the SuperLink does without on this Flower, and what that costs
CODE_LETTERS = 8  # 32 bits tell versions apart; whether a bundle differs is decided file by file


class App(NamedTuple):
    """Which app a machine runs.

    Attributes:
        version: Of the package.
        code: The start of a SHA-256 over its Python files; two apps of one code compute the same.
        flower: Version of Flower, which may differ.
    """

    version: str
    code: str
    flower: str

    def __str__(self) -> str:
        return f"{self.version} ({self.code})"


@cache
def own_app(packages: tuple[str, ...] = OF_A_NODE) -> App:
    """Return the app that is installed here: its code on a node, or that of other packages."""
    lines = [f"{path},{digest}\n" for path, digest in installed(packages).items()]
    code = hashlib.sha256("".join(lines).encode()).hexdigest()[:CODE_LETTERS]
    return App(version("bouquet"), code, version("flwr"))


def read_app(header: str) -> App | None:
    """Return the app that a node says that it runs, in the words of an `App`; None if it does not say."""
    words = header[:HEADER_LETTERS].split()
    return App(*words) if len(words) == len(App._fields) else None


def differs(header: str, code: str) -> bool:
    """Return whether a node reports different code of the app; a node without a report checks each run."""
    app = read_app(header)
    return bool(code) and app is not None and app.code != code


def installed(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the SHA-256 of each Python file of the packages, by its path in a bundle.

    Call it when they are imported: files may change later, what was imported does not.
    """
    root = Path(__file__).resolve().parents[3]
    files = [p for package in packages for p in sorted((root / package).rglob("*.py"))]
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def check_unpacked(bundle: bytes) -> None:
    """Refuse a bundle that would unpack to too much; this check unpacks nothing.

    A member cannot yield more than its header says, which `zipfile` cuts it off at.

    Raises:
        RefusedError: It would, in files or in bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile:
        return  # the reader reports it
    lists = sum(member.file_size for member in members if member.filename in (CONTENT, PROJECT))
    size = sum(member.file_size for member in members)
    if len(members) > MOST_FILES or size > MOST_UNPACKED or lists > MOST_LISTED:
        raise RefusedError(
            f"policy: an app's bundle: expected at most {MOST_FILES:,} files, {human_bytes(MOST_UNPACKED)} "
            f"unpacked, and {human_bytes(MOST_LISTED)} of {CONTENT} and {PROJECT}; got {len(members):,} "
            f"files, {human_bytes(size)} and {human_bytes(lists)} in {human_bytes(len(bundle))}. Nothing was "
            "unpacked"
        )


def difference(bundle: bytes, here: Mapping[str, str]) -> str:
    """Return how a bundle differs from what `installed` returned, "" if it does not.

    Raises:
        RefusedError: It is too large to be unpacked.
    """
    check_unpacked(bundle)
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


def run_config(bundle: bytes, given: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run's keys: the defaults of its app's bundle, and those that the run was given.

    So does Flower; but it also parses each requirement of the app every time, which takes a fifth of the time
    of a small task. The SuperLink has accepted the bundle.

    Raises:
        RefusedError: It is too large to be unpacked.
        ValueError: It has no default for a key that was given, or its project file cannot be read.
        KeyError: It has no project file, or one of no Flower app.
        zipfile.BadZipFile: It is no bundle.
    """
    check_unpacked(bundle)
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        project = tomllib.loads(archive.read(PROJECT).decode("utf-8"))
    keys = flatten(project["tool"]["flwr"]["app"].get("config", {}))
    if unknown := given.keys() - keys.keys():
        raise ValueError(f"run-config keys {sorted(unknown)}: expected keys of the app; it has no such")
    return {**keys, **given}


def listing(bundle: bytes) -> bytes:
    """Return a bundle's list of files and run-config keys: all that a node with an app of its own reads.

    At 128 kbit/s the whole bundle takes 76 s, in which a run waits for the node.

    Raises:
        KeyError: One of the two is missing.
        zipfile.BadZipFile: It is no bundle.
        RefusedError: It is too large to be unpacked.
    """
    check_unpacked(bundle)
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle)) as whole, zipfile.ZipFile(packed, "w") as archive:
        for name in (CONTENT, PROJECT):
            archive.writestr(name, whole.read(name), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def forget(packages: Iterable[str] = PACKAGES) -> None:
    """Make the next import of the packages find the bundle's instead of the installed ones."""
    names = set(packages)
    for module in [m for m in sys.modules if m.partition(".")[0] in names]:
        del sys.modules[module]
