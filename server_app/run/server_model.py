"""The server's model of a run: built, tried on real rows, and initialised by seed or from a file."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from server_app.results.folder import RunFolder
from server_app.run.evaluate import central_evaluation
from server_app.run.frozen import RECORD, expected_of, frozen_of, frozen_of_run, record_of, write_frozen
from server_app.run.initial_model import initial_model
from server_app.run.public_examples import distiller
from strategies.membership.client_registry import ClientRegistry
from task.config.knobs import Config
from task.datasets import Dataset
from task.errors import ConfigError
from task.models.family import Kinds, Widths
from task.models.model_file import Loaded
from task.numerics.arrays import Arrays, form_of, only, ties_of
from task.numerics.devices import evaluation_device
from task.references import is_reference
from task.resolve.contract import contract_of
from task.resolve.model_checks import check_levels
from task.resolve.run_model import Parts, family_of, initial_of, model_of, parts_of
from task.tasks.base import Task, check_fits
from task.tasks.distil import Distiller
from task.wire.messages import pack_arrays


@dataclass(frozen=True, kw_only=True)
class ServerModel:
    """A run's model, and what follows from it."""

    module: nn.Module
    task: Task  # what it is trained for
    dataset: Dataset | None  # the server's test data
    parts: Parts
    family: Widths | Kinds | None  # which part of the model each client trains; None = the whole
    sizes: dict[str, int]  # parameters of the clients' models, by name
    distiller: Distiller | None  # trains models on the run's public examples
    shared: Arrays  # what the clients share of the initial model, by name, until it is handed over
    frozen: Arrays  # what none of them changes, in the memory of `module`
    loaded: Loaded | None  # how the initial file's tensors were used

    @property
    def aliases(self) -> dict[str, str]:
        """The further names of tied tensors, each with the one that files have: metadata of these."""
        return ties_of(self.module)

    def expected(self) -> dict[str, str]:
        """Return the SHA-256 that a node's own file of the frozen part must have, as `expect_code` has it."""
        return expected_of(self.frozen)

    def record(self) -> dict[str, Any]:
        """Return what config.json says of it."""
        found = {RECORD: record_of(self.frozen)} if self.frozen else {}
        return found | ({"initial_model": asdict(self.loaded)} if self.loaded else {})

    def begin(self, folder: Path) -> None:
        """Write into a run's folder what the run begins with, beside its config."""
        write_frozen(folder, self.frozen, self.module)

    @property
    def full(self) -> Arrays:
        """Arrays of its form, with those that stay at the clients, without those that none changes.

        They take no memory.
        """
        return form_of(self.module, self.parts.frozen)

    def handed_over(self) -> ArrayRecord:
        """Return what the clients share of the initial model; it is not kept here any longer."""
        record = pack_arrays(self.shared)
        self.shared.clear()
        return record

    def evaluation(self, config: Config) -> Callable[[int, ArrayRecord], MetricRecord | None] | None:
        """Return Flower's ``evaluate_fn``; None where the server has no test set, or no model in clear.

        Raises:
            ConfigError: The run measures contributions, and there is none.
        """
        entry, found = contract_of(config), None
        if self.dataset is not None and not (entry.personal or entry.encrypted):
            attack = config.attack
            target = attack.target if attack.backdoor else None
            device = evaluation_device(config.train.device, portable=config.train.portable)
            found = central_evaluation(self.module, self.dataset, device, self.task, target, attack.parts)
        if found is None and config.contribution.measure != "none":
            raise ConfigError(
                'run-config key "contribution.measure": expected a test set on the server; got a '
                f"data set without one ({config.data.dataset}). Leave the key out"
            )
        return found


def server_model(
    config: Config,
    task: Task,
    dataset: Dataset | None,
    registry: ClientRegistry,
    shape: tuple[int, ...],
    classes: int,
    *,
    runs: bool,
    resumed: RunFolder | None,
) -> ServerModel:
    """Make a run's model and try it.

    Args:
        config: The run.
        task: What it trains for.
        dataset: What the server has, None = only nodes have data.
        registry: Says which width or model a client's node has.
        shape: That of one example.
        classes: How many the model tells apart.
        runs: Whether examples are run through it here.
        resumed: The folder of the run, if it is resumed.

    Raises:
        ConfigError: It does not fit the data, the task or the algorithm, or its file cannot be used.
    """
    sizes = check_levels(config, shape, classes, dataset, runs=runs)
    module = model_of(config, shape, classes)
    parts = parts_of(module, config)
    frozen = frozen_of(module, parts.frozen)
    family = family_of(module, config, shape, registry.width, registry.model)
    brought = any(map(is_reference, config.model_names))
    if dataset and runs and (not task.plain or task.measures.own or brought or dataset.form):
        check_fits(task, module, dataset)
    shared, loaded = initial_of(module, config, shape, classes), None
    if config.initial_model:
        found, loaded = initial_model(config, shared | frozen, parts.private, resumed, ties=ties_of(module))
        shared, frozen = only(found, shared), only(found, frozen)
    frozen = frozen_of_run(module, frozen, resumed)
    distil = distiller(config, module, dataset, shape)
    return ServerModel(
        module=module,
        task=task,
        dataset=dataset,
        parts=parts,
        family=family,
        sizes=sizes,
        distiller=distil,
        shared=shared,
        frozen=frozen,
        loaded=loaded,
    )
