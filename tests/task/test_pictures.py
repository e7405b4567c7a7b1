"""Pictures: which folders are classes and parts, which of Pillow's modes are read, and what is refused."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from task.config.sections import DataConfig
from task.datasets import Dataset, check_owned, images, load_owned, npz, pictures
from task.datasets.images import read_pictures
from task.errors import DataError
from tests.task.helpers import load


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def encoded(image: Image.Image, form: str = "png", **keys: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **keys)
    return file.getvalue()


def grey(value: int = 9, size: tuple[int, int] = (5, 4)) -> bytes:
    return encoded(Image.new("L", size, value))


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if content or "." in name:
            (root / name).write_bytes(content)
        else:
            (root / name).mkdir()
    return root


def folder(*places: str, each: int = 4) -> dict[str, bytes]:
    """Return grey pictures in folders; their value says which folder and which picture it is."""
    return {f"{p}/{i}.png": grey(10 * n + i) for n, p in enumerate(places, 1) for i in range(each)}


def read(root: Path, zipped: bool = False) -> Dataset:
    path = shutil.make_archive(str(root), "zip", root) if zipped else str(root)
    return load(dataset="imagefolder", data_path=path)


# --------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("names", [("Training", "Testing"), ("TRAIN", "TEST"), ("train", "Test")])
def test_parts_have_common_names_in_any_case(tmp_path: Path, names: tuple[str, str], zipped: bool) -> None:
    train, test = names
    places = (f"{train}/benign", f"{train}/malign", f"{test}/benign", f"{test}/malign")
    data = read(write(tmp_path / "t", folder(*places)), zipped)
    assert (data.classes, data.num_train, len(data.y)) == (("benign", "malign"), 8, 16)
    assert data.x[:, 0, 0, 0].tolist() == [*range(10, 14), *range(20, 24), *range(30, 34), *range(40, 44)]
    assert data.read["parts"] == {"train": train, "test": test}


@pytest.mark.parametrize("name", ["val", "VALID", "Validation"])
def test_a_validation_part_is_never_dropped_without_a_word(tmp_path: Path, name: str) -> None:
    root = write(tmp_path / "t", folder("train/a", "train/b", f"{name}/a", f"{name}/b"))
    data = read(root)
    assert (data.num_train, len(data.y)) == (8, 16)
    assert data.notes == (f"the folder {name} (8 examples) is the test set, since there is no test part",)
    data = read(write(root, folder("test/a", "test/b", each=2)))
    assert (data.num_train, len(data.y)) == (8, 12)
    assert data.notes[0].startswith(f"the folder {name} (8 examples) is left out: ")
    assert sorted(set(read_pictures(root)[3])) == ["test", "train", "validation"]  # all can be predicted


def test_the_folder_that_unpacking_leaves_is_entered(tmp_path: Path) -> None:
    data = read(write(tmp_path / "a", folder("pictures/benign", "pictures/malign")))
    assert (data.classes, data.read["entered"]) == (("benign", "malign"), "pictures")
    data = read(write(tmp_path / "b", folder("x/y/Train/a", "x/y/Train/b", "x/y/Test/a", "x/y/Test/b")), True)
    assert (data.classes, data.num_train, len(data.y)) == (("a", "b"), 8, 16)


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("site-a/benign", "site-a/malign", "site-b/benign"), "got site-a, which holds the folders benign, "),
        (("train/a", "train/b", "train/b/deeper"), "got train/b, which holds the folders deeper"),
        (("a", "b", "b/2024/may"), "got b, which holds the folders 2024"),
        (("train/a/images", "train/b/images", "test/a/images"), "/a, which holds the folders images"),
        (("train/a", "train/b", "test"), "test holds pictures that are in no folder of a class"),
        (("train/a", "train/b", "samples"), "samples holds pictures that are in no folder"),
        (("train/a", "train/b", "Training/a"), "one folder with the train part; got Training, train"),
        (("train/a", "train/b", "holdout/a"), "got holdout, which holds the folders a"),
        (("test/a", "test/b"), "expected training examples; all 8 are test examples"),
        (("only",), 'all 4 are of one, "only"|all 3 are of one, "only"'),
        (("train/only", "test/only"), 'all 4 are of one, "only"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("zipped", [False, True])
def test_a_class_holds_pictures_and_no_folders(
    tmp_path: Path, places: tuple[str, ...], says: str, zipped: bool
) -> None:
    with pytest.raises(DataError, match=says):
        read(write(tmp_path / "t", folder(*places)), zipped)


def test_a_class_may_be_called_as_a_part(tmp_path: Path) -> None:
    assert read(write(tmp_path / "t", folder("bus", "car", "train"))).classes == ("bus", "car", "train")


def test_hidden_files_do_not_count_and_others_are_named(tmp_path: Path) -> None:
    hidden = (
        ".DS_Store",
        "a/.DS_Store",
        "a/Thumbs.db",
        "__MACOSX/a/._0.png",
        "a/.cache/0.png",
        "b/desktop.ini",
    )
    root = write(tmp_path / "t", folder("a", "b") | dict.fromkeys(hidden, b"x"))
    assert read(root).notes == ()
    assert check_owned(root, "ward", tmp_path / "cache").startswith("imagefolder, 8 training")
    write(root, {"a/1.dcm": b"x", "b/1.dcm": b"x", "b/notes.txt": b"x", "over.png": grey()})
    notes = read(root).notes
    assert notes[0] == "3 files in class folders are no pictures that are read, and left out: 2 .dcm, 1 .txt"
    assert notes[1].endswith("over.png")
    with pytest.raises(DataError, match=r"all pictures in class folders, or none; got 1 .* over.png"):
        read_pictures(root)


def test_endings_in_capitals_are_seen(tmp_path: Path) -> None:
    root = write(tmp_path / "t", {f"{c}/{i}.PNG": grey(i) for c in "ab" for i in range(3)})
    zipped = Path(shutil.make_archive(str(root), "zip", root)).rename(tmp_path / "T.ZIP")
    for path in (root, zipped):
        assert len(load(dataset="imagefolder", data_path=str(path)).y) == 6
        assert check_owned(path, "ward", tmp_path / "cache").startswith("imagefolder")
        assert len(read_pictures(path)[1]) == 6


def test_a_node_may_have_pictures_of_one_class_if_it_has_all_folders(tmp_path: Path) -> None:
    root = write(tmp_path / "t", folder("benign") | {"malign": b""})
    config = DataConfig(dataset="imagefolder", num_classes=2)
    assert load_owned(config, str(root), "ward", 1).classes == ("benign", "malign")


# ----------------------------------------------------------------------------------- modes


def two(tmp_path: Path, content: bytes, end: str = ".png") -> Path:
    return write(tmp_path / "t", {f"a/0{end}": content, f"b/0{end}": content})


def ramp(mode: str = "L") -> Image.Image:
    return Image.fromarray(np.arange(0, 240, 12, dtype=np.uint8).reshape(4, 5)).convert(mode)


@pytest.mark.parametrize(
    ("image", "form", "channels"),
    [
        (ramp(), "png", 1), (ramp("LA"), "png", 1), (ramp("RGB"), "png", 3), (ramp("RGBA"), "png", 3),
        (ramp("P"), "png", 3), (ramp("YCbCr"), "tiff", 3), (ramp("CMYK"), "tiff", 3), (ramp(), "gif", 3),
        (ramp("RGB"), "webp", 3),
    ],
)  # fmt: skip
def test_modes_that_are_read(tmp_path: Path, image: Image.Image, form: str, channels: int) -> None:
    keys = {"lossless": True} if form == "webp" else {}
    data = read(two(tmp_path, encoded(image, form, **keys), f".{form}"))
    assert data.x.shape[1:] == (channels, 4, 5)
    assert np.abs(data.x[0, 0].astype(int) - np.asarray(ramp(), int)).max() <= 2
    assert sum(data.read["modes"].values()) == 2
    assert data.read["size"] == "5x4"


def test_few_bits_are_stretched(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1")
    assert read(two(tmp_path, encoded(image))).x[0, 0].tolist() == [[0, 255], [255, 0]]


def raw_png(colour: int, channels: int) -> bytes:
    """Return a png file of 16 bits a value, which Pillow reads as one of 8 where it has colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 5, 4, 16, colour, 0, 0, 0)
    rows = (b"\0" + np.full((5, channels), 4000, ">u2").tobytes()) * 4
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


