"""Files of one JSON object a line (rounds.jsonl, clients.jsonl), read while a run may be writing them.

A line counts once its newline is written; until then, a half-written last line waits for the next call. To
follow a file, pass `Chunk.after` and `Chunk.mark` to the next call, which starts from the beginning if the
file was cut or replaced. A damaged line hides no other: `read_lines` names it as a *problem*, `last_rows`
leaves it out. Where no line may be missing, `RunFolder.rounds` and `RunFolder.clients` raise instead.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

Row = dict[str, Any]

CHUNK_BYTES = 1_000_000  # of a growing file, for one answer
LONGEST_LINE = 64_000_000  # bytes; a round of a hundred thousand clients needs a tenth of it
TAIL_BYTES = 200_000
MOST_PROBLEMS = 20  # of one file


@dataclass
class Chunk:
    """Whole lines of a growing file."""

    rows: list[Row] = field(default_factory=list)
    after: int = 0  # where the next call continues, in bytes
    mark: str = ""  # fingerprint of the file up to `after`, for the next call
    restarted: bool = False  # the file was cut or replaced since the last call: the rows are its first ones
    more: bool = False  # the file holds further whole lines
    problems: list[str] = field(default_factory=list)  # lines that are not JSON objects


def read_lines(path: Path, after: int = 0, mark: str = "", most: int = CHUNK_BYTES) -> Chunk:
    """Return the lines after an offset; a half-written last line is left for the next call.

    The file need not exist. `after` and `mark` are those of the last chunk, `most` is about how many bytes
    to read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            restarted = after > 0 and (after > size or mark != _mark(file, after))
            start = 0 if restarted else after
            file.seek(start)
            data = file.read(most)
            if len(data) == most and not data.endswith(b"\n"):
                data += file.readline(LONGEST_LINE)
            lines = data[: data.rfind(b"\n") + 1]
            end = start + len(lines)
            more = end < size and bool(lines)
            chunk = Chunk(after=end, mark=_mark(file, end), restarted=restarted, more=more)
    except FileNotFoundError:
        return Chunk(restarted=after > 0)
    except OSError as err:
        return Chunk(after=after, mark=mark, problems=[problem(path, err)])
    if len(data) > LONGEST_LINE and not lines:
        chunk.problems.append(
            f"{path.name}: expected lines of at most {LONGEST_LINE} bytes; got a longer one"
        )
    chunk.rows = list(_objects(path, lines, start, chunk.problems))
    return chunk


def _objects(path: Path, lines: bytes, start: int, problems: list[str]) -> Iterator[Row]:
    offset, wrong = start, 0
    for line in split(lines)[0]:
        try:
            yield parse(line)
        except ValueError as err:
            wrong += 1
            if wrong <= MOST_PROBLEMS:
                problems.append(f"{path.name}, line at byte {offset}: damaged: {err}")
        offset += len(line) + 1
    if wrong > MOST_PROBLEMS:
        problems.append(f"{path.name}: {wrong - MOST_PROBLEMS} more damaged lines")


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole lines, without their newlines, and what comes after the last newline."""
    *lines, rest = data.split(b"\n")  # not splitlines: a name may hold other separators
    return lines, rest


def _mark(file: BinaryIO, offset: int) -> str:
    """Return a fingerprint of the file up to an offset."""
    if not offset:
        return ""
    file.seek(max(offset - 256, 0))
    last = file.read(min(offset, 256))
    return hashlib.sha256(b"%d " % os.fstat(file.fileno()).st_ino + last).hexdigest()[:16]


def last_rows(path: Path) -> Iterator[Row]:
    """Yield the whole lines near the end of a growing file, the last first; damaged ones are left out."""
    lines, length = b"", TAIL_BYTES
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while not lines and length < 8 * min(size, LONGEST_LINE) + TAIL_BYTES:
                start = max(size - length, 0)
                file.seek(start)
                data = file.read(size - start)
                lines = data[data.find(b"\n") + 1 if start else 0 : data.rfind(b"\n") + 1]
                length *= 8
    except OSError:
        return
    for line in reversed(lines.split(b"\n")):
        try:
            if line:
                yield parse(line)
        except ValueError:
            continue


def parse(data: bytes, *, strict: bool = False) -> Row:
    """Return a JSON object; `strict` refuses NaN and infinity, which Python would take.

    Raises:
        ValueError: It is none; says why, and does not repeat what was in the file. Its cause, if any, does.
    """
    try:
        value = json.loads(data, parse_constant=_refuse if strict else None)
    except (ValueError, RecursionError) as err:  # also UnicodeDecodeError and JSONDecodeError
        reason = getattr(err, "msg", None) or type(err).__name__
        raise ValueError(f"expected a JSON object; got {len(data)} bytes ({reason})") from err
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object; got a {type(value).__name__}")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def read_object(path: Path, problems: list[str]) -> Row | None:
    """Return the JSON object in a file; None if there is no file, or with a problem if it cannot be read."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as err:
        problems.append(problem(path, err))
    except ValueError as err:
        problems.append(f"{path.name}: damaged: {err}")
    return None


def number(value: object) -> float | int | None:
    """Return a number that JSON can hold, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 and math.isfinite(value) else None


def problem(path: Path, err: OSError) -> str:
    """Return the sentence about a file that could not be read."""
    return f"{path.name}: cannot be read: {err.strerror or type(err).__name__}"
