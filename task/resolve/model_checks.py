"""Refuse models of a run that its data or its algorithm cannot go with, before round 1."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from task.config.knobs import Config
from task.config.when import as_toml
from task.errors import ConfigError
from task.references import is_reference
from task.resolve.contract import contract_of
from task.resolve.interface import has_form, interface_of, is_text, places_of, trial_rows
from task.resolve.run_model import features_of, model_of, parts_of, reads_features
from task.tasks import TASKS

if TYPE_CHECKING:
    from task.datasets.base import Dataset


def check_reads(config: Config, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a model that cannot read such data.

    Raises:
        ConfigError: Naming the models that can.
    """
    model_of(config, shape, classes)


def check_model(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    task: str = "classification",
    dataset: Dataset | None = None,
    *,
    runs: bool = True,
) -> None:
    """Try a model that the user brings before round 1; of ours do nothing.

    `task` is a name in `task.tasks.TASKS`. Where examples may be ids they are the `dataset`'s, else made up.
    Without `runs` the model is only made: those who have examples run it.

    Raises:
        ConfigError: It cannot be trained, or is not of the form that the algorithm needs.
    """
    if not is_reference(config.model):
        return
    from task.models.brought import check_brought, check_linear

    entry, known = contract_of(config), dataset if runs else None
    last = {}
    if entry.private == "head" and not config.train.private_layers:
        last["personal.layers"] = config.personal.layers
    if entry.private == "body":
        last["lg-fedavg.layers"] = config.lg_fedavg.layers
    if "ala" in entry.stages:
        last["fedala.layers"] = config.fedala.layers
    check_brought(
        config.model,
        partial(model_of, config, shape, classes),
        shape,
        classes,
        text=is_text(config),
        logits=TASKS[task].classes,
        places=places_of(config, shape, task, known),
        interface=interface_of(config, classes),
        own_loss=is_reference(config.loss),
        needs_features=reads_features(config),
        last_layers=last,
        rows=trial_rows(known),
        runs=runs,
    )
    if entry.traits.by_feature:
        check_linear(config.model, model_of(config, shape, classes), shape)


def check_augment(config: Config, shape: tuple[int, ...], kind: str = "") -> None:
    """Refuse changes of training examples that cannot be made of examples of this shape and kind.

    Raises:
        ConfigError: They are no images, or what is learnt is the examples themselves.
    """
    train, task = config.train, config.data.task
    text, images = has_form(config) or is_text(config), len(shape) == 3
    pixels = images and kind in ("", "image")  # whose range is known
    for key, value, fits in (
        ("augment", train.augment, images or is_reference(train.augment)),
        ("augment-brightness", train.augment_brightness, pixels),
        ("augment-contrast", train.augment_contrast, pixels),
    ):
        if value and (text or task == "reconstruction" or not fits):
            what = "a text, or several inputs," if text else f"{kind or 'examples'} of shape {list(shape)}"
            what = "examples that are to be reconstructed" if task == "reconstruction" else what
            raise ConfigError(
                f'run-config key "{key}": expected images [channels, height, width] for {as_toml(value)}; '
                f'got {what} in "{config.data.dataset}". Leave the key out'
            )


def check_levels(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    dataset: Dataset | None = None,
    *,
    runs: bool = True,
) -> dict[str, int]:
    """Return the number of parameters of each of ``models.levels``, by name; the rest is as of `check_model`.

    Raises:
        ConfigError: The run's data or its algorithm cannot go with these models.
    """
    widths, sizes = {}, {}
    for name, _ in config.models.by_level():
        mine = config.with_model(name)
        check_model(mine, shape, classes, config.data.task, dataset, runs=runs)
        model = model_of(mine, shape, classes)
        parts_of(model, mine)
        sizes[name] = sum(p.numel() for p in model.parameters())
        if reads_features(config):
            widths[name] = features_of(model, mine, shape, classes)
    if len({*widths.values()}) > 1:
        found = ", ".join(f"{name} {f}" for name, f in widths.items())
        raise ConfigError(
            f'run-config key "models.levels": {reads_features(config)} reads features, which need one '
            f"width, the inputs of the last layer; got {found}. Set models.features, such as 32"
        )
    return sizes
