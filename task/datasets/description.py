"""The meaning of a data set (columns, categories, classes), and digests of it to compare with others.

A `Description` has names: of columns, values of categories, targets and classes. It stays where the data are
unless their owner lets it out. A `Meaning` says, without the names, whether two descriptions are of the same
things, and in which order each has them:

* Each part has a digest of its *set* of names, so that data in another order have the same. It is slow to
  compute (scrypt), and all parts are salted with the columns: an attacker has to guess the names of all
  columns at once, at 8 MiB and some 25 ms a guess. A table of two columns with everyday names can still be
  guessed.
* The order is a list of places among the names sorted by a keyed hash, whose key is the digest of the whole
  set. So places say nothing about names, and are the same numbers wherever the set is.

Counts, files and rows are no part of either: they differ from node to node.
"""

from __future__ import annotations

import functools
import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from task.datasets.base import Dataset, Decoded
from task.datasets.header import TypedColumn, read_column
from task.text import plain

# The parts that have digests, and the words for a difference in them.
PARTS = {
    "kind": "the kind of its examples",
    "columns": "the names or kinds of its columns",
    "categories": "the values of a category",
    "target": "the name of the column to predict",
    "classes": "the names of the classes",
}
MOST_NUMBERS = 10_000  # classes without names, known by their numbers


@dataclass(frozen=True)
class Meaning:
    """The part of a description that others may know."""

    parts: Mapping[str, str] = field(default_factory=dict)  # digest by part, of those that the data name
    inputs: tuple[int, ...] = ()  # by input, its place among all; () = without names
    outputs: tuple[int, ...] = ()  # the same by class, or by target where there are several

    def differing(self, other: Meaning) -> list[str]:
        """Return the parts in which two descriptions differ, in the order of `PARTS`.

        Digests are salted with the columns: where these differ, the other parts that have names count as
        equal, since they cannot be compared.
        """
        salted = self.parts.get("columns") != other.parts.get("columns")
        parts = ("kind", "columns") if salted else tuple(PARTS)
        return [part for part in parts if self.parts.get(part, "") != other.parts.get(part, "")]

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, for JSON."""
        return {"parts": dict(self.parts), "inputs": list(self.inputs), "outputs": list(self.outputs)}

    @staticmethod
    def from_dict(said: Mapping[str, Any]) -> Meaning:
        """Return the digest whose `as_dict` this is."""
        return Meaning(dict(said["parts"]), tuple(said["inputs"]), tuple(said["outputs"]))


@dataclass(frozen=True)
class Description:
    """What a data set means: what all that train one model must agree on."""

    kind: str  # of its examples: "image", "features", "text of bytes" or "text of words"
    columns: tuple[TypedColumn, ...] = ()  # features in their order, categories with values; () = no names
    targets: tuple[str, ...] = ()  # names of what is predicted, in their order; () = no names
    classes: tuple[str, ...] = ()  # names, or "0", "1", ... where classes are just numbers; () = no classes

    @property
    def inputs(self) -> tuple[tuple[str, str], ...]:
        """The numbers that a model reads of an example: name of the column, and value of a category."""
        found: list[tuple[str, str]] = []
        for column in self.columns:
            values = column.values if column.type == "category" else ("",)
            found += [(column.name, value) for value in values]
        return tuple(found)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a model says of an example, in their order: classes, or several targets."""
        return self.classes or (self.targets if len(self.targets) > 1 else ())

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, for JSON."""
        return {
            "kind": self.kind,
            "columns": list(map(str, self.columns)),
            "targets": list(self.targets),
            "classes": list(self.classes),
        }

    @staticmethod
    def from_dict(said: Mapping[str, Any]) -> Description:
        """Return the description whose `as_dict` this is."""
        columns, targets, classes = (
            tuple(plain(str(name)) for name in said[part]) for part in ("columns", "targets", "classes")
        )
        return Description(str(said["kind"]), tuple(map(read_column, columns)), targets, classes)

    def digests(self) -> dict[str, str]:
        """Return a digest by part, of those parts that the data name."""
        return dict(self.meaning.parts)

    @property
    def meaning(self) -> Meaning:
        """What others may know."""
        return _meaning(self)


def described(data: Decoded) -> Description:
    """Return what a data set means, as it was read."""
    kind = data.kind
    if kind == "text":
        kind = "text of bytes" if data.x.dtype.itemsize == 1 else "text of words"
    if data.form:
        kind = f"inputs {data.form}"
    columns = tuple(read_column(name) for name in data.columns[:-1])
    target = data.columns[-1] if data.columns else ""
    several = target.split(", ") if data.y.ndim == 2 and data.y.dtype.kind == "f" else [target]
    classes: Sequence[str] = data.classes
    numbered = data.labelled and data.y.ndim == 1 and data.y.dtype.kind != "f"
    if not classes and numbered and data.num_classes <= MOST_NUMBERS:
        classes = [str(i) for i in range(data.num_classes)]
    return Description(kind, columns, tuple(name for name in several if name), tuple(classes))


def meaning_of(data: Dataset) -> Meaning:
    """Return the part of a data set's meaning that others may know."""
    return data.meaning or described(data).meaning


@functools.lru_cache(maxsize=16)
def _meaning(description: Description) -> Meaning:
    columns = [(c.name, "category" if c.type == "category" else "number") for c in description.columns]
    salt = _slow(columns, "columns") if columns else ""
    categories = [(c.name, sorted(map(_same, c.values))) for c in description.columns if c.values]
    named = {"categories": categories, "target": description.targets, "classes": description.classes}
    parts = {"kind": description.kind}
    if columns:
        parts["columns"] = salt
    parts |= {part: _slow(names, part + salt) for part, names in named.items() if names}
    inputs = _places(description.inputs, salt + parts.get("categories", ""))
    of_outputs = parts.get("classes", parts.get("target", ""))
    return Meaning(parts, inputs, _places(description.outputs, salt + of_outputs))


def _same(name: Any) -> Any:
    """Return a name, or several, in the one form of Unicode."""
    return unicodedata.normalize("NFC", name) if isinstance(name, str) else [_same(part) for part in name]


def _slow(names: Sequence[Any], salt: str) -> str:
    """Return a digest of a set of names that is slow to compute."""
    text = json.dumps(sorted(_same(list(names)))).encode()
    return hashlib.scrypt(text, salt=salt.encode(), n=2**13, r=8, p=1, dklen=16).hex()


def _places(names: Sequence[Any], key: str) -> tuple[int, ...]:
    """Return the place of each name among all, sorted by a hash under a key."""
    hashes = [
        hashlib.blake2b(json.dumps(_same(name)).encode(), key=key.encode()[:64]).digest() for name in names
    ]
    place = {digest: i for i, digest in enumerate(sorted(hashes))}
    return tuple(place[digest] for digest in hashes)