DEEP = np.arange(20, dtype=np.uint16).reshape(4, 5) * 200


@pytest.mark.parametrize(
    ("content", "end", "mode"),
    [
        (encoded(Image.fromarray(DEEP)), ".png", "I;16"),
        (encoded(Image.fromarray(DEEP), "tiff"), ".tif", "I;16"),
        (encoded(Image.fromarray(DEEP.astype(np.int32)), "tiff"), ".tif", "I"),
        (encoded(Image.fromarray(DEEP.astype(np.float32)), "tiff"), ".tif", "F"),
        (raw_png(2, 3), ".png", "RGB"),
        (raw_png(4, 2), ".png", "RGBA"),
        (raw_png(6, 4), ".png", "RGBA"),
        (b"P5 5 4 4095\n" + DEEP.astype(">u2").tobytes(), ".pgm", "I"),
        (b"P6 5 4 4095\n" + np.repeat(DEEP, 3).astype(">u2").tobytes(), ".ppm", "RGB"),
    ],
)
def test_more_than_8_bits_are_refused_by_mode(tmp_path: Path, content: bytes, end: str, mode: str) -> None:
    path = two(tmp_path, content, end)
    says = rf"a/0{end} is of more than 8 bits a value \(mode {mode}\).*by one range for all sites"
    with pytest.raises(DataError, match=says):
        read(path)
    with pytest.raises(DataError, match=says):
        read_pictures(path)
    with pytest.raises(DataError, match=says.removeprefix("a/")):
        read_pictures(path / f"a/0{end}")


