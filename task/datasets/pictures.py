"""Read pictures as arrays: the supported modes of Pillow, and their conversion.

==========================  ==============================================================================
mode                        read as
==========================  ==============================================================================
``1``, ``L``, ``LA``        grey, 0 to 255; fewer than 8 bits are stretched to that range
``RGB``, ``RGBA``           red, green and blue, 0 to 255
``P``, ``PA``               the colours of the palette
``CMYK``, ``YCbCr``         converted to RGB by Pillow, without a colour profile
==========================  ==============================================================================

All others are refused by name, more than 8 bits a value among them: the meaningful range of such values is
unknown, and each site would guess its own. So are pictures with a transparent pixel, whose colour is
arbitrary, and files of several pictures; of a camera's ``MPO`` the first is read. Pictures are turned as
their EXIF orientation says.
"""

import io
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from task.errors import DataError, local
from task.storage.memory import available
from task.units import human_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

GREY, COLOUR = ("1", "L", "LA"), ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
MOST_PIXELS = 2**26  # of a picture; a small file may claim billions
_ORIENTATION, _UPRIGHT = 0x0112, 1  # an EXIF tag
_TODO = (
    "Convert all pictures to 8 bits by one range for all sites, as in x / 4095 * 255 for values of 12 bits"
)


class PictureError(ValueError):
    """A picture is not one that is read; the text says what it is and what to do."""


def opened(data: bytes, as_mode: str = "") -> tuple[npt.NDArray[np.uint8], str]:
    """Return the pixels of a picture file, ``[H, W]`` if it is grey, else ``[H, W, 3]``, and its mode.

    It is converted to the mode `as_mode` of Pillow first; "" = it stays as it is.

    Raises:
        PictureError: It is damaged, or not of a form that is read.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise PictureError(
                    f"of {image.width}x{image.height} pixels; expected at most {MOST_PIXELS:,}. Scale it"
                )
            deep = _deep(image)
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
            image.load()
            if not deep and frames == 1:
                shown = image.convert(as_mode) if as_mode else image
                return pixels_of(shown), shown.mode
            mode = image.mode
    except PictureError:
        raise
    except Exception as err:  # Pillow's readers of damaged files raise a dozen kinds
        why = "none of its formats" if isinstance(err, UnidentifiedImageError) else err
        raise PictureError(f"not a picture that Pillow can read: {local(why)}. Repair or remove it") from err
    if deep:
        raise _too_deep(mode)
    raise PictureError(f"a file of {frames} pictures. Save the one that counts, or each as a file of its own")


def pixels_of(image: "Image") -> npt.NDArray[np.uint8]:
    """Return the pixels of a picture that is loaded, ``[H, W]`` if it is grey, else ``[H, W, 3]``.

    Raises:
        PictureError: Its mode is none that is read, or it has a transparent pixel.
    """
    from PIL import ImageOps

    mode = image.mode
    if mode.startswith(("I", "F")):
        raise _too_deep(mode)
    if mode not in (*GREY, *COLOUR):
        raise PictureError(
            f"of mode {mode}; expected one of {', '.join((*GREY, *COLOUR))}. Convert it to RGB"
        )
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] != 255:
        raise PictureError(
            f"transparent in places (mode {mode}), where its colour is arbitrary. Save the pictures on one "
            "background for all sites: mogrify -background white -alpha remove -alpha off *.png"
        )
    if image.getexif().get(_ORIENTATION, _UPRIGHT) != _UPRIGHT:
        image = ImageOps.exif_transpose(image)
    return np.asarray(image.convert("L" if mode in GREY else "RGB"), dtype=np.uint8)


def _too_deep(mode: str) -> PictureError:
    return PictureError(
        f"of more than 8 bits a value (mode {mode}), whose meaningful range is unknown. {_TODO}"
    )


def _deep(image: "Image") -> bool:
    """Return whether a file that is not loaded yet has more than 8 bits a value, whatever Pillow makes of it.

    Of colours it takes the upper 8 bits, which are dark or empty if the values use fewer than 16.
    """

    def deep(value: Any) -> bool:
        return isinstance(value, str) and ";16" in value

    for tile in getattr(image, "tile", ()):  # of a file's image
        args = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        most = args[1] if tile[0].startswith("ppm") and len(args) > 1 else 0
        if any(map(deep, args)) or (isinstance(most, int) and most > 255):
            return True
    return False


class Stack:
    """Pictures of one size, one after the other, as one array."""

    def __init__(self, count: int, *, colour: bool = False) -> None:
        self._count, self._colour, self._next = count, colour, 0
        self._first = ""
        self._x: npt.NDArray[np.uint8] | None = None
        self.modes: Counter[str] = Counter()

    def add(self, name: str, pixels: npt.NDArray[np.uint8], mode: str) -> None:
        """Add a picture; the first coloured one makes all of them RGB.

        Raises:
            PictureError: It has another size than the first.
        """
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if self._x is None:
            channels = 3 if self._colour else len(planes)
            self._first = name
            needs, free = self._count * channels * planes[0].size, available()
            if needs > free:
                raise PictureError(
                    f"one of {self._count:,} pictures that take {human_bytes(needs)} if all are like it; "
                    f"expected at most {human_bytes(free)}, the memory that is left here. Scale them"
                )
            self._x = np.empty((self._count, channels, *planes.shape[1:]), dtype=np.uint8)
        if planes.shape[1:] != self._x.shape[2:]:
            raise PictureError(
                f"{planes.shape[2]}x{planes.shape[1]}; expected all pictures to be like the first, "
                f"{local(self._first)}: {self.size}. Scale or crop them alike"
            )
        if len(planes) > self._x.shape[1]:
            self._x = np.repeat(self._x, 3, axis=1)
        self._x[self._next] = planes
        self._next += 1
        self.modes[mode] += 1

    @property
    def size(self) -> str:
        """Width and height."""
        return f"{self.array.shape[3]}x{self.array.shape[2]}"

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """All pictures, ``[N, C, H, W]``; C is 1 if all are grey, else 3."""
        if self._x is None:
            raise DataError("expected pictures; got none")
        return self._x

    @property
    def facts(self) -> dict[str, Any]:
        """What the pictures were, for people."""
        return {"modes": dict(sorted(self.modes.items())), "size": self.size}
