"""LEAF's JSON (Caldas et al. 2018, arXiv 1812.01097): users, and what each of them has to learn from.

Files hold ``users`` and ``user_data``, where a user has as many ``x`` as ``y``. Of LEAF's own folder of a
data set the files below ``train`` and ``test`` are read; before they were divided, those below ``all_data``.
Where nothing is a test file, the last fifth of each user's examples, rounded up, is the test set.

FEMNIST: pictures of 62 characters by writer. Sent140: tweets by author, negative or positive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Names, Request, Source, by_owner
from task.datasets.words import numbered
from task.errors import DataError, local

Examples = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Read = Callable[[list[Any], list[Any]], Examples]  # of a user's x and y; raises ValueError
User = tuple[str, Examples, Examples]  # name, training and test examples

SIDE = 28  # of FEMNIST's pictures
CHARACTERS = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in the order of FEMNIST's labels
)
TWEET = 25  # words of Sent140 that count, as in LEAF and FedProx
TEXT = 4  # where a tweet's text stands among its fields: id, date, query, author, text
_FROM = "LEAF's scripts make them, see https://leaf.cmu.edu"


def files_in(folder: Path) -> tuple[Path, ...]:
    """Return the JSON files of a data set in LEAF's folder: the divided ones, else all."""
    found = sorted(folder.glob("**/*.json"))
    for names in ({"train", "test"}, {"all_data"}):
        if some := tuple(path for path in found if names & {*path.relative_to(folder).parts[:-1]}):
            return some
    return tuple(found)


def users(files: Sequence[Path], folder: Path, read: Read, expected: str) -> list[User]:
    """Return all users of LEAF's files below `folder`, whose examples `read` makes of their x and y.

    `expected` says for errors what x and y are.

    Raises:
        DataError: A file is not of LEAF's form, named with the reason.
    """
    train: dict[str, list[Examples]] = {}
    test: dict[str, list[Examples]] = {}
    for path in files:
        part = test if "test" in path.relative_to(folder).parts[:-1] else train
        for user, found in _read(path, read, expected):
            part.setdefault(user, []).append(found)
    names, everyone = Names(), []
    for user, parts in train.items():
        x, y = _join(parts)
        if test:
            held = _join(test[user]) if user in test else (x[:0], y[:0])
        else:
            cut = len(x) - -(-len(x) // 5)
            x, y, held = x[:cut], y[:cut], (x[cut:], y[cut:])
        everyone.append((names.new(user), (x, y), held))
    return everyone


def locate(request: Request) -> Source:
    """Find the files of FEMNIST or Sent140 in ``<data-dir>/<name>``."""
    folder = request.data_dir / request.name
    if files := files_in(folder):
        return Source(files)
    raise DataError(
        f"{local(folder)}: expected LEAF's JSON files of {request.name} (users, user_data), such as "
        f"train/*.json and test/*.json; got none. {_FROM}. Put them there, or set the run-config key "
        '"data-dir" (or $BOUQUET_DATA) to the folder above.'
    )


def decode_femnist(request: Request, source: Source) -> Decoded:
    """Read pictures of characters as bytes 28x28, ink black on white as in the files."""
    expected = (
        f"x: lists of {SIDE * SIDE} numbers from 0 to 1, and y: numbers from 0 to {len(CHARACTERS) - 1}"
    )
    parts = _kept(request, source, users(source.files, request.data_dir / request.name, _pictures, expected))
    return _decoded(
        parts, source, "writers", "pictures", num_classes=len(CHARACTERS), kind="image",
        input_shape=(1, SIDE, SIDE), classes=tuple(CHARACTERS),
    )  # fmt: skip


def decode_sent140(request: Request, source: Source) -> Decoded:
    """Read tweets as numbers of words, and whether they are positive."""
    expected = "x: lists of id, date, query, author and text, and y: 0 for negative, 1 or 4 for positive"
    parts = _kept(request, source, users(source.files, request.data_dir / request.name, _tweets, expected))
    return _decoded(
        parts, source, "authors", "tweets", num_classes=2, kind="text", input_shape=(TWEET,),
        classes=("negative", "positive"),
    )  # fmt: skip


def _pictures(inputs: list[Any], labels: list[Any]) -> Examples:
    x = np.asarray(inputs, np.float64).reshape(len(inputs), SIDE, SIDE)
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError(f"a pixel of {x[~((x >= 0) & (x <= 1))][0]:g}")
    return np.rint(255 * x).astype(np.uint8), _classes(labels, len(CHARACTERS))


def _tweets(inputs: list[Any], labels: list[Any]) -> Examples:
    texts = [str(fields[TEXT]) for fields in inputs]
    return numbered(texts, TWEET), _classes([1 if int(label) == 4 else label for label in labels], 2)


def _classes(labels: list[Any], count: int) -> npt.NDArray[np.int64]:
    y = np.asarray([int(label) for label in labels], np.int64)
    if wrong := [int(label) for label in y if not 0 <= label < count]:
        raise ValueError(f"a label of {wrong[0]}")
    return y


def _kept(request: Request, source: Source, everyone: list[User]) -> list[User]:
    """Leave out who has no training examples.

    Raises:
        DataError: No user is left.
    """
    kept = [user for user in everyone if len(user[1][0])]
    if not kept:
        raise DataError(
            f"{local(source.files[0].parent)}: expected users with two examples or more; got none in "
            f"{len(source.files)} files of {request.name}. Make them again with more users."
        )
    return kept


def _decoded(everyone: list[User], source: Source, who: str, what: str, **more: Any) -> Decoded:
    names, train, test = zip(*everyone, strict=True)
    counts = [sum(len(x) for x, _ in part) for part in (train, test)]
    return Decoded(
        **by_owner(names, train, test),
        description=f"{len(names)} {who}, {counts[0]} training and {counts[1]} test {what}",
        source=str(source.files[0].parent),
        **more,
    )


def _join(found: Sequence[Examples]) -> Examples:
    xs, ys = zip(*found, strict=True)
    return np.concatenate(xs), np.concatenate(ys)


def _read(path: Path, read: Read, expected: str) -> Iterator[tuple[str, Examples]]:
    user = ""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        for user in map(str, content["users"]):
            data = content["user_data"][user]
            if len(data["x"]) != len(data["y"]):
                raise ValueError(f"{len(data['x'])} x but {len(data['y'])} y")
            yield user, read(data["x"], data["y"])
    except (ValueError, KeyError, TypeError, IndexError, OSError) as err:
        of = f", user {local(user)}" if user else ""
        raise DataError(
            f"{local(path)}{of}: expected LEAF's JSON (users, user_data with {expected}); got "
            f"{local(repr(err))}. Remove other JSON files from the folder, or repair this one."
        ) from err
