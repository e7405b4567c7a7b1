"""Files of kept state: the arrays of one client, and a header that says whose they are.

``<state-dir>/<run-name>/<first 12 letters of the run's id>/<client>.safetensors`` holds the arrays as
``field/name``. Its metadata ``bouquet`` is a JSON of the `Header`, the number of this format and a checksum
of all that: 128-bit XXH3, which finds damage, takes a tenth of the time of SHA-256.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from task.errors import StateError, local
from task.numerics.arrays import Arrays, NamedArrays, hash_into
from task.storage.files import write_bytes

FORMAT = 2
SUFFIX = ".safetensors"
REPLICA = "replica"  # folder of a run with the node's copies of the global model, which have no header
NO_RUN = "no-run-id"  # folder for a strategy of another library, which gives no run id
LONGEST_NAME = 160  # of a file; file systems take 255 bytes, the suffixes of damaged ones included


@dataclass(frozen=True)
class Header:
    """Whose state a file is, and of when."""

    client: str
    algorithm: str
    run: str
    round: int
    previous: int  # round of the version that it was made from; 0 = none
    fields: tuple[str, ...]


@lru_cache(maxsize=64)
def folder_of(root: Path, run_name: str, run: str) -> Path:
    """Return the folder of a run's kept state."""
    return root / safe_name(run_name) / (safe_name(run[:12]) or NO_RUN)


def receipts_of(root: Path, run: str) -> Path:
    """Return the folder of the receipts of a run, by its id; no run's own folder begins with a dot."""
    return root / ".receipts" / safe_name(run)


def write_kept(path: Path, header: Header, fields: Mapping[str, Arrays], *, durable: bool = True) -> None:
    """Replace a file of kept state, atomically; `header.fields` names the fields.

    What is not `durable` survives a power cut only after it and its folder were synced.
    """
    arrays = {f"{f}/{n}": np.asarray(a, order="C") for f in header.fields for n, a in fields[f].items()}
    meta = {"format": FORMAT, **vars(header)}
    text = json.dumps({**meta, "xxh3": _checksum(meta, arrays)})
    write_bytes(path, save(arrays, {"bouquet": text}), durable=durable)


def read_header(path: Path) -> Header:
    """Return the header of a file, without reading its arrays or checking them.

    Raises:
        ValueError: The file is damaged; says what was expected and what was got.
        StateError: A newer or an earlier Bouquet made it, in another format.
        OSError: It is not there, or cannot be read.
    """
    with _checked(path):
        # As `safe_open` reads it, which would map the arrays into memory for that.
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length < size else b""
        head = json.loads(text)
        header, _, _ = _header(path, head["__metadata__"])
        ends = [array["data_offsets"][1] for name, array in head.items() if name != "__metadata__"]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"{size} bytes in a file of {8 + length + max(ends, default=0)}")
        return header


def read_kept(path: Path) -> tuple[Header, dict[str, Arrays]]:
    """Return the header of a file and its arrays by field; raises as `read_header`."""
    with _checked(path), safe_open(path, framework="np") as file:
        # One opening for header and arrays: a save may put a new file in place of this one at any time.
        header, meta, wanted = _header(path, file.metadata() or {})
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict
        found = _checksum(meta, arrays)
    if found != wanted:
        raise ValueError(f"expected checksum {wanted[:12]}; got {found[:12]}")
    fields: dict[str, Arrays] = {f: {} for f in header.fields}
    for key, array in arrays.items():
        field, _, name = key.partition("/")
        fields[field][name] = array
    return header, fields


def _header(path: Path, metadata: Mapping[str, str]) -> tuple[Header, dict[str, Any], str]:
    """Return the header in a file's metadata, all that its checksum is of, and the checksum."""
    meta = dict(json.loads(metadata["bouquet"]))
    number = int(meta["format"])
    if number != FORMAT:
        made, do = "an earlier", "Finish its run with that version, or start a new run"
        if number > FORMAT:
            made, do = "a newer", "Update Bouquet on this machine"
        raise StateError(
            f"kept state {local(path)}: expected format {FORMAT}; got format {number}, of {made} Bouquet. "
            f"Nothing was changed. {do}."
        )
    wanted = str(meta.pop("xxh3"))
    client, algorithm, run = (str(meta[name]) for name in ("client", "algorithm", "run"))
    fields = tuple(str(f) for f in meta["fields"])
    header = Header(client, algorithm, run, int(meta["round"]), int(meta["previous"]), fields)
    if not 0 <= header.previous <= header.round:
        raise ValueError(f"round {header.round} made from round {header.previous}")
    return header, meta, wanted


@contextmanager
def _checked(path: Path) -> Iterator[None]:
    """Say of what goes wrong with a file's form that the file is damaged."""
    try:
        yield
    except FileNotFoundError:
        # safe_open says this of every file that it cannot open; Python's own error says why it cannot.
        path.open("rb").close()
        raise OSError(f"{path} could not be opened") from None
    except (SafetensorError, KeyError, IndexError, TypeError, AttributeError, ValueError) as err:
        raise ValueError(f"expected a whole state file; got {type(err).__name__}: {err}") from None


def _checksum(meta: Mapping[str, Any], arrays: NamedArrays) -> str:
    digest = xxhash.xxh3_128(json.dumps(meta, sort_keys=True).encode())
    hash_into(digest, arrays)
    return digest.hexdigest()


def safe_name(name: str) -> str:
    """Return a name as a file name, distinct for distinct names: percent-encoded UTF-8, long ones hashed."""
    safe = quote(name, safe=" ")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    if len(safe) > LONGEST_NAME:
        safe = f"{safe[: LONGEST_NAME - 20]}%{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return safe
