"""A run before its first round: data, task, model and strategy fit together, or it is refused here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from server_app.results.folder import RunFolder
from server_app.run.confined import reply_limit
from server_app.run.data_card import data_card, nodes_card, server_data
from server_app.run.encryption import check_key
from server_app.run.evaluate import central_evaluation
from server_app.run.initial_model import initial_model
from server_app.run.meaning import in_order, known_meaning, meaning_record, names_let_out
from server_app.run.naming import numbered
from server_app.run.same_run import check_same_code, check_same_run, free_on_resume
from strategies import strategy_of
from strategies.membership.agreement import COMMON
from strategies.stages.columns import ColumnsStage
from strategies.stages.mixed_models import set_family
from strategies.strategy import Strategy
from task.catalogue.columns import COLUMNS
from task.catalogue.entry import Algorithm
from task.config.attack_section import BACKDOORS
from task.config.knobs import Config
from task.config.read import as_run_config
from task.datasets import Dataset, natural_task
from task.datasets.base import compared
from task.datasets.columns import column_names, unscaled, with_moments
from task.datasets.facts import as_text
from task.datasets.own import rearranged
from task.datasets.public import CODE, public_examples
from task.errors import ConfigError
from task.models.family import Kinds, Widths
from task.models.kinds import SideBySide
from task.numerics.arrays import Arrays
from task.numerics.devices import evaluation_device
from task.numerics.kernels import kernels
from task.numerics.moments import from_dict
from task.portable import KERNELS
from task.references import code_of, is_reference, references_in
from task.resolve.contract import (
    Parts,
    check_augment,
    check_levels,
    check_model,
    contract_of,
    family_of,
    initial_of,
    levels_of,
    model_of,
    parts_of,
)
from task.resolve.model_card import card_of
from task.tasks import task_of, with_task
from task.tasks.base import Task, check_fits
from task.tasks.distil import Distiller


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run whose parts fit together."""

    config: Config  # with the task that the data said
    keys: dict[str, Any]  # every run-config key as the run was given
    entry: Algorithm
    strategy: Strategy
    dataset: Dataset | None  # what the server has to test on; None if only the nodes have data
    task: Task
    model: torch.nn.Module
    parts: Parts
    family: Widths | Kinds | None  # which part of the model each client trains; None = the whole
    sizes: dict[str, int]  # parameters of the clients' models, by name
    shared: Arrays  # what the clients share of the initial model, by name
    record: dict[str, Any]  # what config.json is to say
    card: dict[str, str]  # metadata of the model's file
    remarks: Sequence[str]  # lines to show before round 1

    def evaluation(self) -> Callable[[int, ArrayRecord], MetricRecord | None] | None:
        """Return Flower's ``evaluate_fn``; None where the server has no test set, or no model in clear."""
        found = None
        if self.dataset is not None and not (self.entry.personal or self.entry.encrypted):
            attack = self.config.attack
            target = attack.target if attack.kind in BACKDOORS else None
            device = evaluation_device(self.config.train.device, portable=self.config.train.portable)
            found = central_evaluation(self.model, self.dataset, device, self.task, target, attack.parts)
        if found is None and self.config.contribution.measure != "none":
            raise ConfigError(
                'run-config key "contribution.measure": expected a test set on the server to measure '
                f"models on; got a data set without one ({self.config.data.dataset}). Leave the key out"
            )
        return found


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
            f'run-config key "public.data": expected examples of shape {shape}, as those of the nodes; got '
            f'{tuple(x.shape[1:])} of "{config.public.data}"'
        )
    return Distiller(model.kinds() if isinstance(model, SideBySide) else {"": model}, x)


def _warnings(config: Config, dataset: Dataset) -> Iterator[str]:
    """Yield what is odd about the training examples, or was not read as it stands; "" if nothing is."""
    by_party = contract_of(config).vertical and config.vertical.standardise
    yield "" if by_party else unscaled(dataset, config.data)
    yield from dataset.notes
    yield rearranged(dataset, config.data)
    if dataset.frozen:
        yield (
            f'run-config key "dataset": "{config.data.dataset}": two readings of an example differ, and '
            "examples are read once and kept: what its transforms draw stays the same in all rounds. "
            'Take them out of the data set and set the run-config key "augment", which draws in each epoch'
        )


