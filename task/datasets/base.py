"""Base of the data sets: arrays on disk, and the conversion of examples to a model's inputs."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from task.config.sections import TABLES, DataConfig, SyntheticConfig
from task.errors import ConfigError, DataError, local
from task.references import is_reference

if TYPE_CHECKING:  # importing torch takes seconds, and labels don't need it
    import torch

    from task.datasets.columns import Preparation
    from task.datasets.description import Meaning
    from task.datasets.drift import Drift
    from task.datasets.skew import Skew

Rows = npt.NDArray[np.int64]
# By the run-config key "pixels": what is subtracted from pixels of 0 to 1, and what divides them then.
# "standardised" ones have a mean and a deviation by image.
PIXELS = {"unit": (0.0, 1.0), "centred": (0.5, 0.5), "standardised": (0.0, 1.0)}
PADDING = -100  # a target that does not count: the value that torch's cross_entropy ignores
ROWS = "data set"  # name of the rows' hash where parties compare their data
LOOKED_AT = 512  # examples among which those that tell most are found
IN_CACHE = 64  # examples at once that stay in a CPU's cache between two operations
LEAVES = 16  # a data set stays on a GPU if its free memory is so many times as large


@dataclass(frozen=True, eq=False)
class Owners:
    """Who owns which rows: owner i has ``train_rows[train_offsets[i]:train_offsets[i + 1]]`` to train on."""

    names: Sequence[str]  # unique, in the order of the arrays
    train_offsets: Rows  # int64 [owners + 1]
    train_rows: Rows  # numbers of rows below `Dataset.num_train`
    test_offsets: Rows
    test_rows: Rows  # of a data set's owners, from `Dataset.num_train` on; empty if the data came without

    def train(self, owner: int) -> Rows:
        """Return the training rows of owner number `owner`."""
        return self.train_rows[self.train_offsets[owner] : self.train_offsets[owner + 1]]

    def test(self, owner: int) -> Rows:
        """Return the test rows of owner number `owner`."""
        return self.test_rows[self.test_offsets[owner] : self.test_offsets[owner + 1]]

    @staticmethod
    def from_lists(
        names: Sequence[str], train: Sequence[npt.ArrayLike], test: Sequence[npt.ArrayLike]
    ) -> Owners:
        """Build the offset form from one list of rows per owner."""
        return Owners(names, *_stacked(train), *_stacked(test))

    def arrays(self) -> dict[str, Rows]:
        """Return the four arrays by name: with them and the names, `Owners` makes the same object."""
        return {key: value for key, value in vars(self).items() if key != "names"}


def by_owner(
    names: Sequence[str],
    train: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    test: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
) -> dict[str, Any]:
    """Return x, y, num_train and owners of a `Decoded` from inputs and targets of each owner."""
    parts = [*train, *test]
    ends = np.cumsum([len(x) for x, _ in parts])
    rows = [np.arange(end - len(x), end) for (x, _), end in zip(parts, ends, strict=True)]
    return {
        "x": np.concatenate([x for x, _ in parts]),
        "y": np.concatenate([y for _, y in parts]),
        "num_train": sum(len(x) for x, _ in train),
        "owners": Owners.from_lists(names, rows[: len(train)], rows[len(train) :]),
    }


def no_progress_thread() -> None:
    """Keep tqdm, which Hugging Face's library uses, from starting a thread: with one, no fork is safe."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0