def clear_corner(mode: str) -> bytes:
    image = ramp("RGBA" if mode == "P" else mode)
    image.putpixel((0, 0), (0,) * len(image.getbands()))
    return (
        encoded(image.convert("P"), transparency=image.convert("P").getpixel((0, 0)))
        if mode == "P"
        else encoded(image)
    )


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_transparent_pixel_is_refused(tmp_path: Path, mode: str) -> None:
    with pytest.raises(DataError, match=rf"a/0.png is transparent in places \(mode {mode}\).*mogrify"):
        read(two(tmp_path, clear_corner(mode)))


def test_other_modes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a/0.tiff is of mode LAB; expected one of 1, L, LA, RGB"):
        read(two(tmp_path, encoded(Image.new("LAB", (5, 4)), "tiff"), ".tiff"))


@pytest.mark.parametrize("form", ["gif", "tiff", "png", "webp"])
def test_several_pictures_in_a_file_are_refused(tmp_path: Path, form: str) -> None:
    more = [Image.new("L", (5, 4), value) for value in (90, 180)]
    content = encoded(Image.new("L", (5, 4)), form, save_all=True, append_images=more)
    with pytest.raises(DataError, match=rf"a/0.{form} is a file of 3 pictures"):
        read(two(tmp_path, content, f".{form}"))


@pytest.mark.parametrize("form", ["jpeg", "png", "tiff"])
def test_pictures_are_turned_as_their_orientation_says(tmp_path: Path, form: str) -> None:
    image = Image.fromarray(
        np.repeat(np.array([[0, 0, 0, 255]], np.uint8), 3, axis=0).repeat(8, 0).repeat(8, 1)
    )
    tag = image.getexif()
    tag[0x0112] = 6  # the first row is at the right
    data = read(two(tmp_path, encoded(image, form, exif=tag), f".{form}"))
    assert data.x.shape == (2, 1, 32, 24)
    assert data.x[0, 0, -4:].min() > 200
    assert data.x[0, 0, :20].max() < 60


