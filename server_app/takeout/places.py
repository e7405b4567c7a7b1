"""Read examples to predict for models of token ids, of inputs by name, and of a class at each place.

They are read as the run's own data are (`task.datasets`), with the run's task, form of inputs and classes.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from task.datasets import Dataset, spec_of
from task.datasets.arrow import is_saved
from task.datasets.base import Decoded, Request
from task.datasets.hub import saved_arrays
from task.datasets.named_inputs import IDS_NAME, LABELS
from task.datasets.npz import from_arrays, read_arrays
from task.errors import DataError
from task.inputs import SEQUENCES, read_form
from task.resolve.model_card import ModelCard


def of_places(path: Path, card: ModelCard) -> tuple[Dataset, bool] | None:
    """Return the examples of a file or folder, and whether they have targets.

    None if the model is of another kind, or its pictures come without masks.

    Raises:
        DataError: They are not of the form that the model reads.
    """
    form = card.config.data.inputs
    if not read_form(form) and card.task != "segmentation":
        return None
    request = Request(
        name="npz", data_dir=path.parent, cache_dir=path.parent, data_path=str(path.absolute()),
        task=card.task, num_classes=card.num_classes, inputs=form, owner="predict",
        column_types=card.config.data.column_types,
    )  # fmt: skip
    if path.suffix.lower() == ".npz" or is_saved(path):
        arrays = saved_arrays(path) if is_saved(path) else read_arrays(path)
        labelled = any(name in arrays for name in LABELS) or card.task == "language"
        if not labelled and not read_form(form):
            return None
        if not labelled:
            ids = arrays.get(IDS_NAME, next(iter(arrays.values())))
            zeros = np.zeros(ids.shape if card.task in SEQUENCES else len(ids), np.int64)
            arrays |= {"y" if "x" in arrays else "labels": zeros}
        decoded = from_arrays(request, str(path), arrays)
    else:
        found = _of_files(replace(request, name="csv" if path.suffix.lower() == ".csv" else "imagefolder"))
        if found is None:
            return None
        decoded, labelled = found, True
    if (decoded.form, decoded.input_shape) != (form if read_form(form) else "", card.input_shape):
        raise DataError(
            f"{path}: expected examples of {form or 'pictures'}, shape {card.input_shape}, as the model was "
            f"trained on; got {decoded.form or decoded.kind} of shape {decoded.input_shape}"
        )
    decoded = replace(decoded, scale=card.scale, mean=card.mean, std=card.std, classes=card.classes)
    return Dataset(name=path.name, **vars(decoded)), labelled


def _of_files(request: Request) -> Decoded | None:
    """Return the rows of a csv file, or the pictures of a folder with masks; None of one without."""
    spec = spec_of(request.name)
    source = spec.locate(request)
    if request.name == "imagefolder" and "pairs" not in source.keys:
        return None
    return spec.decode(request, source)
