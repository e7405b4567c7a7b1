"""How a run calls its model: the form of its data, and what it makes of a user's model's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from task.config.knobs import Config
from task.datasets import spec_of
from task.datasets.columns import readable
from task.inputs import SEQUENCES, kind_of, read_form
from task.population import listed
from task.references import is_reference

if TYPE_CHECKING:  # torch costs seconds
    import torch
    from torch import nn

    from task.datasets.base import Dataset
    from task.models.adapt import Interface
    from task.models.lora import Adapters


def interface_of(config: Config, classes: int) -> Interface:
    """Return how the run calls a user's model; a loss of the user's own gets the outputs as they are."""
    from task.models.adapt import Interface, Outputs

    main = None if is_reference(config.loss) else Outputs(classes, config.data.task in SEQUENCES)
    return Interface(config.data.inputs if has_form(config) else "", main, _adapters(config))


def _adapters(config: Config) -> Adapters | None:
    from task.models.lora import Adapters

    lora, seed = config.lora, config.seeds.model
    if not lora.rank:
        return None
    return Adapters(
        lora.rank, lora.alpha, listed(lora.target_modules), listed(lora.modules_to_save), lora.dropout, seed
    )


def has_form(config: Config) -> bool:
    """Return whether the run's data are of integers, or of inputs by name, see `task.inputs`."""
    return bool(read_form(config.data.inputs))


def kind_read(config: Config) -> str:
    """Return the kind of data of integers, or by name; else "", as a model says itself what it reads."""
    return kind_of(config.data.inputs) if has_form(config) else "text" if is_text(config) else ""


def is_text(config: Config) -> bool:
    """Return whether the run's data set is one of texts."""
    return spec_of(config.data.dataset).text


def made_up(config: Config, shape: tuple[int, ...], classes: int, model: nn.Module) -> torch.Tensor:
    """Return two made-up examples as a run's model reads them."""
    from task.models.brought import examples

    return examples(model, shape, 2, text=is_text(config), interface=interface_of(config, classes))


def trial_rows(dataset: Dataset | None) -> torch.Tensor | None:
    """Return two training examples to try a model on; None if they are not here."""
    return readable(dataset).inputs(dataset.telling(2)) if dataset is not None else None


def places_of(config: Config, shape: tuple[int, ...], task: str, dataset: Dataset | None) -> tuple[int, ...]:
    """Return the shape of an example's target; () if it is one class."""
    if dataset is not None:
        return dataset.y.shape[1:] if dataset.y.dtype.kind != "f" else ()
    return shape if task in SEQUENCES else ()