def test_one_coloured_picture_makes_all_rgb_whatever_the_order(tmp_path: Path) -> None:
    red = encoded(Image.new("RGB", (5, 4), (200, 0, 0)))
    for names in (("a/0.png", "b/0.png"), ("b/0.png", "a/0.png")):
        root = write(tmp_path / names[0][0], {names[0]: grey(7), names[1]: red})
        data = read(root)
        assert sorted(data.x[:, :, 0, 0].tolist()) == [[7, 7, 7], [200, 0, 0]]
        assert data.read["modes"] == {"L": 1, "RGB": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "none of its formats"),
        (b"<html>", "none of its formats"),
        (encoded(ramp("RGB"))[:45], "not a picture that Pillow can read"),
        (encoded(ramp("RGB"), "jpeg")[:-40], "not a picture that Pillow can read"),
        (encoded(Image.new("L", (6, 4))), "6x4; expected all pictures to be like the first, a/0.png: 5x4"),
    ],
)
def test_a_bad_picture_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    root = write(tmp_path / "t", {"a/0.png": grey(), "b/0.png": content})
    with pytest.raises(DataError, match=f"b/0.png is {says}|b/0.png is not a picture .*{says}"):
        read(root)


def test_a_picture_that_is_too_large_to_unpack_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(DataError, match=r"a/0.png is not a picture that Pillow can read: .*exceeds limit"):
        read(two(tmp_path, grey()))


def test_a_zip_file_with_a_password_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/0.png", grey())
        archive.writestr("b/0.png", grey())
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):  # the flag "encrypted" of each entry
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 1)
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"a/0.png cannot be read: .*password"):
        load(dataset="imagefolder", data_path=str(path))


# ------------------------------------------------------------------------------------ bombs


def bomb(path: Path, content: bytes, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("each", "together", "says"),
    [
        (1 << 20, 1 << 40, "at most 1.0 MB for a file; got 3.1 MB"),
        (1 << 30, 4 << 20, "at most 4.2 MB for all; got 6.3 MB"),
    ],
)
def test_a_zip_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int, together: int, says: str
) -> None:
    """300 kB of zeros unpack to 300 MB, a thousand of them to 300 GB."""
    monkeypatch.setattr(images, "MOST_BYTES", each)
    monkeypatch.setattr(images, "MOST_UNPACKED", together)
    small = encoded(Image.new("L", (4, 4), 9), "bmp")
    path = bomb(tmp_path / "x.zip", small + bytes(3 << 20), ["a/1.bmp", "a/2.bmp", "b/1.bmp"])
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=f"in a zip file that unpacks to too much: expected {says}"):
        read_pictures(path)


def test_a_picture_of_very_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """A PNG of 12 kB may say that it is of 64 million grey pixels, and of more."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    (tmp_path / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + body)
    with pytest.raises(DataError, match="is of 9000x9000 pixels; expected at most 67,108,864"):
        read_pictures(tmp_path / "1.png")


def test_more_pictures_than_the_memory_takes_are_refused_at_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "available", lambda: 3 << 20)
    path = bomb(tmp_path / "x.zip", grey(size=(1024, 1024)), ["a/1.png", "a/2.png", "b/1.png", "b/2.png"])
    with pytest.raises(DataError, match=r"one of 4 pictures that take 4.2 MB if all are like it; .* 3.1 MB"):
        read_pictures(path)


def test_arrays_that_the_memory_does_not_take_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(
        tmp_path / "x.npz", x=np.zeros((1 << 20, 4), np.float32), y=np.zeros(1 << 20, np.int64)
    )
    monkeypatch.setattr(npz, "available", lambda: 20 << 20)
    with pytest.raises(DataError, match=r"at most 21.0 MB, the memory that is left .*; got 25.2 MB"):
        npz.read_arrays(tmp_path / "x.npz", "x", "y")
