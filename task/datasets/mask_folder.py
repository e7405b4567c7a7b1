"""Folders of pictures with masks: ``images/NAME.png`` and ``masks/NAME.png``.

Two folders called so anywhere in the path make it such a folder: ``train/images/a.png`` with
``train/masks/a.png`` is read like ``images/train/a.png`` with ``masks/train/a.png``. A mask may be called
``a_mask.png``. Its values are class numbers: of a palette the places in it, and of one bit 0 and 1. 255 does
not count, except where 0 and 255 are all there is: that is 0 and 1.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from task.datasets.base import Decoded, Request
from task.datasets.folders import is_picture, listed, visible
from task.datasets.named_inputs import VOID, dense
from task.datasets.own import assemble
from task.datasets.parts import NAMES, TRAIN, VALIDATION, part_of, test_part
from task.datasets.pictures import PictureError, Stack, opened
from task.errors import DataError, local, reason

IMAGES, MASKS = ("image", "images", "img", "imgs"), ("mask", "masks")
_SUFFIX = "_mask"  # of the names of masks in some data sets
_MODES = ("1", "L", "P", "I", "I;16")  # of Pillow, with one number a pixel


@dataclass(frozen=True)
class MaskedPicture:
    """A picture and its mask, as paths within the folder."""

    picture: str
    mask: str
    part: str  # of `task.datasets.parts`


@dataclass(frozen=True)
class Pairs:
    """The pictures and masks that are read, those for training first, and notes on the others."""

    used: tuple[MaskedPicture, ...]
    num_train: int
    notes: tuple[str, ...]


def pairs_of(where: str, names: Iterable[str]) -> Pairs | None:
    """Return the pictures of a folder or zip file with their masks; None if it has no folders of both.

    Raises:
        DataError: A picture has no mask, or is in two folders.
    """
    sides: dict[bool, dict[tuple[str, ...], str]] = {False: {}, True: {}}
    loose = []
    for name in filter(is_picture, visible(names)):
        *above, _ = name.lower().split("/")
        of_masks = any(place in MASKS for place in above)
        if not of_masks and not any(place in IMAGES for place in above):
            loose.append(name)
            continue
        stem = PurePosixPath(name).stem
        key = (
            *(p for p in above if p not in (*IMAGES, *MASKS)),
            stem.removesuffix(_SUFFIX) if of_masks else stem,
        )
        if key in sides[of_masks]:
            raise DataError(
                f"{local(where)}: expected one {'mask' if of_masks else 'picture'} of a name; got "
                f"{local(sides[of_masks][key])} and {local(name)}. Rename or remove one"
            )
        sides[of_masks][key] = name
    pictures, masks = sides[False], sides[True]
    if not pictures or not masks:
        return None
    if alone := [name for key, name in pictures.items() if key not in masks]:
        raise DataError(
            f"{local(where)}: expected a mask of each picture, masks/NAME.png of images/NAME.png; got none "
            f"of {local(listed(alone))}"
        )
    pairs = [
        MaskedPicture(name, masks[key], next(filter(None, map(part_of, key[:-1])), TRAIN))
        for key, name in pictures.items()
    ]
    found = {part: sum(pair.part == part for pair in pairs) for part in NAMES}
    found = {part: count for part, count in found.items() if count}
    tests, note = test_part(found, f"the folder {VALIDATION}")
    used = [p for part in (TRAIN, tests) for p in sorted(pairs, key=lambda p: p.picture) if p.part == part]
    rest = [name for key, name in masks.items() if key not in pictures]
    notes = [
        note,
        f"{len(rest)} masks have no picture, and are left out: {listed(rest)}" if rest else "",
        f"{len(loose)} pictures are in no folder of images or masks, and are left out: {listed(loose)}"
        if loose
        else "",
    ]
    return Pairs(tuple(used), found.get(TRAIN, 0), tuple(filter(None, notes)))


def decode_pairs(request: Request, where: str, pairs: Pairs, read: Callable[[str], bytes]) -> Decoded:
    """Read pictures and masks; all are of one size.

    Raises:
        DataError: Naming a picture or mask that cannot be read, or a value that is no class.
    """
    stack, masks = Stack(len(pairs.used)), list[npt.NDArray[np.int32]]()
    for pair in pairs.used:
        name = pair.picture
        try:
            stack.add(name, *opened(read(name)))
            name = pair.mask
            masks.append(_classes(read(name)))
            if masks[-1].shape != stack.array.shape[2:]:
                height, width = masks[-1].shape
                raise PictureError(f"{width}x{height}; expected a mask of its picture's size, {stack.size}")
        except PictureError as err:
            raise DataError(f"{local(where)}: {local(name)} is {err.args[0]}") from err
        except (OSError, RuntimeError, NotImplementedError) as err:  # zip files with a password among them
            raise DataError(f"{local(where)}: {local(name)} cannot be read: {reason(err)}") from err
    y, notes = np.stack(masks), list(pairs.notes)
    values = np.unique(y)
    if values.tolist() == [0, VOID]:
        if request.owner and request.num_classes != 2:
            raise DataError(
                f"{local(where)}: the masks have the values 0 and {VOID} only, and it is not clear whether "
                f"{VOID} is a class, as other nodes' masks may have more. Save class numbers, 0 and 1"
            )
        y = (y == VOID).astype(np.int32)
        notes.append(f"the masks have the values 0 and {VOID} only, which are read as the classes 0 and 1")
    made, outputs = dense(request, where, y.astype(np.uint8) if values[-1] <= VOID else y)
    test = np.arange(len(y)) >= pairs.num_train
    return assemble(
        request,
        x=stack.array,
        y=made,
        test=test if test.any() else None,
        owners=(),
        classes=(),
        where=where,
        notes=tuple(notes),
        read=stack.facts,
        outputs=outputs,
    )


def _classes(data: bytes) -> npt.NDArray[np.int32]:
    """Return the class of each pixel of a mask.

    Raises:
        PictureError: It is damaged, or has more than one number a pixel.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            mode, numbers = image.mode, np.asarray(ImageOps.exif_transpose(image), dtype=np.int32)
    except Exception as err:  # Pillow's readers of damaged files raise a dozen kinds
        raise PictureError(f"not a picture that Pillow can read: {local(err)}. Repair or remove it") from err
    if mode not in _MODES or numbers.ndim != 2:
        raise PictureError(
            f"of mode {mode}; expected a mask with the number of its class in each pixel, of a mode among "
            f"{', '.join(_MODES)}. Replace colours by class numbers"
        )
    return numbers
