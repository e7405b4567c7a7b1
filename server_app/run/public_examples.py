"""The public examples of a run: what all parties know them by, and the server's training on them."""

import torch

from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.public import CODE, public_examples
from task.errors import ConfigError
from task.models.kinds import SideBySide
from task.resolve.contract import contract_of
from task.tasks.distil import Distiller


def check_public(config: Config, dataset: Dataset | None) -> dict[str, str]:
    """Return what the run's public examples are known by, as `task.references.code_of` has code; {} without.

    Raises:
        BouquetError: They cannot be those of all parties.
    """
    return {CODE: public_examples(config, dataset).sha256} if contract_of(config).reads_public else {}


def distiller(
    config: Config, model: torch.nn.Module, dataset: Dataset | None, shape: tuple[int, ...]
) -> Distiller | None:
    """Return what trains models on the run's public examples; None if its server does not.

    `dataset` is the run's own, None = it is not here; `shape` is that of one of its examples.

    Raises:
        BouquetError: There are no such examples, or they have another shape.
    """
    if not contract_of(config).distils:
        return None
    x = public_examples(config, dataset).x
    if tuple(x.shape[1:]) != shape:
        raise ConfigError(
            f'run-config key "public.data": expected examples of shape {shape}, the shape on the nodes; got '
            f'{tuple(x.shape[1:])} of "{config.public.data}"'
        )
    return Distiller(model.kinds() if isinstance(model, SideBySide) else {"": model}, x)
