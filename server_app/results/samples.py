"""A picture of a generative model's results: test images, reconstructions, and samples.

The picture has three rows of images: those of the global test set, under each what the model makes of it,
and new ones from the model's prior, of a fixed seed. Without a test set there are samples only. A conditional
model gives a row of new ones for each of the first conditions, of the same codes z.
"""

from pathlib import Path

import numpy as np
import torch

from server_app.results.folder import SAMPLES
from task.datasets import Dataset
from task.datasets.condition import one_hot
from task.models.vae import VAE
from task.numerics.arrays import NamedArrays, tensors_of
from task.numerics.tensors import load_into
from task.storage.files import replacing

COLUMNS = 12
MOST_CONDITIONS = 10
LEAST = 32  # pixels of an image's side, which is enlarged by a whole factor
GAP = 2


def write_samples(folder: Path, model: torch.nn.Module, arrays: NamedArrays, data: Dataset) -> None:
    """Write the picture into a result folder, if the arrays are a whole model that draws images."""
    images, whole = data.drawn, tensors_of(model).keys() <= arrays.keys()
    if not isinstance(model, VAE) or images.kind != "image" or not whole:
        return
    load_into(model, arrays)
    model.eval()
    device = model.noise.device
    shown = range(min(model.conditions, MOST_CONDITIONS))
    rows = [model.sample(COLUMNS, condition=one_hot(np.full(COLUMNS, c), model.conditions)) for c in shown]
    rows = rows or [model.sample(COLUMNS)]
    if len(data.y) - data.num_train >= COLUMNS:
        first = slice(data.num_train, data.num_train + COLUMNS)
        with torch.no_grad():
            found = model(data.inputs(first).to(device)).reconstruction()
        rows = [images.inputs(first).flatten(1).to(device), found, *rows]
    grid = tiled(torch.stack(rows).view(len(rows), -1, *images.input_shape).cpu().numpy())
    from PIL import Image

    with replacing(folder / SAMPLES) as temp:
        Image.fromarray(grid).save(temp, format="PNG")


def tiled(images: np.ndarray) -> np.ndarray:
    """Return images [R, N, C, H, W] of pixels from 0 to 1 as one, uint8 [height, width, 3], with gaps."""
    r, n, c, h, w = images.shape
    times = max(1, -(-LEAST // min(h, w)))
    pixels = (images.clip(0, 1) * 255).round().astype(np.uint8).repeat(times, 3).repeat(times, 4)
    padded = np.pad(pixels, ((0, 0), (0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=255)
    grid = padded.transpose(0, 3, 1, 4, 2).reshape(r * (h * times + GAP), n * (w * times + GAP), c)
    return np.ascontiguousarray(grid[..., :3] if c >= 3 else grid[..., :1].repeat(3, 2))
