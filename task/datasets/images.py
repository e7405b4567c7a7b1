"""CIFAR, through torchvision or from pictures, Tiny-ImageNet, and folders or zip files of pictures."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source, decoded_images
from task.datasets.download import download
from task.datasets.folders import EXPECTED, SUFFIXES, Picture, is_picture, tree_of, visible
from task.datasets.mask_folder import decode_pairs, pairs_of
from task.datasets.own import assemble, data_path, files_of, keys_of
from task.datasets.parts import TEST, TRAIN
from task.datasets.pictures import PictureError, Stack, opened
from task.errors import DataError, local, reason
from task.units import human_bytes

MOST_BYTES, MOST_UNPACKED = 256 << 20, 64 << 30  # of a file in a zip file, and of all of them


class _Cifar(NamedTuple):
    torchvision: str
    folder: str
    num_classes: int
    mean: tuple[float, ...]  # of the training images, as commonly published
    std: tuple[float, ...]


_CIFAR = {
    "cifar10": _Cifar(
        "CIFAR10", "cifar-10-batches-py", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": _Cifar(
        "CIFAR100", "cifar-100-python", 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
}


def locate_cifar(request: Request) -> Source:
    """Find the python batches in the data folder or in the cache's; download them if there are none.

    Without them a zip file of pictures in ``<data-dir>/<name>`` does: a subset or a copy in another form.
    """
    family = _CIFAR[request.name]
    places = [request.data_dir, request.cache_dir / "data"]
    for place in places:
        if files := _batches(place / family.folder):
            return Source(files)
    folder = request.data_dir / request.name
    pictures = files_of(folder, ".zip")
    if len(pictures) > 1:
        raise DataError(
            f"{local(folder)}: expected one zip file of the pictures of {request.name}; got "
            f"{local(', '.join(path.name for path in pictures))}. Move away all but one."
        )
    if pictures:
        return Source(pictures)
    return Source(_batches(download(request.name, places, family.folder, family.torchvision, train=True)))


def _batches(folder: Path) -> tuple[Path, ...]:
    names = ("*_batch*", "train", "test")
    return tuple(sorted(path for name in names for path in folder.glob(name) if path.is_file()))


def decode_cifar(request: Request, source: Source) -> Decoded:
    """Read the batches with torchvision, which checks their MD5 sums before it unpickles them."""
    family = _CIFAR[request.name]
    if source.files[0].suffix.lower() == ".zip":
        return _decode_copy(request, source.files[0], family)
    root = source.files[0].parent.parent
    try:
        from torchvision import datasets

        parts = [getattr(datasets, family.torchvision)(str(root), train=train) for train in (True, False)]
    except Exception as err:  # RuntimeError, pickle's errors, KeyError, ...
        raise DataError(
            f"{local(root / family.folder)}: the batches of {request.name} cannot be read: {local(err)}. "
            "Delete the folder and run again to download them."
        ) from err
    x = np.concatenate([np.asarray(part.data, dtype=np.uint8) for part in parts])
    return decoded_images(
        np.ascontiguousarray(x.transpose(0, 3, 1, 2)),
        np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in parts]),
        len(parts[0].targets),
        num_classes=family.num_classes,
        mean=family.mean,
        std=family.std,
        classes=tuple(parts[0].classes),
        source=str(root / family.folder),
    )


def _decode_copy(request: Request, path: Path, family: _Cifar) -> Decoded:
    """Read pictures in the place of the batches; their classes are numbered alike, in alphabetical order."""
    decoded = _decode_tree(replace(request, num_classes=family.num_classes), path)
    if decoded.input_shape != (3, 32, 32):
        raise DataError(
            f"{local(path)}: expected pictures of {request.name}, 32x32 RGB; got "
            f"{_words(decoded.input_shape)}. "
            'Put them right, or name them as what they are: dataset="imagefolder" and data-path.'
        )
    num_test = len(decoded.y) - decoded.num_train
    return replace(
        decoded,
        mean=family.mean,
        std=family.std,
        description=f"{decoded.num_train} training and {num_test} test images 32x32 of a copy as pictures, "
        "not comparable with figures of the original",
    )


def locate_tiny(request: Request) -> Source:
    """Find the folders of Tiny-ImageNet as its archive has them, in the data folder."""
    folder = request.data_dir / "tiny-imagenet-200"
    files = tuple(folder / name for name in ("wnids.txt", "val/val_annotations.txt"))
    if not all(path.is_file() for path in files):
        raise DataError(
            f"{local(folder)}: expected wnids.txt, train/<class>/images/*.JPEG, val/val_annotations.txt and "
            "val/images/*.JPEG, as in tiny-imagenet-200.zip of Stanford's course CS231n "
            "(http://cs231n.stanford.edu/tiny-imagenet-200.zip); got no such folder. Unpack it there, or set "
            'the run-config key "data-dir" (or $BOUQUET_DATA) to the folder above.'
        )
    return Source((*files, *sorted((folder / "train").glob("*/images"))))


def decode_tiny(request: Request, source: Source) -> Decoded:
    """Read the training pictures and, as the test set has no labels, the validation pictures as test ones."""
    words, annotations = source.files[:2]
    folder = words.parent
    classes = tuple(sorted(words.read_text(encoding="utf-8").split()))
    pictures = [
        Picture(f"train/{name}/images/{path.name}", name)
        for name in classes
        for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
    ]
    num_train = len(pictures)
    for number, line in enumerate(annotations.read_text(encoding="utf-8").splitlines(), start=1):
        picture, name, *_ = [*line.split("\t"), ""]
        if name not in classes:
            raise DataError(
                f"{local(annotations)}, line {number}: expected a picture and one of the {len(classes)} "
                f"classes of wnids.txt, separated by a tab; got {local(repr(line[:60]))}. Unpack the archive "
                "again."
            )
        pictures.append(Picture(f"val/images/{picture}", name, TEST))
    if not 0 < num_train < len(pictures):
        raise DataError(
            f"{local(folder)}: expected pictures train/<class>/images/*.JPEG and lines in "
            f"val/val_annotations.txt; got {num_train} and {len(pictures) - num_train}. Unpack the archive "
            "again."
        )
    stack = _stacked(folder, pictures, lambda name: (folder / name).read_bytes(), colour=True)
    return decoded_images(
        stack.array,
        np.searchsorted(classes, [picture.label for picture in pictures]),
        num_train,
        num_classes=len(classes),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        classes=classes,
        source=str(folder),
    )


def locate_folder(request: Request) -> Source:
    """Find the pictures: ``train/<class>/*`` and ``test/<class>/*``, or ``<class>/*``; or a zip of those.

    Folders ``images`` and ``masks`` are pictures and the class of each pixel, `task.datasets.mask_folder`.
    """
    path = data_path(request)
    if path.is_file():
        return Source((path,), keys_of(request))
    names = _names(path)
    if pairs := pairs_of(str(path), names):
        of_pairs = {"root": str(path.resolve()), "pairs": True, "notes": pairs.notes}
        used = tuple(path / name for pair in pairs.used for name in (pair.picture, pair.mask))
        return Source(used, keys_of(request) | of_pairs)
    tree = tree_of(str(path), names)
    files = tuple(path / picture.name for picture in tree.used)
    found = {"root": str(path.resolve()), "folders": tree.classes, "notes": tree.notes}
    return Source(files, keys_of(request) | found)


def has_pictures(folder: Path) -> bool:
    """Return whether there are pictures in folders of a folder."""
    return any("/" in name and is_picture(name) for name in visible(_names(folder)))


def _names(root: Path) -> list[str]:
    """List a folder as a zip lists itself: relative, sorted, folders with a slash at the end."""
    paths = sorted(root.rglob("*"))
    return [p.relative_to(root).as_posix() + ("/" if p.is_dir() else "") for p in paths]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """Give the names in a folder or zip file and a function that reads one of them."""
    if path.is_dir():
        yield _names(path), lambda name: (path / name).read_bytes()
        return
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive.namelist(), partial(_unpacked, archive, Counter())
    except zipfile.BadZipFile as err:
        raise DataError(
            f"{local(path)}: expected a folder of class folders or a zip file of one; got {local(err)}. "
            "Fetch it again."
        ) from err


def _unpacked(archive: zipfile.ZipFile, so_far: Counter[str], name: str) -> bytes:
    """Return a file of an archive; `so_far` counts the bytes that were unpacked.

    It cannot yield more than its header says, which `zipfile` cuts it off at.

    Raises:
        PictureError: It is too large, or all together are.
    """
    size = archive.getinfo(name).file_size
    so_far["bytes"] += size
    for what, found, most in (("a file", size, MOST_BYTES), ("all", so_far["bytes"], MOST_UNPACKED)):
        if found > most:
            raise PictureError(
                f"in a zip file that unpacks to too much: expected at most {human_bytes(most)} for {what}; "
                f"got {human_bytes(found)}. If it is what it should be, unpack it and name the folder"
            )
    return archive.read(name)


def decode_folder(request: Request, source: Source) -> Decoded:
    """Decode all pictures; they must be of one size. Classes are numbered in the order of their names."""
    return _decode_tree(request, data_path(request))


def _decode_tree(request: Request, path: Path) -> Decoded:
    with _opened(path) as (names, read):
        if pairs := pairs_of(str(path), names):
            return decode_pairs(request, str(path), pairs, read)
        tree = tree_of(str(path), names)
        pictures = tree.used
        if not pictures:
            raise DataError(
                f"{local(path)}: expected {EXPECTED}; found no such picture ({', '.join(sorted(SUFFIXES))})."
            )
        if request.num_classes and len(tree.classes) != request.num_classes:
            raise DataError(
                f"{local(path)}: expected num-classes = {request.num_classes} class folders (every node "
                "needs all of them, empty ones too, so that all number the classes alike); got "
                f"{len(tree.classes)}: {local(', '.join(tree.classes))}. Add the missing folders or correct "
                "num-classes."
            )
        stack = _stacked(path, pictures, read)
    return assemble(
        request,
        x=stack.array,
        y=np.searchsorted(tree.classes, [p.label for p in pictures]),
        test=np.array([p.part != TRAIN for p in pictures]) if tree.tests else None,
        owners=(),
        classes=tree.classes,
        where=str(path),
        notes=tree.notes,
        read=tree.read | stack.facts,
    )


def read_pictures(path: Path) -> tuple[npt.NDArray[np.uint8], list[str], list[str], list[str]]:
    """Return pictures of a folder, a zip file or one file as uint8 ``[N, C, H, W]``, all of one size.

    Further their names, and the names of their classes and "train", "test" or "validation" where the folders
    say so, else no such names.

    Raises:
        DataError: There is no picture, or one that cannot be read, has another size or is in no folder of a
            class while others are.
    """
    if path.is_file() and is_picture(path.name):
        return _stacked(path, [Picture(path.name)], lambda name: path.read_bytes()).array, [path.name], [], []
    with _opened(path) as (names, read):
        tree = tree_of(str(path), names)
        pictures = tree.pictures
        if pictures and tree.loose:
            raise DataError(
                f"{local(path)}: expected all pictures in class folders, or none; got "
                f"{len(tree.loose)} in no such folder, {local(tree.loose[0])} for one. Move them"
            )
        if not pictures:
            pictures = tuple(map(Picture, sorted(filter(is_picture, visible(names)))))
        if not pictures:
            raise DataError(f"{local(path)}: expected pictures ({', '.join(sorted(SUFFIXES))}); found none")
        x = _stacked(path, pictures, read).array
    labels = [p.label for p in pictures] if tree.pictures else []
    parts = [p.part for p in pictures] if tree.pictures and tree.tests else []
    return x, [p.name for p in pictures], labels, parts


def _stacked(
    path: Path, pictures: Sequence[Picture], read: Callable[[str], bytes], *, colour: bool = False
) -> Stack:
    """Read pictures; they are grey if all are and `colour` does not ask for RGB."""
    stack = Stack(len(pictures), colour=colour)
    for picture in pictures:
        try:
            data = read(picture.name)
        except PictureError as err:
            raise DataError(f"{local(path)}: {local(picture.name)} is {err.args[0]}") from err
        # RuntimeError and NotImplementedError: a zip file with a password, or packed by other means.
        except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as err:
            raise DataError(
                f"{local(path)}: {local(picture.name)} cannot be read: {reason(err)}. Repair or remove it"
            ) from err
        try:
            stack.add(picture.name, *opened(data))
        except PictureError as err:
            raise DataError(f"{local(path)}: {local(picture.name)} is {err.args[0]}") from err
    return stack


def _words(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]} {'grey' if shape[0] == 1 else 'RGB'}"
