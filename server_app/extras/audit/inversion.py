"""Gradient inversion: reconstruct training examples from a client's upload or from the new model.

*Analytic* (for a model whose first layer is linear with a bias): of a unit i that one example alone moved,
``Delta W_i / Delta b_i = (dL/dW_i) / (dL/db_i) = x``, exactly; of a unit that several moved it is a mixture
of them. *Optimised* (Geiping et al. 2020, arXiv 2003.14053, for all others): images x' whose gradient points
the way of -Delta, by Adam on the sign of the gradient of 1 - cos + tv TV(x'). *Label* (iDLG, Zhao et al.
2020, arXiv 2001.02610): in the gradient of one example, the label's entry of the last bias alone is negative.

Both attacks take a client's change of the model for one step along a gradient, which it is with one batch and
one epoch. Each original is compared with the candidate that is most like it, which the attacker could not
choose so well: the numbers favour the attack.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from task.datasets import Dataset
from task.errors import ConfigError
from task.numerics.arrays import NamedArrays

SHARE = 1e-9  # share of the largest change of a bias below which a unit counts as unmoved
MOST_DB = 150.0  # the value for exact equality
SHOWN = (0.5, 0.25)  # mean and deviation of standardised images, whose own no model reads, in pictures
LR, TV, BETA1, BETA2 = 0.1, 1e-2, 0.9, 0.999  # of the optimised attack

Images = torch.Tensor  # [n, C, H, W]


@dataclass(frozen=True)
class Rebuilt:
    """What an attack reconstructed from a change of the model, with the originals."""

    images: Images  # for each original the most similar candidate, in pixels of 0 to 1
    psnr: tuple[float, ...]  # of each, in dB
    label: bool | None = None  # whether the label of a single example was found; None = not tried

    @property
    def mean(self) -> float:
        """Mean PSNR in dB."""
        return sum(self.psnr) / len(self.psnr)


def first_linear(model: nn.Module, shape: Sequence[int]) -> str:
    """Return the name of a model's first layer if it is linear and reads the example; else ""."""
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            reads = isinstance(module, nn.Linear) and module.in_features == math.prod(shape)
            return name if reads and module.bias is not None else ""
    return ""


def analytic(change: NamedArrays, layer: str) -> torch.Tensor:
    """Return candidates for the inputs [units, d], one for each unit of the first layer that was moved."""
    w, b = (np.asarray(change[f"{layer}.{part}"], np.float64) for part in ("weight", "bias"))
    moved = np.abs(b) > SHARE * np.abs(b).max()
    return torch.from_numpy(w[moved] / b[moved, None])


def label_of(change: NamedArrays) -> int:
    """Return the class whose entry of the last bias rose most, as that of a single example does."""
    bias = [n for n in change if n.endswith("bias")][-1]
    return int(np.argmax(change[bias]))


def optimised(
    model: nn.Module,
    change: NamedArrays,
    labels: torch.Tensor,
    like: Images,
    steps: int,
    seed: int = 0,
    tv: float = TV,
) -> Images:
    """Return images, as the model reads them, whose gradient points the way of -change.

    `like` has the form of the images; they stay between its smallest and its largest number.
    """
    named = dict(model.named_parameters())
    target = [-torch.from_numpy(np.asarray(change[n])).float() for n in named]
    size = torch.sqrt(sum((t.square().sum() for t in target), torch.zeros(())))
    low, high = like.min(), like.max()
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(like.shape, generator=generator) * like.std() + like.mean()).requires_grad_()
    first, second = (
        torch.zeros_like(x),
        torch.zeros_like(x),
    )  # Adam's moments; torch.optim imports torch._dynamo
    for step in range(1, steps + 1):
        loss = functional.cross_entropy(model(x), labels)
        found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
        inner = sum(((f * t).sum() for f, t in zip(found, target, strict=True)), torch.zeros(()))
        norm = torch.sqrt(sum((f.square().sum() for f in found), torch.zeros(())))
        variation = (x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()) / (high - low)
        objective = 1 - inner / (norm * size + 1e-20) + tv * variation
        sign = torch.autograd.grad(objective, [x])[0].sign()
        first.lerp_(sign, 1 - BETA1)
        second.lerp_(sign.square(), 1 - BETA2)
        lr = LR * 0.1 ** sum(8 * step > steps * k for k in (3, 5, 7))
        with torch.no_grad():
            root = (second / (1 - BETA2**step)).sqrt_() + 1e-8
            x.sub_(lr * first / (1 - BETA1**step) / root).clamp_(low, high)
    return x.detach()


def pixels(dataset: Dataset, inputs: torch.Tensor) -> torch.Tensor:
    """Return inputs of a model [n, ...] as images [n, C, H, W] with pixels of 0 to 1, float64."""
    images = inputs.double().reshape(len(inputs), *dataset.input_shape)
    scaling = SHOWN if dataset.standardised else (dataset.mean, dataset.std)
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(1, -1, 1, 1) for v in scaling)
    return (images * std + mean).clamp(0, 1)


def psnr(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the peak signal-to-noise ratio of two images with pixels of 0 to 1, in dB."""
    error = float((one - other).square().mean())
    return min(-10 * math.log10(error), MOST_DB) if error > 0 else MOST_DB


def matched(originals: Images, candidates: Images) -> Rebuilt:
    """Return for each original the candidate that is most like it; without candidates, black."""
    if not len(candidates):
        candidates = torch.zeros_like(originals[:1])
    nearest = [(candidates - image).square().flatten(1).sum(1).argmin() for image in originals]
    images = candidates[torch.stack(nearest)]
    return Rebuilt(images, tuple(map(psnr, originals, images)))


def attack(
    model: nn.Module, dataset: Dataset, rows: np.ndarray, change: NamedArrays, steps: int, most: int = 8
) -> Rebuilt:
    """Attack the model's change by a batch of examples; compare at most `most` of them.

    The optimised attack knows the labels of several examples, and takes one's from the change.

    Raises:
        ConfigError: The data are no images.
    """
    if dataset.kind != "image":
        raise ConfigError(
            f'run-config key "dataset": expected images, to compare reconstructions with; got '
            f'"{dataset.name}"'
        )
    x, y = dataset.inputs(rows), dataset.targets(rows)
    label = label_of(change)
    if layer := first_linear(model, dataset.input_shape):
        candidates = analytic(change, layer)
    else:
        candidates = optimised(model, change, torch.tensor([label]) if len(y) == 1 else y, x, steps)
    found = matched(pixels(dataset, x)[:most], pixels(dataset, candidates))
    return replace(found, label=label == int(y[0]) if len(y) == 1 else None)


def picture(rows: Sequence[tuple[str, Images, Images | None, Images]], path: Path) -> None:
    """Draw a column for each defence: an original, and what the server and readers of the model rebuild."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.25 * len(rows) + 1.2, 4.3), layout="constrained")
    axes = figure.subplots(3, len(rows), squeeze=False)
    for j, (title, *shown) in enumerate(rows):
        for i, images in enumerate(shown):
            place = axes[i][j]
            place.set_xticks([])
            place.set_yticks([])
            if images is not None:
                image = images[0].permute(1, 2, 0).squeeze(-1).numpy()
                place.imshow(image, cmap="gray", vmin=0, vmax=1)
            else:
                place.text(0.5, 0.5, "sees only\nthe sum", ha="center", va="center", fontsize=8)
        axes[0][j].set_title(fill(title, 16), fontsize=8)
    for i, who in enumerate(("original", "server", "from the\nmodel alone")):
        axes[i][0].set_ylabel(who, fontsize=9)
    figure.savefig(path, dpi=110)
