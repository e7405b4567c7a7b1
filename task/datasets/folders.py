"""Folders of pictures by class: which folder is a class or a part, and what is left out.

``<class>/<picture>``, or that in folders for training, test and validation (`task.datasets.parts`), perhaps
below a single folder of another name, as unpacking an archive leaves it. A folder with folders in it is never
a class. Hidden files, and those that systems add for themselves, do not count.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from task.datasets.parts import NAMES, TRAIN, VALIDATION, part_of, test_part
from task.errors import DataError, local

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
EXPECTED = "<class>/<picture>, or train/<class>/<picture> and test/<class>/<picture>"
_OF_SYSTEMS = {"__macosx", "@eadir", "thumbs.db", "ehthumbs.db", "desktop.ini"}
_SHOWN = 5  # names in a message

Place = tuple[str, ...]


class Picture(NamedTuple):
    """One picture of a tree."""

    name: str  # path within the tree
    label: str = ""
    part: str = TRAIN  # of `task.datasets.parts`


@dataclass(frozen=True)
class Tree:
    """The pictures of a folder or zip file, those for training first."""

    classes: tuple[str, ...]  # also those without pictures
    pictures: tuple[Picture, ...]
    tests: str = ""  # the part that is the test set; "" = there is none
    loose: tuple[str, ...] = ()  # pictures in no folder of a class
    notes: tuple[str, ...] = ()  # sentences about what is not taken as it stands
    read: dict[str, Any] = field(default_factory=dict)  # what the folders are taken for

    @property
    def used(self) -> tuple[Picture, ...]:
        """The pictures of a data set: those for training, then those of the test set."""
        return tuple(p for part in (TRAIN, self.tests) for p in self.pictures if p.part == part)


def is_picture(name: str) -> bool:
    """Return whether a name is one of a picture that can be read."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def visible(names: Iterable[str]) -> list[str]:
    """Return the names that are neither hidden nor a system's own, each once."""
    return [
        name
        for name in dict.fromkeys(names)
        if not any(p.startswith(".") or p.lower() in _OF_SYSTEMS for p in name.split("/"))
    ]


class _Level:
    """The folders and pictures of a tree by the folder that they are in."""

    def __init__(self, names: Iterable[str]) -> None:
        self.folders: defaultdict[Place, set[str]] = defaultdict(set)
        self.pictures: defaultdict[Place, list[str]] = defaultdict(list)
        self.others: defaultdict[Place, list[str]] = defaultdict(list)
        self.holding: set[Place] = set()  # folders with pictures at any depth
        for name in names:
            *above, last = name.split("/")
            place = tuple(above)
            for i, part in enumerate(place):
                self.folders[place[:i]].add(part)
            if last and is_picture(name):
                self.pictures[place].append(name)
                self.holding |= {place[:i] for i in range(len(place) + 1)}
            elif last:
                self.others[place].append(name)

    def nested(self, place: Place) -> list[str]:
        """Return the folders in a folder, if it has no pictures of its own, else those with pictures."""
        inside = sorted(self.folders.get(place, ()))
        if self.pictures.get(place):
            inside = [name for name in inside if (*place, name) in self.holding]
        return inside

    def top(self) -> Place:
        """Return the folder that the classes or parts are in: single folders of any name are entered."""
        place: Place = ()
        while not self.pictures.get(place) and len(inside := self.nested(place)) == 1:
            only = (*place, inside[0])
            if part_of(inside[0]) or self.pictures.get(only) or not self.nested(only):
                break
            place = only
        return place


def tree_of(where: str, names: Iterable[str]) -> Tree:
    """Sort the names of files and folders, as a zip file lists them, into classes and pictures.

    Raises:
        DataError: A folder that would be a class holds folders, or a part holds pictures without a class.
    """
    level = _Level(visible(names))
    top = level.top()
    parts = _parts(where, level, top)
    bases = {part: (*top, name) for part, name in parts.items()} or {TRAIN: top}
    for base in bases.values():
        _check_classes(where, level, base)
    classes = sorted({name for base in bases.values() for name in level.nested(base)})
    pictures = [
        Picture(name, label, part)
        for part, base in bases.items()
        for label in level.nested(base)
        for name in level.pictures.get((*base, label), ())
    ]
    counts = Counter(dict.fromkeys(bases, 0)) + Counter(picture.part for picture in pictures)
    tests, note = test_part({part: counts[part] for part in bases}, f"the folder {parts.get(VALIDATION, '')}")
    loose = sorted(name for base in {top, *bases.values()} for name in level.pictures.get(base, ()))
    notes = [note, _strange(level, [(*base, name) for base in bases.values() for name in classes])]
    if loose:
        notes.append(f"{len(loose)} pictures in no folder of a class are left out: {listed(loose)}")
    read: dict[str, Any] = {"parts": parts} if parts else {}
    if top:
        read["entered"] = "/".join(top)
    return Tree(
        tuple(classes),
        tuple(sorted(pictures, key=lambda p: (list(NAMES).index(p.part), p.name))),
        tests,
        tuple(loose),
        tuple(filter(None, notes)),
        read,
    )


def _parts(where: str, level: _Level, top: Place) -> dict[str, str]:
    """Return the folder of each part; {} if the folders are classes."""
    inside = level.nested(top)
    groups = [name for name in inside if level.nested((*top, name))]
    if not groups:
        return {}
    named = {name: part_of(name) for name in groups}
    strange = [name for name, part in named.items() if not part]
    if strange:
        deeper = level.nested((*top, strange[0]))
        raise DataError(
            f"{local(where)}: expected {EXPECTED}, where class folders hold pictures and no folders; got "
            f"{local('/'.join((*top, strange[0])))}, which holds the folders {_some(deeper)}. Move the "
            "pictures of each class into one folder; several sites are several nodes, each with its own data"
        )
    loose = [name for name in inside if name not in groups and level.pictures.get((*top, name))]
    if loose:
        raise DataError(
            f"{local(where)}: expected {EXPECTED}; next to {_some(groups)}, which hold folders, "
            f"{_some(loose)} holds pictures that are in no folder of a class. Sort them into such folders or "
            "move them away"
        )
    twice = [part for part, count in Counter(named.values()).items() if count > 1]
    if twice:
        both = [name for name in groups if named[name] == twice[0]]
        raise DataError(
            f"{local(where)}: expected one folder with the {twice[0]} part; got {_some(both)}. Put their "
            "pictures into one"
        )
    return {part: name for name, part in named.items()}


def _check_classes(where: str, level: _Level, base: Place) -> None:
    """Refuse class folders that hold folders, whose meaning is unknown."""
    for name in level.nested(base):
        if deeper := [d for d in level.nested((*base, name)) if (*base, name, d) in level.holding]:
            raise DataError(
                f"{local(where)}: expected {EXPECTED}, where class folders hold pictures and no folders; got "
                f"{local('/'.join((*base, name)))}, which holds the folders {_some(deeper)}. Move their "
                "pictures up, or the folders out"
            )


def _strange(level: _Level, classes: Iterable[Place]) -> str:
    """Return a sentence about the files in folders of classes that are no pictures; "" if there are none."""
    names = [name for place in classes for name in level.others.get(place, ())]
    if not names:
        return ""
    kinds = Counter(PurePosixPath(name).suffix.lower() or "without an ending" for name in names)
    endings = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{len(names)} files in class folders are no pictures that are read, and left out: {endings}"


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _some(names: Sequence[str]) -> str:
    return local(listed(names))
