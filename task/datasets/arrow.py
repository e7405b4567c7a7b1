"""Read folders that ``save_to_disk`` of Hugging Face's datasets wrote, also for ``flwr-datasets create``.

A folder is one set (``state.json``), or has a folder for each split (``dataset_dict.json``). Its files may
come from anyone. They are refused if they name files elsewhere, are cut off or compressed, which nobody can
measure, if the offsets in a column lead out of it, or if they are larger than the memory that is left.
"""

import json
import struct
from pathlib import Path
from typing import Any

from task.datasets.base import no_progress_thread
from task.errors import DataError, local, reason
from task.storage.memory import available
from task.units import human_bytes

SET, SPLITS = "state.json", "dataset_dict.json"
LONGEST_JSON = 2**24  # bytes of a file of names
_HEADER, _COMPRESSION = 2, 3  # fields of Arrow's tables Message and RecordBatch


def is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote a folder."""
    return (folder / SPLITS).is_file() or (folder / SET).is_file()


def saved_splits(folder: Path) -> dict[str, Any]:
    """Return the sets of a folder by the names of their splits; a set without splits is "train".

    Raises:
        DataError: It is damaged, names files elsewhere, or does not fit into the memory that is left.
    """
    if not (folder / SPLITS).is_file():
        return {"train": _set(folder)}
    names = _names(folder / SPLITS, _read(folder / SPLITS).get("splits"))
    if gone := [name for name in names if not (folder / name / SET).is_file()]:
        raise DataError(f"{local(folder)}: expected a folder of each split; got none of {local(gone[0])}")
    return {name: _set(folder / name) for name in names}


def _set(folder: Path) -> Any:
    """Return the set of a folder."""
    import datasets

    no_progress_thread()
    files = _read(folder / SET).get("_data_files")
    listed = [one.get("filename") if isinstance(one, dict) else one for one in files or ()]
    _read(folder / "dataset_info.json")
    for name in _names(folder / SET, listed):
        _check_messages(folder / name)
    try:
        found = datasets.Dataset.load_from_disk(str(folder.resolve())).with_format(None)
        found.data.table.validate(full=True)
    except Exception as err:  # the library's own, and pyarrow's
        raise DataError(f"{local(folder)}: cannot be loaded: {reason(err)}. Save the set again") from err
    if (needs := found.data.nbytes) > (free := available()):
        raise DataError(
            f"{local(folder)}: expected at most {human_bytes(free)}, the memory that is left on this "
            f"machine; got a set of {human_bytes(needs)}. Save fewer rows or columns"
        )
    return found


def _read(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of moderate size."""
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise DataError(f"{local(path)}: expected at most {LONGEST_JSON:,} bytes. Save the set again")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as err:
        raise DataError(f"{local(path)}: expected JSON; got {reason(err)}. Save the set again") from err
    if not isinstance(found, dict):
        raise DataError(f"{local(path)}: expected a JSON object. Save the set again")
    return found


def _names(path: Path, listed: Any) -> list[str]:
    """Return names of files or folders next to a file that lists them; refuse paths to elsewhere."""
    names = listed if isinstance(listed, list) else []
    wrong = [name for name in names if not isinstance(name, str) or Path(name).name != name or name == ".."]
    if wrong or not names:
        got = repr(wrong[0])[:80] if wrong else "none"
        raise DataError(f"{local(path)}: expected names in this folder; got {local(got)}. Save the set again")
    return names


def _check_messages(path: Path) -> None:
    """Refuse an Arrow file with other messages than the library writes; nothing is copied into memory."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file:
            for i, message in enumerate(pa.ipc.MessageReader.open_stream(file)):
                plain = message.type == ("record batch" if i else "schema")
                if not plain or (i and _is_compressed(message.metadata.to_pybytes())):
                    got = f"a compressed {message.type}" if plain else f"{message.type} as message {i}"
                    raise DataError(
                        f"{local(path)}: expected plain rows, as save_to_disk writes them; got {got}"
                    )
    except (OSError, ValueError, struct.error) as err:  # pyarrow's are of these kinds
        raise DataError(f"{local(path)}: cannot be read as Arrow: {reason(err)}. Save the set again") from err


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch is compressed, from its flatbuffer, a Message; pyarrow does not tell."""

    def field(table: int, number: int) -> int:
        """Return where a field of a table is, 0 if it has none."""
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        end, at = struct.unpack_from("<H", metadata, vtable)[0], 4 + 2 * number
        offset: int = struct.unpack_from("<H", metadata, vtable + at)[0] if at < end else 0
        return table + offset if offset else 0

    header = field(struct.unpack_from("<I", metadata)[0], _HEADER)
    return field(header + struct.unpack_from("<I", metadata, header)[0], _COMPRESSION) > 0
