"""Assemble a run before its first round; refuse data, task, model and strategy that don't fit together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from server_app.results.folder import RunFolder
from server_app.run.code_digests import code_of_run, expected_of_nodes
from server_app.run.confined import reply_limit, submitter_of
from server_app.run.data_card import described, server_data
from server_app.run.meaning import (
    agreed,
    in_order,
    known_meaning,
    known_moments,
    meaning_record,
    moments_record,
)
from server_app.run.remarks import only_in_python, remarks
from server_app.run.same_run import check_same_code, check_same_run, free_on_resume
from server_app.run.server_model import ServerModel, server_model
from strategies import strategy_of
from strategies.stages.columns import ColumnsStage
from strategies.stages.mixed_models import set_family
from strategies.strategy import Strategy
from task.config.knobs import Config
from task.config.read import as_run_config
from task.datasets import natural_task
from task.datasets.columns import with_moments
from task.resolve.contract import contract_of, with_data
from task.resolve.model_card import card_of
from task.resolve.model_checks import check_augment, check_model, check_reads
from task.tasks import task_of, with_task


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run whose parts fit together."""

    config: Config  # with the task that the data said
    keys: dict[str, Any]  # every run-config key as the run was given
    strategy: Strategy
    model: ServerModel
    record: dict[str, Any]  # the content of config.json
    card: dict[str, str]  # metadata of the model's file
    remarks: Sequence[str]  # lines to show before round 1


def open_run(grid: Grid, config: Config, path: Path) -> OpenedRun:
    """Put a run together; `path` is its result folder, which is read if it is to be resumed.

    Raises:
        BouquetError: A part is missing or does not fit; nothing was written.
    """
    raw, keys = server_data(config), as_run_config(config)
    resumed = RunFolder(path) if config.output.resume else None
    found = raw.task if raw else natural_task(config.data)
    config = with_data(config, raw) if raw else with_task(config, found)
    entry = contract_of(config)
    strategy = strategy_of(entry.rule)(config)
    engine, registry = strategy.engine, strategy.registry
    engine.reply_limit = reply_limit()
    code = code_of_run(config, keys, raw)
    membership = registry.membership
    expected = expected_of_nodes(config, code, raw)
    membership.expect_code(expected)
    membership.expect_meaning(known_meaning(config, raw, resumed.config() if resumed else None))
    dataset = in_order(raw, config, membership.agreement) if raw else None
    if dataset:
        shape, classes = dataset.input_shape, dataset.num_classes
    else:  # the nodes know what an example is like
        engine.register(grid, 0)
        shape, classes = registry.shape_of_data()
    if resumed:
        check_same_run(resumed, keys, free_on_resume(config))
        check_same_code(resumed, code)
    task = task_of(config, found, classes)
    # Where the nodes alone have examples, these have run the model when they registered. A table of
    # statistics has none, and its rows may lack values.
    runs = (dataset is not None or entry.vertical) and not entry.statistics
    check_model(config, shape, classes, task.name, dataset, runs=runs)
    check_augment(config, shape, dataset.kind if dataset else "")
    if columns := engine.find(ColumnsStage):
        check_reads(config, shape, classes)  # before a node is asked for its columns
        columns.learn(grid, known_moments(resumed) if resumed else None)
    moments = columns.moments if columns else None
    if dataset is not None and moments is not None:
        dataset = with_moments(dataset, moments)
    model = server_model(config, task, dataset, registry, shape, classes, runs=runs, resumed=resumed)
    membership.expect_code(expected | model.expected())
    set_family(engine, model.family)
    engine.distil, engine.full, engine.fixed = model.distiller, model.full, model.frozen
    card, names = described(config, raw, registry, shape, classes, labelled=task.name == "classification")
    record: dict[str, Any] = {"run": keys, "data": card}
    record |= meaning_record(config, membership.agreement)
    record["id"] = engine.run_id  # nodes know it if they were asked for sums of columns
    record |= {"submitter": submitter} if (submitter := submitter_of(path.name)) else {}
    record |= {"code": code} if code else {}
    record |= {"repeat": alone} if (alone := only_in_python(config)) else {}
    record |= moments_record(moments, dataset)
    record |= model.record()
    lines = remarks(config, path.name, card, dataset, model.loaded.lines() if model.loaded else [])
    meaning = agreed(config, membership.agreement)
    return OpenedRun(
        config=config,
        keys=keys,
        strategy=strategy,
        model=model,
        record=record,
        card=card_of(config, shape, classes, dataset, moments, meaning, names).metadata() | model.aliases,
        remarks=list(lines),
    )
