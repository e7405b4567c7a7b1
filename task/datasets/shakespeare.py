"""Shakespeare's speaking roles as owners of text; the model predicts the next byte.

Two forms are read. ``roles.jsonl.gz``: one JSON object per line with ``play``, ``role`` and ``lines``. A role
is an owner; the last fifth of its lines (rounded up) is its test text. A text is cut into windows of 80 bytes
that do not overlap; every byte but a text's first is predicted once, and short last windows are padded.
With the run-config key ``shuffle-lines`` the owners are not roles: the roles' training lines are shuffled and
dealt to as many owners, the IID partition of McMahan et al. 2017. The test text stays the roles'.

LEAF's JSON (`task.datasets.leaf`): ``x`` are strings of 80 characters and ``y`` the next character. Only that
next character counts, as in LEAF.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import PADDING, Decoded, Names, Request, Source, by_owner
from task.datasets.leaf import files_in, users
from task.errors import ConfigError, DataError, local
from task.numerics import seeds

WINDOW = 80
CLASSES = 256  # bytes: the paper's "character" is a one-byte string

Windows = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int16]]
OwnerLines = tuple[str, list[str], list[str]]  # name, training lines, test lines
OwnerWindows = tuple[str, Windows, Windows]  # name, training windows, test windows


def locate(request: Request) -> Source:
    """Find the roles file, else LEAF's JSON files."""
    folder = request.data_dir / "shakespeare"
    roles = folder / "roles.jsonl.gz"
    if roles.is_file():
        return Source((roles,), {"shuffle-lines": request.seed} if request.shuffle_lines else {})
    if leaf := files_in(folder):
        if request.shuffle_lines:
            raise ConfigError(
                'run-config key "shuffle-lines": LEAF\'s JSON has windows and no lines; expected false, or '
                f"roles.jsonl.gz in {local(folder)}"
            )
        return Source(leaf)
    raise DataError(
        f"{local(folder)}: expected roles.jsonl.gz (one JSON object a line: play, role, lines) or LEAF's "
        'JSON files (users, user_data); got neither. Put them there, or set the run-config key "data-dir" '
        "(or $BOUQUET_DATA) to the folder above."
    )


def decode(request: Request, source: Source) -> Decoded:
    """Cut every owner's text into windows; owners without training or test text are left out."""
    if source.files[0].name.endswith(".jsonl.gz"):
        lines = list(_roles(source.files[0]))
        everyone = [(name, _windows_of(train), _windows_of(test)) for name, train, test in lines]
    else:
        expected = f"x: strings of {WINDOW} characters, and y: the next one each"
        everyone = users(source.files, request.data_dir / "shakespeare", _leaf_windows, expected)
    kept = [o for o in everyone if len(o[1][0]) and len(o[2][0])]
    if not kept:
        raise DataError(f"{local(source.files[0])}: no role has both training and test text")
    names, train, test = [o[0] for o in kept], [o[1] for o in kept], [o[2] for o in kept]
    if request.shuffle_lines:
        whole = {name: found for name, found, _ in lines}
        train = _shuffled([whole[name] for name in names], request.seed)
        names = [f"lines-{i:04}" for i in range(len(kept))]
    counted = [sum(int((y != PADDING).sum()) for _, y in parts) for parts in (train, test)]
    return Decoded(
        **by_owner(names, train, test),
        num_classes=CLASSES,
        input_shape=(WINDOW,),
        kind="text",
        description=(
            f"{len(kept)} roles ({len(everyone) - len(kept)} left out: no training or no test text), "
            f"{counted[0]} training and {counted[1]} test characters"
        ),
        source=str(source.files[0] if len(source.files) == 1 else source.files[0].parent),
    )


def windows(text: bytes) -> Windows:
    """Return inputs and targets: window i holds bytes 80 i .. 80 i + 79 and the bytes that follow them."""
    count = -(-max(len(text) - 1, 0) // WINDOW)
    x = np.zeros(count * WINDOW, dtype=np.uint8)
    y = np.full(count * WINDOW, PADDING, dtype=np.int16)
    if count:
        codes = np.frombuffer(text, dtype=np.uint8)
        x[: len(codes) - 1] = codes[:-1]
        y[: len(codes) - 1] = codes[1:]
    return x.reshape(count, WINDOW), y.reshape(count, WINDOW)


def _shuffled(lines: Sequence[list[str]], seed: int) -> list[Windows]:
    """Return windows of as many texts as there are roles, of all their lines in an order drawn by seed."""
    pool = [line for role in lines for line in role]
    order = seeds.rng_for(seed, seeds.PARTITION, client="lines").permutation(len(pool))
    return [_windows_of([pool[i] for i in part]) for part in np.array_split(order, len(lines))]


def _windows_of(lines: Sequence[str]) -> Windows:
    return windows(_encode("\n".join(lines)))


def _roles(path: Path) -> Iterator[OwnerLines]:
    names, number = Names(), 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007 - errors name it
                if not line.strip():
                    continue
                entry = json.loads(line)
                lines = entry["lines"]
                if not isinstance(lines, list) or not all(isinstance(text, str) for text in lines):
                    raise TypeError(f'"lines" is not a list of strings but {lines!r:.60}')
                name = names.new(f"{entry['play']}-{entry['role']}")
                num_test = -(-len(lines) // 5)
                yield name, lines[:-num_test], lines[-num_test:]
    except EOFError as err:
        raise DataError(f"{local(path)}: the file is cut short after line {number}. Fetch it again.") from err
    except (ValueError, KeyError, TypeError, OSError) as err:
        raise DataError(
            f"{local(path)}, line {number}: expected a JSON object with play, role and lines (strings); "
            f"got {local(repr(err))}. Repair or remove the line."
        ) from err


def _leaf_windows(inputs: list[Any], targets: list[Any]) -> Windows:
    if not inputs:
        return windows(b"")
    codes = [_encode(text) for text in inputs]
    following = [_encode(text) for text in targets]
    for code, after in zip(codes, following, strict=True):
        if len(code) != WINDOW or len(after) != 1:
            raise ValueError(f"x of {len(code)} and y of {len(after)} bytes")
    x = np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(-1, WINDOW)
    y = np.full(x.shape, PADDING, dtype=np.int16)
    y[:, -1] = np.frombuffer(b"".join(following), dtype=np.uint8)
    return x, y


def _encode(text: str) -> bytes:
    """Latin-1, one byte per character, so that positions are characters; what it lacks becomes "?"."""
    return text.encode("latin-1", errors="replace")
