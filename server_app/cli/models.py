"""The table of models that `bouquet models` prints."""

import math

from rich.table import Table

from task.models import MODELS, ModelSpec, build_model

# Data sets to count parameters on: the first one that the model can read.
SHOWN = {"MNIST": ((1, 28, 28), 10), "CIFAR-10": ((3, 32, 32), 10), "Shakespeare": ((80,), 256)}


def table() -> Table:
    """Return a row for each model."""
    made = Table("model", "what it is", "reads", title="models")
    made.columns[0].no_wrap = True
    made.add_column("parameters", justify="right")
    for name, spec in MODELS.items():
        made.add_row(name, spec.description, spec.inputs, _size(name, spec))
    return made


def _size(name: str, spec: ModelSpec) -> str:
    for data, (shape, classes) in SHOWN.items():
        if spec.conditional:
            shape = (math.prod(shape) + classes,)
        if spec.fits(shape, classes):
            count = sum(p.numel() for p in build_model(name, shape, classes, 1).parameters())
            return f"{count:,} on {data}"
    return "depends on the data"