class Names:
    """Makes owners' names unique, readable, and valid as file names."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def new(self, raw: str) -> str:
        """Return `raw` without what a file name cannot hold, and with a number if it was there before."""
        safe = re.sub(r"[^\w.-]+", "_", raw).strip("._-") or "unnamed"
        while True:
            # Upper and lower case count as equal: some file systems cannot tell them apart.
            self._seen[safe.lower()] += 1
            if self._seen[safe.lower()] == 1:
                return safe
            safe = f"{safe}-{self._seen[safe.lower()]}"


def _stacked(lists: Sequence[npt.ArrayLike]) -> tuple[Rows, Rows]:
    """Return ``(offsets, rows)`` of one list of row numbers per owner."""
    arrays = [np.asarray(rows, dtype=np.int64) for rows in lists]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    offsets[1:] = np.cumsum([len(a) for a in arrays], dtype=np.int64)
    return offsets, np.concatenate([*arrays, np.zeros(0, dtype=np.int64)])


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoded:
    """What a decoder gives to the cache."""

    # Row i is example i: uint8 images [N, H, W] or [N, C, H, W], float32 features [N, ...], uint8 text
    # windows [N, T] or numbers of words int32 [N, T] (`task.datasets.words`).
    x: npt.NDArray[Any]
    # Class numbers int64 [N]; a class at each position, int16 or int32 [N, T] or [N, H, W, ...] with
    # `PADDING`, as the next bytes of text; numbers float32 [N] or [N, d]; labels 0 and 1, float32 [N, C].
    y: npt.NDArray[Any]
    num_train: int  # rows below it are the training pool, the others the global test set
    num_classes: int  # C, or the number of outputs: 256 for text, d of numbers [N, d], 1 of numbers [N]
    input_shape: tuple[int, ...]  # of one example as a model sees it
    kind: str  # "image", "features", "text" (integers), or "mixed" (inputs by name, some of them integers)
    form: str = ""  # of the inputs, `task.inputs`, where they are integers or have names
    scale: float = 255.0  # images are divided by it;
    mean: tuple[float, ...] = (0.0,)  # then this is subtracted, per channel;
    std: tuple[float, ...] = (1.0,)  # then they are divided by this, per channel
    classes: tuple[str, ...] = ()  # names of the classes; empty where they are just numbers
    # Of a table: names of the features in their order, then of the label; of a category with its values
    # (`task.datasets.header.TypedColumn`).
    columns: tuple[str, ...] = ()
    owners: Owners | None = None  # the natural ones
    # Of a table whose header has a column of ids: the id of each row, unique; None = the rows have none.
    ids: npt.NDArray[np.str_] | None = None
    # What no model reads, text [N, columns], and the columns' names: runs may compare groups of people by it.
    aside: npt.NDArray[np.str_] | None = None
    aside_names: tuple[str, ...] = ()
    labelled: bool = True  # whether `y` are targets; a party without them has zeros
    frozen: bool = False  # whether a user's data set draws its examples, which were read once
    description: str = ""  # one line about what was loaded
    source: str = ""  # where it came from
    # Notes on what was ignored or changed in reading. They are only for the data's owner, as they may have
    # names and values.
    notes: tuple[str, ...] = ()
    read: dict[str, Any] = field(default_factory=dict)  # facts about the files, as of JSON

    @functools.cached_property
    def rows_hash(self) -> str:
        """A hash of the number of training rows, the inputs' shape, and the classes in their order.

        Not of values: their last bits may depend on the machine that computed them.
        """
        digest = hashlib.sha256(repr((self.num_train, self.x.shape, self.y.shape)).encode())
        if self.y.dtype.kind in "iu":
            digest.update(np.ascontiguousarray(self.y, np.int64).data)
        return digest.hexdigest()

    def content_hash(self) -> str:
        """Return a hash of the examples, the split and the owners."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.x, self.y):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        fields = (self.num_train, self.num_classes, self.input_shape, self.kind, self.scale, self.mean)
        digest.update(repr((*fields, self.std, self.classes)).encode())
        if self.form:
            digest.update(self.form.encode())
        if self.ids is not None:
            digest.update("\x1f".join(self.ids.tolist()).encode())
            digest.update(repr(self.labelled).encode())
        if self.aside is not None:
            digest.update(repr((self.aside_names, self.aside.tolist())).encode())
        if any(":category(" in name for name in self.columns[:-1]):  # by names alone no model differs
            digest.update(repr(self.columns).encode())
        if owners := self.owners:
            digest.update("\x1f".join(owners.names).encode())
            for rows in owners.arrays().values():
                digest.update(rows.tobytes())
        return digest.hexdigest()


