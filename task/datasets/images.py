"""CIFAR, through torchvision or from pictures, Tiny-ImageNet, and folders or zip files of pictures."""

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request, Source, decoded_images
from task.datasets.download import download
from task.datasets.own import assemble, data_path, keys_of
from task.errors import DataError, local

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}


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
    pictures = tuple(sorted(folder.glob("*.zip")))
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
    if source.files[0].suffix == ".zip":
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
        _Picture(False, f"train/{name}/images/{path.name}", name)
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
        pictures.append(_Picture(True, f"val/images/{picture}", name))
    if not 0 < num_train < len(pictures):
        raise DataError(
            f"{local(folder)}: expected pictures train/<class>/images/*.JPEG and lines in "
            f"val/val_annotations.txt; got {num_train} and {len(pictures) - num_train}. Unpack the archive "
            "again."
        )
    tree = _Tree(classes, tuple(pictures), True)
    return decoded_images(
        _pixels(folder, tree, lambda name: (folder / name).read_bytes(), colour=True),
        np.searchsorted(classes, [picture.label for picture in pictures]),
        num_train,
        num_classes=len(classes),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        classes=classes,
        source=str(folder),
    )


class _Picture(NamedTuple):
    test: bool
    name: str  # path within the tree
    label: str


class _Tree(NamedTuple):
    """A tree of class folders."""

    classes: tuple[str, ...]  # also those without pictures
    pictures: tuple[_Picture, ...]
    split: bool  # it has a test folder


def locate_folder(request: Request) -> Source:
    """Find the pictures: ``train/<class>/*`` and ``test/<class>/*``, or ``<class>/*``; or a zip of those."""
    path = data_path(request)
    if path.is_file():
        return Source((path,), keys_of(request))
    tree = _tree(_names(path))
    files = tuple(path / picture.name for picture in tree.pictures)
    return Source(files, keys_of(request) | {"root": str(path.resolve()), "folders": tree.classes})


def has_pictures(folder: Path) -> bool:
    """Return whether there are pictures in class folders."""
    return bool(_tree(_names(folder)).pictures)


def _names(root: Path) -> list[str]:
    """List a folder as a zip lists itself: relative, sorted, folders with a slash at the end."""
    paths = sorted(root.rglob("*"))
    return [p.relative_to(root).as_posix() + ("/" if p.is_dir() else "") for p in paths]


def _tree(names: list[str]) -> _Tree:
    """Sort the names of files and folders into classes and pictures; other files are ignored."""
    visible = [n for n in names if not any(p.startswith((".", "__MACOSX")) for p in n.split("/"))]
    tops = {name.split("/")[0] for name in visible if "/" in name}
    divided = "train" in tops
    skip = 1 if divided else 0
    classes: set[str] = set()
    pictures = []
    for name in visible:
        parts = name.split("/")
        if len(parts) < skip + 2 or (divided and parts[0] not in ("train", "test")) or not parts[skip]:
            continue
        classes.add(parts[skip])
        if Path(name).suffix.lower() in _SUFFIXES:
            pictures.append(_Picture(divided and parts[0] == "test", name, parts[skip]))
    # sorted, so that "the first" is a training picture
    return _Tree(tuple(sorted(classes)), tuple(sorted(pictures)), divided and "test" in tops)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """Give the names in a folder or zip file and a function that reads one of them."""
    if path.is_dir():
        yield _names(path), lambda name: (path / name).read_bytes()
        return
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive.namelist(), archive.read
    except zipfile.BadZipFile as err:
        raise DataError(
            f"{local(path)}: expected a folder of class folders or a zip file of one; got {local(err)}. "
            "Fetch it again."
        ) from err


def decode_folder(request: Request, source: Source) -> Decoded:
    """Decode all pictures; they must be of one size. Classes are numbered in the order of their names."""
    return _decode_tree(request, data_path(request))


