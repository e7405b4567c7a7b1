"""Augmentation: random changes of training examples in each epoch; run-config keys ``augment...``.

``augment="crops-flips"`` pads an image with `PAD` black pixels on each side, takes a part of its size out of
it, and mirrors it with probability 1/2, as He et al. (2016) and after them most of the CIFAR-10 literature
do. If a model reads only a part of an image (run-config key ``crop``), that part is taken anywhere from the
image as it is, as TensorFlow's CIFAR-10 tutorial and McMahan et al. (2017) do. ``augment-brightness`` = b
then adds a number from -b to b to all pixels, and ``augment-contrast`` = c multiplies the difference of each
pixel from its channel's mean by a factor from 1 - c to 1 + c. Pixels are from 0 to 1 here, and may leave that
range; after that they are normalised. A user's own function, ``package.module:function``, comes last: it gets
one example as a model reads it, a tensor, and returns one of the same shape; it may draw from the global
generators of torch, NumPy and Python.

Where each pixel has a class, picture and mask go through the same change: ``crops-flips`` moves both by one
draw, what comes in from outside does not count, and a function of the user's own gets both and returns both.

What is drawn for an example follows from the run's training seed, the client, the round, which training of
the round it is, the epoch and the example alone: a resumed run, and one on other nodes, draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from client_app.training.programs import Batch
from task import generators
from task.config.knobs import Config
from task.datasets.base import PADDING, Dataset
from task.errors import ConfigError
from task.numerics import seeds
from task.references import is_reference, load_reference

PAD = 4  # pixels
_WORDS, _UNIT = 1 << 63, 1 << 31


@dataclass
class Augmentation:
    """The augmentation of some clients' batches in one round.

    Args:
        name: Value of the run-config key ``augment``.
        seed: The run's training seed.
        number: Round, or number of the training where a round has several.
        clients: Their names, in the order of their examples.
        sizes: Examples of each.
        black: What a black pixel is in a batch, by channel.
        crop: The run-config key.
        brightness: Likewise.
        contrast: Likewise.
        finish: Makes what a model reads of pixels from 0 to 1; None = batches are what a model reads.
    """

    name: str
    seed: int
    number: int
    clients: Sequence[str]
    sizes: Sequence[int]
    black: Sequence[float]
    crop: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    finish: Callable[[torch.Tensor], torch.Tensor] | None = None
    trainings: int = 0  # begun in this round

    def __post_init__(self) -> None:
        self.own = own_augmentation(self.name) if is_reference(self.name) else None
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        self._epochs = [-1] * len(self.clients)
        self._drawn = np.zeros((2, int(self.offsets[-1])), np.uint64)

    def begin(self) -> None:
        """Begin another training; what it draws is its own."""
        self.trainings += 1
        self._epochs = [-1] * len(self.clients)

    def batch(self, batch: Batch, epochs: Sequence[int]) -> Batch:
        """Return a batch with other inputs; `epochs` is the present one of each of its clients."""
        assert batch.rows is not None
        for k, epoch in enumerate(epochs):
            if epoch != self._epochs[k]:
                self._epochs[k], (first, last) = epoch, self.offsets[k : k + 2]
                of = f"{self.clients[k]}\x1f{self.trainings}\x1f{epoch}"
                rng = seeds.rng_for(self.seed, seeds.AUGMENT, self.number, of)
                for drawn in self._drawn:
                    drawn[first:last] = rng.integers(0, _WORDS, last - first, np.uint64)
        words, more = self._drawn[:, batch.rows.flatten().cpu().numpy()]
        maps = batch.y.dim() > 3 and not batch.y.is_floating_point()  # a class at each pixel
        x, *masks = [t.flatten(0, 1) for t in ((batch.x, batch.y) if maps else (batch.x,))]
        if self.name and not self.own:
            x = crops_flips(x, words, self.black, self.crop)
            masks = [crops_flips(y.unsqueeze(1), words, [PADDING]) for y in masks]
        if self.brightness or self.contrast:
            x = jittered(x, more, self.brightness, self.contrast)
        if self.finish:
            x = self.finish(x)
        if self.own:
            x, *masks = self._of_own((x, *masks), words)
        y = masks[0].view(batch.y.shape) if maps else batch.y
        return replace(batch, x=x.view(*batch.x.shape[:2], *x.shape[1:]), y=y)

    def _of_own(self, parts: Sequence[torch.Tensor], words: np.ndarray) -> list[torch.Tensor]:
        """Return what the user's function makes of each example, and of its mask where there are masks."""
        assert self.own is not None
        made: list[list[torch.Tensor]] = []
        for *example, word in zip(*(part.cpu() for part in parts), words.tolist(), strict=True):
            with generators.kept(word):
                found = self.own(*(t.clone() for t in example))
            both = list(found) if len(example) > 1 and isinstance(found, tuple | list) else [found]
            wanted = [list(t.shape) for t in example]
            got = [list(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__ for t in both]
            if got != wanted:
                what = "a tensor of the shape of its example"
                what = "picture and mask, two tensors of the shapes that it got" if len(wanted) > 1 else what
                raise ConfigError(
                    f'run-config key "augment": "{self.name}": expected {what}, '
                    f"{', '.join(map(str, wanted))}; got {', '.join(map(str, got))}"
                )
            if len(both) > 1 and both[1].is_floating_point():
                raise ConfigError(
                    f'run-config key "augment": "{self.name}": expected the mask as numbers of classes, '
                    f"{example[1].dtype}; got {both[1].dtype}. Interpolate masks by the nearest pixel"
                )
            made.append([t.detach().to(given.dtype) for t, given in zip(both, example, strict=True)])
        return [torch.stack(one).to(parts[0].device) for one in zip(*made, strict=True)]


def augmentation(
    config: Config, number: int, clients: Sequence[str], sizes: Sequence[int], dataset: Dataset
) -> Augmentation | None:
    """Return what a run's keys ask for, for some clients in a round; None = examples stay as they are."""
    name, keys = config.train.augment, config.train
    jitter = (keys.augment_brightness, keys.augment_contrast)
    if not name and not any(jitter):
        return None
    seed = config.seeds.train
    if dataset.kind == "image" and (dataset.crop or dataset.standardised or any(jitter)):
        return Augmentation(
            name, seed, number, clients, sizes, [0.0], dataset.crop, *jitter, finish=dataset.as_read
        )
    black = [0.0]
    if dataset.kind == "image":
        black = [-m / s for m, s in zip(dataset.mean, dataset.std, strict=True)]
    return Augmentation(name, seed, number, clients, sizes, black)


def own_augmentation(name: str) -> Callable[[torch.Tensor], Any]:
    """Return a user's own function.

    Raises:
        ConfigError: It cannot be called.
    """
    found = load_reference("augment", name)
    if not callable(found) or isinstance(found, type):
        raise ConfigError(
            f'run-config key "augment": "{name}": expected a function of one example, a tensor; got '
            f"{'a class' if isinstance(found, type) else type(found).__name__}"
        )
    made: Callable[[torch.Tensor], Any] = found
    return made


def crops_flips(x: torch.Tensor, words: np.ndarray, black: Sequence[float], crop: int = 0) -> torch.Tensor:
    """Return a part of each image [B, C, H, W], perhaps mirrored: of its size, or [B, C, crop, crop].

    Args:
        x: The images.
        words: 63 random bits of each, uint64 [B].
        black: What is around them, `PAD` pixels wide, one number or one by channel.
        crop: Side of a square, which is taken from the image without anything around it; 0 = of its size.
    """
    count, channels, height, width = x.shape
    padded, rest = x, (height - crop, width - crop)
    if not crop:
        around = torch.tensor(black, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)
        padded = around.expand(count, channels, height + 2 * PAD, width + 2 * PAD).contiguous()
        padded[:, :, PAD : PAD + height, PAD : PAD + width] = x
        rest = (2 * PAD, 2 * PAD)
    height, width = (crop, crop) if crop else (height, width)
    flips, (low, high) = words & np.uint64(1), [np.uint64(n + 1) for n in rest]
    down, right = (words >> np.uint64(1)) % low, (words >> np.uint64(32)) % high
    columns = np.where(flips[:, None], np.arange(width)[::-1], np.arange(width))
    rows = torch.from_numpy(down.astype(np.int64)[:, None] + np.arange(height)).to(x.device)
    columns_at = torch.from_numpy(right.astype(np.int64)[:, None] + columns).to(x.device)
    every = torch.arange(count, device=x.device)
    return padded[
        every.view(-1, 1, 1, 1),
        torch.arange(channels, device=x.device).view(1, -1, 1, 1),
        rows[:, None, :, None],
        columns_at[:, None, None, :],
    ]


def jittered(x: torch.Tensor, words: np.ndarray, brightness: float, contrast: float) -> torch.Tensor:
    """Return images [B, C, H, W] of another brightness and contrast.

    ``(x - m) f + m + d`` with m the mean of a channel of the image, f from 1 - contrast to 1 + contrast and d
    from -brightness to brightness, both the same for the whole image. So do TensorFlow's ``adjust_contrast``
    and ``adjust_brightness``; torchvision's ``ColorJitter`` multiplies by a brightness, has one mean of all
    channels, and clips.

    Args:
        x: The images.
        words: 63 random bits of each, uint64 [B].
        brightness: Largest d.
        contrast: Largest |f - 1|.
    """
    parts = [(words & np.uint64(_UNIT - 1)) / _UNIT, (words >> np.uint64(31)) / (2 * _UNIT)]  # from 0 to 1
    d, f = (torch.from_numpy(2 * part - 1).to(x.device).view(-1, 1, 1, 1) for part in parts)
    wide = x.double()  # so that no bit depends on the order of the sums
    mean = wide.mean((2, 3), keepdim=True)
    return ((wide - mean) * (1 + contrast * f) + mean + brightness * d).float()