def decoded_images(x: npt.NDArray[np.uint8], y: Rows, num_train: int, **more: Any) -> Decoded:
    """Return `Decoded` of images ``[N, H, W]`` or ``[N, C, H, W]``, described."""
    height, width = x.shape[-2:]
    return Decoded(
        x=x,
        y=y,
        num_train=num_train,
        input_shape=(1, height, width) if x.ndim == 3 else x.shape[1:],
        kind="image",
        description=f"{num_train} training and {len(y) - num_train} test images {height}x{width}",
        **more,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Decoded):
    """A decoded data set; the arrays are memory-mapped and read-only."""

    name: str  # in `DATASETS`
    fingerprint: str = ""  # hash of the content: equal on two machines that hold the same data
    meaning: Meaning | None = None  # slow to compute, so that the cache keeps it; None = see `meaning_of`
    preparation: Preparation | None = None  # of a table's columns; None = a model reads them as they are
    skew: Skew | None = None  # of the clients' images; None = all are as in the file
    drift: Drift | None = None  # how examples change from round to round; None = they stay as they are
    crop: int = 0  # side of the square in the middle of an image that a model reads; 0 = the whole image
    standardised: bool = False  # whether each image is read by its own mean and deviation
    round: int = 0  # whose examples these are; 0 = before any drift

    @property
    def drawn(self) -> Dataset:
        """What a generative model learns to draw: the examples."""
        return self

    @property
    def test_rows(self) -> slice:
        """The rows of the global test set."""
        return slice(self.num_train, len(self.y))

    def inputs(self, rows: Rows | slice, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return examples as a model reads them: a fresh contiguous tensor, int64 for text, else float32.

        Inputs by name, some of them integers, are rows of float64 (`task.inputs`). Pictures travel to a
        device as the bytes that they are, and stay there, all of them, if they are few for its memory.
        """
        import torch

        device = torch.device(device)
        if self.preparation or self.skew or self.drift:  # these compute on a CPU
            return self._inputs(torch.from_numpy(_own(self.x[rows])), rows).to(device)
        if (whole := self._whole(device)) is None or isinstance(rows, slice):
            return self._inputs(torch.from_numpy(_own(self.x[rows])).to(device), rows)
        return self._inputs(whole.index_select(0, torch.from_numpy(_own(rows)).to(device)), rows)

    def _whole(self, device: torch.device) -> torch.Tensor | None:
        """Return all examples in a device's memory; None on a CPU, and if they take much of that memory."""
        import torch

        if device.type not in self._held:
            free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
            fits = self.x.nbytes * LEAVES < free and self.x.dtype in (np.uint8, np.int32, np.float32)
            self._held[device.type] = torch.from_numpy(_own(self.x)).to(device) if fits else None
        return self._held[device.type]

    @functools.cached_property
    def _held(self) -> dict[str, torch.Tensor | None]:
        return {}

    def _inputs(self, picked: torch.Tensor, rows: Rows | slice) -> torch.Tensor:
        if self.kind in ("text", "mixed"):
            return picked.long() if self.kind == "text" else picked.double()
        picked = picked.float()
        if self.kind == "image":
            picked.div_(self.scale)  # eight times as fast as dividing the integers, with the same bits
        if self.preparation:
            return self.preparation(picked)
        picked = picked.float().reshape(len(picked), *self.whole_shape)
        if self.skew:
            picked = self.skew(picked, rows)
        if self.drift and self.round:
            picked = self.drift.inputs(picked, rows, self.round)
        return self._read(picked) if self.kind == "image" else picked

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of one example before it is cropped."""
        return (*self.input_shape[:-2], *self.x.shape[-2:]) if self.crop else self.input_shape

    def pixels(self, rows: Rows | slice, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return images [B, C, H, W] before they are cropped and normalised: float32 from 0 to 1."""
        return self._pixels.inputs(rows, device)

    @functools.cached_property
    def _pixels(self) -> Dataset:
        unread: dict[str, Any] = {"mean": (0.0,), "std": (1.0,), "crop": 0, "standardised": False}
        made = replace(self, input_shape=self.whole_shape, **unread)
        vars(made)["_held"] = self._held  # one copy on a GPU serves both
        return made

    def as_read(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return images [B, C, H, W] with pixels from 0 to 1 as a model reads them; those that came stay."""
        return self._read(pixels.clone())

    def _read(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        pixels = centre(pixels, self.crop).contiguous()
        if self.standardised:
            return standardised(pixels, self.scale)
        if any(self.mean) or any(s != 1 for s in self.std):
            shift, divisor = (part.to(pixels.device) for part in self._normalisation)
            for part in torch.split(pixels, IN_CACHE if pixels.is_cpu else max(len(pixels), 1)):
                part.sub_(shift).div_(divisor)
        return pixels

    def targets(self, rows: Rows | slice) -> torch.Tensor:
        """Return class numbers, int64 ``[B, ...]``, of each position if there are several, else float32."""
        import torch

        picked = torch.from_numpy(_own(self.y[rows]))
        picked = picked.float() if picked.is_floating_point() else picked.long()
        return self.drift.targets(picked, rows, self.round) if self.drift and self.round else picked

    def at(self, server_round: int) -> Dataset:
        """Return the data set as it is in a round."""
        return replace(self, round=server_round) if self.drift else self

    def with_pixels(self, pixels: str) -> Dataset:
        """Return the images with pixels in the range that a run names, a key of `PIXELS`, or "auto".

        Raises:
            ConfigError: The examples are no images.
        """
        if pixels == "auto":
            return self
        self._check_images("pixels")
        shift, divisor = PIXELS[pixels]
        channels = self.input_shape[0]
        each = pixels == "standardised"
        return replace(self, mean=(shift,) * channels, std=(divisor,) * channels, standardised=each)

    def with_crop(self, side: int) -> Dataset:
        """Return the images of which a model reads the middle, a square; 0 = whole images.

        Raises:
            ConfigError: The examples are no images, are smaller, or have a mask each.
        """
        if not side:
            return self
        self._check_images("crop")
        height, width = self.input_shape[-2:]
        if side > min(height, width):
            raise ConfigError(
                f'run-config key "crop": expected at most {min(height, width)}, as the images of '
                f'"{local(self.name)}" have {width}x{height} pixels; got {side}'
            )
        if self.task == "segmentation":
            raise ConfigError(
                f'run-config key "crop": expected images without masks; "{local(self.name)}" has a class at '
                f"each pixel; got {side}. Crop pictures and masks in the files"
            )
        return replace(self, input_shape=(self.input_shape[0], side, side), crop=side)

    def _check_images(self, key: str) -> None:
        if self.kind != "image":
            raise ConfigError(
                f'run-config key "{key}": expected images; got {self.kind} of shape {self.input_shape} in '
                f'"{self.name}". Leave the key out.'
            )

    @functools.cached_property
    def task(self) -> str:
        """What the targets are by themselves, a name in `task.tasks.TASKS`."""
        if self.y.dtype.kind != "f":
            return {1: "classification", 2: "language"}.get(self.y.ndim, "segmentation")
        return "multi-label" if self.y.ndim == 2 and bool(np.isin(self.y, (0, 1)).all()) else "regression"

    def telling(self, count: int, rows: Rows | None = None) -> Rows:
        """Return up to `count` of the rows, by default of all training rows, to try a run on.

        Where each place of an example has a class, those come first whose target has two that count and
        differ: a mask without an object, or a text of one token, hides what fails on others.
        """
        rows = np.arange(self.num_train) if rows is None else rows
        if self.y.ndim < 2 or self.y.dtype.kind == "f":
            return rows[:count]
        seen = rows[:LOOKED_AT]
        y = np.asarray(self.y[seen], np.int64).reshape(len(seen), -1)
        least = np.where(y == PADDING, np.iinfo(np.int64).max, y).min(1)
        return seen[np.argsort(y.max(1) <= least, kind="stable")][:count]

    def check_classes(self, task: str) -> None:
        """Refuse training examples that are all of one class, where classes are to be learnt.

        Raises:
            DataError: Naming the class, and where the data are from.
        """
        first = self.y[:1]
        if not self.labelled or self.task != "classification" or task not in ("auto", "classification"):
            return
        if self.num_train < 2 or (self.y[: self.num_train] != first).any():
            return
        name = self.classes[int(first[0])] if self.classes else str(first[0])
        raise DataError(
            f"{local(self.source)}: expected training examples of two classes or more; all "
            f'{self.num_train} are of one, "{local(name)}", so there is nothing to learn. Are the '
            "labels the right ones?"
        )

    @functools.cached_property
    def _normalisation(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return mean.reshape(1, -1, 1, 1), std.reshape(1, -1, 1, 1)


def centre(images: torch.Tensor, side: int) -> torch.Tensor:
    """Return the middle of images [..., H, W], a view [..., side, side]; 0 = the images.

    Where the margins cannot be equal, the upper and the left one are smaller by a pixel.
    """
    if not side:
        return images
    top, left = (images.shape[-2] - side) // 2, (images.shape[-1] - side) // 2
    return images[..., top : top + side, left : left + side]


def standardised(images: torch.Tensor, scale: float) -> torch.Tensor:
    """Return images [B, C, H, W], each with mean 0 and deviation 1 over all of its numbers.

    As TensorFlow's ``per_image_standardization``: x of n numbers becomes (x - mean) / max(std, 1 / sqrt(n)),
    with mean and std in steps of the file, of which `scale` make the range from 0 to 1.
    """
    wide = images.double()  # so that no bit depends on the order of the sums
    wide = wide - wide.mean((1, 2, 3), keepdim=True)
    deviation = wide.square().mean((1, 2, 3), keepdim=True).sqrt()
    least = 1 / (scale * math.sqrt(images.shape[1] * images.shape[2] * images.shape[3]))
    return (wide / deviation.clamp(min=least)).float()


def compared(dataset: Dataset, config: DataConfig) -> dict[str, str]:
    """Return the digest of the run's data set, like code in `task.references.code_of`; {} if it is built in.

    Files and user code may give different rows on each machine, or the same in another order.
    """
    brought = is_reference(config.dataset) or config.dataset in TABLES
    return {ROWS: dataset.rows_hash} if brought else {}


def _own(picked: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy what is still a view of the read-only file (a slice); torch shares memory with the array."""
    return picked if picked.flags.writeable else picked.copy()


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request to a loader: the parts of the run config that concern it, resolved."""

    name: str  # of the data set
    data_dir: Path
    cache_dir: Path
    data_path: str = ""  # file or folder of the user's own data
    num_classes: int = 0  # 0 = from the data
    task: str = "auto"  # the task; "auto" = that of the targets
    inputs: str = "auto"  # the run-config key: the form of the inputs, or how it is found
    column_types: str = ""  # types of a csv file's columns that the run declares,
    own_types: str = ""  # and that the owner of the node declares: `task.datasets.column_types`
    num_clients: int = 0  # population K; 0 = the number of owners
    seed: int = 0
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    shuffle_lines: bool = False  # whether Shakespeare's lines, not his roles, are the clients'
    owner: str = ""  # the one client who owns all rows; "" for pooled data
    grows: bool = False  # whether the owner's files may have more examples later
    keep_missing: bool = False  # whether missing values become NaN instead of an error
    doubles: bool = False  # whether numbers of a csv file stay float64, and no rows are drawn for a test
    local_test_fraction: float = 0.0  # the owner's own test set; for pooled data the partition makes it


@dataclass(frozen=True)
class Source:
    """The source of decoded data: files (by name, size and time) and other keys that they depend on."""

    files: tuple[Path, ...] = ()
    keys: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetSpec:
    """One entry of `DATASETS`."""

    description: str  # one line for listings
    source: str  # where the data come from and under which terms
    model: str  # one that fits
    locate: Callable[
        [Request], Source
    ]  # finds (or downloads) the raw files, names what the result depends on
    decode: Callable[[Request, Source], Decoded]  # turns them into arrays; runs once, heavy imports inside
    own: bool = False  # whether a node can bring data of its own in this form
    targets: int = 1  # upper limit for a row: in text, each predicted byte counts as an example
    text: bool = False  # whether a model reads bytes or numbers of words, int64
    drawn: bool = False  # whether the seed draws the examples, which are vectors of features