def _decode_tree(request: Request, path: Path) -> Decoded:
    with _opened(path) as (names, read):
        tree = _tree(names)
        if not tree.pictures:
            raise DataError(
                f"{local(path)}: expected train/<class>/<picture> and test/<class>/<picture>, or "
                f"<class>/<picture>; found no picture ({', '.join(sorted(_SUFFIXES))})."
            )
        if request.num_classes and len(tree.classes) != request.num_classes:
            raise DataError(
                f"{local(path)}: expected num-classes = {request.num_classes} class folders (every node "
                "needs all of them, empty ones too, so that all number the classes alike); got "
                f"{len(tree.classes)}: {local(', '.join(tree.classes))}. Add the missing folders or correct "
                "num-classes."
            )
        x = _pixels(path, tree, read)
    return assemble(
        request,
        x=x,
        y=np.searchsorted(tree.classes, [p.label for p in tree.pictures]),
        test=np.array([p.test for p in tree.pictures]) if tree.split else None,
        owners=(),
        classes=tree.classes,
        where=str(path),
    )


def read_pictures(path: Path) -> tuple[npt.NDArray[np.uint8], list[str], list[str], list[str]]:
    """Return pictures of a folder, a zip file or one file as uint8 ``[N, C, H, W]``, all of one size.

    Further their names, and the names of their classes and "train" or "test" where the folders say so, else
    no such names.

    Raises:
        DataError: There is no picture, or one that cannot be read or has another size.
    """
    if path.suffix.lower() in _SUFFIXES:
        tree = _Tree((), (_Picture(False, path.name, ""),), False)
        return _pixels(path, tree, lambda name: path.read_bytes()), [path.name], [], []
    with _opened(path) as (names, read):
        tree = _tree(names)
        if not tree.pictures:
            loose = [n for n in sorted(names) if Path(n).suffix.lower() in _SUFFIXES]
            tree = _Tree((), tuple(_Picture(False, n, "") for n in loose), False)
        if not tree.pictures:
            raise DataError(f"{local(path)}: expected pictures ({', '.join(sorted(_SUFFIXES))}); found none")
        x = _pixels(path, tree, read)
    labels = [p.label for p in tree.pictures] if tree.classes else []
    parts = ["test" if p.test else "train" for p in tree.pictures] if tree.split else []
    return x, [p.name for p in tree.pictures], labels, parts


def _pixels(
    path: Path, tree: _Tree, read: Callable[[str], bytes], colour: bool = False
) -> npt.NDArray[np.uint8]:
    """Return ``[N, C, H, W]``: grey if the first picture is and `colour` does not ask for RGB."""
    from PIL import Image, UnidentifiedImageError

    out: npt.NDArray[np.uint8] | None = None
    for i, picture in enumerate(tree.pictures):
        try:
            with Image.open(io.BytesIO(read(picture.name))) as image:
                grey = image.mode in ("1", "L")
                pixels = np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8)
        except (OSError, ValueError, SyntaxError, zipfile.BadZipFile) as err:
            why = "none of its formats" if isinstance(err, UnidentifiedImageError) else err
            raise DataError(
                f"{local(path)}: {local(picture.name)} is not a picture that Pillow can read: {local(why)}. "
                "Repair or remove it."
            ) from err
        if out is None:
            channels = 1 if grey and not colour else 3
            out = np.empty((len(tree.pictures), channels, *pixels.shape[:2]), dtype=np.uint8)
        if pixels.shape[:2] != out.shape[2:] or (not grey and out.shape[1] == 1):
            got = (1 if grey else 3, *pixels.shape[:2])
            raise DataError(
                f"{local(path)}: expected all pictures to be like the first, {local(tree.pictures[0].name)}: "
                f"{_words(out.shape[1:])}; {local(picture.name)} is {_words(got)}. "
                "Scale or convert the pictures alike."
            )
        out[i] = pixels if grey else pixels.transpose(2, 0, 1)
    assert out is not None  # the caller refuses a tree without pictures
    return out


def _words(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]} {'grey' if shape[0] == 1 else 'RGB'}"