def open_run(grid: Grid, config: Config, path: Path) -> OpenedRun:
    """Put a run together; `path` is its result folder, which is read if it is to be resumed.

    Raises:
        BouquetError: A part is missing or does not fit; nothing was written.
    """
    raw, keys, resume = server_data(config), as_run_config(config), config.output.resume
    found = raw.task if raw else natural_task(config.data)
    config = with_task(config, found)
    entry = contract_of(config)
    strategy = strategy_of(entry.rule)(config)
    strategy.engine.reply_limit = reply_limit()
    code = {**code_of(references_in(keys)), **check_key(config), **check_public(config, raw)}
    if config.train.portable:
        code[KERNELS] = kernels()
    expected = code if entry.public else {name: it for name, it in code.items() if name != CODE}
    membership = strategy.registry.membership
    membership.expect_code(expected | (compared(raw, config.data) if raw else {}))
    membership.expect_meaning(known_meaning(config, raw, RunFolder(path).config() if resume else None))
    dataset = in_order(raw, config, membership.agreement) if raw else None
    if dataset:
        shape, classes = dataset.input_shape, dataset.num_classes
    else:  # the nodes know what an example is like
        strategy.engine.register(grid, 0)
        shape, classes = strategy.registry.shape_of_data()
    if resume:
        check_same_run(RunFolder(path), keys, free_on_resume(config))
        check_same_code(RunFolder(path), code)
    task = task_of(config, found, classes)
    # Where the nodes alone have examples, these have run the model when they registered.
    runs = dataset is not None or entry.vertical
    check_model(config, shape, classes, task.name, dataset, runs=runs)
    kept = RunFolder(path).config().get(COLUMNS) if resume else None
    check_augment(config, shape)
    if columns := strategy.engine.find(ColumnsStage):
        columns.learn(grid, from_dict(kept) if kept else None)
    moments = columns.moments if columns else None
    if dataset is not None and moments is not None:
        dataset = with_moments(dataset, moments)
    sizes = check_levels(config, shape, classes, dataset, runs=runs)
    model = model_of(config, shape, classes)
    parts = parts_of(model, config)
    registry = strategy.registry
    family = family_of(model, config, shape, registry.width, registry.model)
    set_family(strategy.engine, family)
    strategy.engine.distil = distiller(config, model, dataset, shape)
    if dataset and (not task.plain or task.measures.own or any(map(is_reference, levels_of(config).values))):
        check_fits(task, model, dataset)
    names = None
    if raw is not None:
        card = data_card(config, raw, task.name == "classification")
    else:
        names = None if entry.vertical else names_let_out(membership)
        card = nodes_card(registry, shape, classes, names)
    record: dict[str, Any] = {"run": keys, "data": card}
    record |= meaning_record(config, membership.agreement)
    record["id"] = strategy.engine.run_id  # nodes have heard it if they were asked for sums of columns
    if code:
        record["code"] = code
    if moments is not None:
        record[COLUMNS] = moments.as_dict() | {"names": list(column_names(dataset)) if dataset else []}
    shared = initial_of(model, config, shape, classes)
    remarks = as_text(card)
    remarks += [note] if (note := numbered(config, path.name)) else []
    if config.initial_model:
        shared, loaded = initial_model(config, shared, parts.private, RunFolder(path) if resume else None)
        record["initial_model"] = asdict(loaded)
        remarks += loaded.lines()
    if config.server.transcript == "full" and not config.server.secagg:
        remarks.append(
            'transcript = "full" without secagg: the result folder will hold what each node sends, plain'
        )
    if dataset is not None and not resume:
        remarks += [f"warning: {warning}" for warning in _warnings(config, dataset) if warning]
    meaning = None if entry.vertical else membership.agreement.of(COMMON)
    return OpenedRun(
        config=config,
        keys=keys,
        entry=entry,
        strategy=strategy,
        dataset=dataset,
        task=task,
        model=model,
        parts=parts,
        family=family,
        sizes=sizes,
        shared=shared,
        record=record,
        card=card_of(config, shape, classes, dataset, moments, meaning, names).metadata(),
        remarks=remarks,
    )
