"""The ServerApp: puts a run together, lets the strategy run it and leaves the result folder."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from server_app.deploy.link.confined import KIT, confined
from server_app.results.folder import RunFolder
from server_app.results.model_card import card_of
from server_app.results.report import write_report
from server_app.results.summary import summarise
from server_app.run.evaluate import central_evaluation, global_model
from server_app.run.initial_model import initial_model
from server_app.run.kept import settle
from server_app.run.naming import check_free, folder_of_run, numbered
from server_app.run.progress import Progress, closing_table
from server_app.run.recorder import Recorder
from server_app.run.run_lock import holding
from server_app.run.stopped import finish_stopped
from server_app.run.trackers import Trackers, check_trackers, tracking
from server_app.terminal import Terminal
from strategies import STRATEGIES
from strategies.engine.columns_phase import learn_columns
from strategies.transport.packed import PackingGrid
from task import timing
from task.config.knobs import CHANGE_NO_RESULT, Config
from task.config.read import as_run_config, read_config
from task.config.run_name import LENGTHEN
from task.datasets import Dataset, load_dataset, natural_task, spec_of
from task.datasets.columns import column_names, unscaled, with_moments
from task.datasets.partition import Partition, label_counts, load_partition
from task.errors import BouquetError, ConfigError, kind_of
from task.models.brought import find_maker
from task.numerics.arrays import state_of
from task.numerics.moments import from_dict
from task.references import code_of, is_reference, references_in
from task.resolve.contract import check_model, contract_of, model_of, parts_of
from task.spec.columns import COLUMNS
from task.tasks import task_of, with_task
from task.tasks.base import check_fits
from task.text import logger
from task.wire import messages as wire

MOST_CLASSES, SHOWN_CLIENTS = 100, 60  # of the labels in config.json

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's entry point.

    Flower reports an error's text only; whoever watches the run must distinguish a wrong key,
    a lost node and a full disk.
    """
    try:
        kit = os.environ.get(KIT)
        keys = confined(context.run_config, Path(kit)) if kit else context.run_config
        run(cast(Grid, PackingGrid(grid)), read_config(keys), wait_s=timing.FOLDER_HELD_S)
    except (BouquetError, OSError) as err:
        raise RuntimeError(f"{kind_of(err)}: {err}") from err


def prepare(run_config: Mapping[str, Any]) -> None:
    """Check the keys and bring the data into the cache, before anything else is started.

    Raises:
        BouquetError: As `run` would raise it later.
    """
    config = read_config(run_config)
    check_measured(config)
    check_trackers(config)
    folder_of_run(config)
    if is_reference(config.model):
        find_maker(config.model)
    dataset = _server_data(config)
    if dataset is not None:
        task_of(config, dataset.task, dataset.num_classes)
        load_partition(dataset, config.data, config.seeds.data)


def run(
    grid: Grid,
    config: Config,
    rounds_over: Callable[[], object] = lambda: None,
    *,
    overlap: bool = True,
    wait_s: float = 0.0,
    stop_is_end: bool = False,
) -> Path:
    """Run a federation to its end and return its result folder.

    `rounds_over` is called when no message will be sent any more, before the results are written. With
    `overlap` the central evaluation runs while the next round trains. Another run that writes into the result
    folder is waited for up to `wait_s`. With `stop_is_end` Ctrl-C leaves a result of the rounds so far;
    without it, whoever started this goes on with the run.

    Raises:
        BouquetError: The run cannot start or continue; what was written so far stays.
    """
    check_measured(config)
    path = folder_of_run(config)
    with holding(path, wait_s), tracking(config) as trackers:
        if not config.output.resume:
            check_free(path)  # another run may have begun while this one waited
        try:
            return _run(grid, config, path, rounds_over, overlap, trackers)
        except KeyboardInterrupt:
            if stop_is_end:
                rounds_over()
                _leave(path, config)
            raise


def _leave(path: Path, config: Config) -> None:
    """Write what a run has that the user stops, and show it."""
    result = finish_stopped(path, "by the user")
    if result is not None and config.output.progress != "none":
        closing_table(result, path.resolve())


def _run(
    grid: Grid,
    config: Config,
    path: Path,
    rounds_over: Callable[[], object],
    overlap: bool,
    trackers: Trackers,
) -> Path:
    dataset, keys = _server_data(config), as_run_config(config)
    config = with_task(config, dataset.task if dataset else natural_task(config.data))
    entry = contract_of(config)
    strategy = STRATEGIES[entry.rule](config)
    code = code_of(references_in(keys))
    strategy.registry.membership.expect_code(code)
    if dataset:
        shape, classes = dataset.input_shape, dataset.num_classes
    else:  # the nodes know what an example is like
        strategy.engine.register(grid, 0)
        shape, classes = strategy.registry.shape_of_data()
    server, output = config.server, config.output
    if output.resume:
        check_same_run(RunFolder(path), keys, free_on_resume(config))
        check_same_code(RunFolder(path), code)
    task = task_of(config, dataset.task if dataset else natural_task(config.data), classes)
    check_model(config, shape, classes, task.name)
    kept = RunFolder(path).config().get(COLUMNS) if output.resume else None
    moments = learn_columns(strategy.engine, entry, grid, from_dict(kept) if kept else None)
    if dataset is not None and moments is not None:
        dataset = with_moments(dataset, moments)
    model = model_of(config, shape, classes)
    parts = parts_of(model, config)
    if dataset and (not task.plain or is_reference(config.model)):
        check_fits(task, model, dataset)
    shared = {n: a for n, a in state_of(model).items() if n in parts.shared}
    central = dataset is not None and not entry.personal  # else the models to test are at the clients
    evaluate_fn = (
        central_evaluation(model, dataset, torch.device("cpu"), task) if central and dataset else None
    )
    record = {"run": keys, "data": _data_card(config, dataset, task.name == "classification")}
    if code:
        record["code"] = code
    if moments is not None:
        record[COLUMNS] = moments.as_dict() | {"names": list(column_names(dataset)) if dataset else []}
    loaded = None
    if config.initial_model:
        resumed = RunFolder(path) if output.resume else None
        shared, loaded = initial_model(config, shared, parts.private, resumed)
        record["initial_model"] = asdict(loaded)
    folder = RunFolder.create(path, record, resume=output.resume)
    trackers.begin(folder, output.resume)
    title = f"{entry.title} · {config.data.dataset} · {config.model}"
    with Progress(output.progress, server.num_server_rounds, title) as progress:
        if note := numbered(config, path.name):
            progress.message(note)
        for line in loaded.lines() if loaded else ():
            progress.message(line)
        if dataset is not None and not output.resume and (warning := unscaled(dataset, config.data)):
            progress.message(f"warning: {warning}")
        card = card_of(config, shape, classes, dataset, moments).metadata()
        recorder = Recorder(
            folder,
            progress,
            every=output.checkpoint_every,
            resume=output.resume,
            card=card,
            tell=trackers.round,
        )
        try:
            result = strategy.start(
                grid,
                wire.pack_arrays(shared),
                num_rounds=server.num_server_rounds,
                timeout=server.round_timeout,
                evaluate_fn=evaluate_fn,
                journal=recorder,
                trainable=parts.trainable,
                overlap=overlap,
                measures=task.measures,
            )
            rounds_over()
        except KeyboardInterrupt:
            recorder.close()
            raise
        recorder.close()
    summary = _summary(folder, keys)
    if dataset is not None and entry.personal:
        summary["global_model"] = global_model(entry, model, dataset, task, result.arrays)
    folder.finish(summary, wire.read_arrays(result.arrays), card)
    _report(path)
    trackers.finish(summary, path)
    closing_table(summary, path.resolve())
    if line := settle(config, str(folder.config()["id"])):
        Terminal().print(line, soft_wrap=True)
    return path


def _summary(folder: RunFolder, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what result.json is to hold; should it fail, why, so that the run still ends with its model."""
    try:
        return summarise(folder.rounds(), folder.clients(), keys)
    except OSError:
        raise  # the disk is at fault, and a resume can do it again
    except Exception as err:
        logger.exception("%s: the run is finished, but its summary could not be made", folder.path)
        known = {k: keys[k] for k in ("algorithm", "dataset", "model", "selection", "seed")}
        return {**known, "summary_error": f"{type(err).__name__}: {err}"}


def _report(path: Path) -> None:
    """Write the report; a run whose report cannot be made is finished all the same."""
    try:
        write_report(path)
    except OSError:
        raise
    except Exception:
        logger.exception("%s: the run is finished, but its report could not be made", path)


def check_measured(config: Config) -> None:
    """Refuse a run whose models are the clients' own and that measures nothing on the clients.

    Raises:
        ConfigError: Naming the key to set.
    """
    if contract_of(config).personal and config.server.fraction_evaluate == 0:
        raise ConfigError(
            f'run-config key "fraction-evaluate": the models of "{config.algorithm}" are the clients\' own '
            "and are measured on their own test data; expected > 0, such as 1.0, or the key left out; got 0"
        )


# Keys that may differ when a run is resumed, but see `free_on_resume`.
FREE_ON_RESUME = CHANGE_NO_RESULT | LENGTHEN


def free_on_resume(config: Config) -> frozenset[str]:
    """Return the keys that may differ when a run is resumed; a cosine's rates follow from the last round."""
    return FREE_ON_RESUME - ({"num-server-rounds"} if config.train.lr_schedule == "cosine" else set())


def check_same_code(folder: RunFolder, code: Mapping[str, str]) -> None:
    """Refuse to resume a run with other code of its user's than it was started with.

    `code` has the hashes by package.

    Raises:
        ConfigError: Naming the first package that differs.
    """
    before = folder.config().get("code", {})
    for package, digest in code.items():
        if (was := before.get(package, "")) != digest:
            raise ConfigError(
                f'--resume: module "{package}": expected the code with which {folder.path} was started, '
                f"SHA-256 {was[:12] or 'none'}...; got {digest[:12]}.... Restore it, or start a new run."
            )


def check_same_run(folder: RunFolder, keys: Mapping[str, Any], free: frozenset[str] = FREE_ON_RESUME) -> None:
    """Refuse to resume a run under other keys than it was started with.

    Raises:
        ConfigError: Naming the first key that differs, with both values.
    """
    before = folder.config()["run"]
    for key, value in keys.items():
        if key not in free and key in before and before[key] != value:
            raise ConfigError(
                f'--resume: run-config key "{key}": expected {before[key]!r}, with which {folder.path} '
                f"was started; got {value!r}. Give the same keys, or another --run-name for a new run."
            )


def _server_data(config: Config) -> Dataset | None:
    """Return the data set that the server evaluates on; None if only the nodes have data."""
    if spec_of(config.data.dataset).own and not config.data.data_path:
        return None
    return load_dataset(config.data, config.synthetic, config.seeds.data)


def _data_card(config: Config, dataset: Dataset | None, labelled: bool) -> dict[str, Any] | None:
    """Return what ``config.json`` says of the data: what, where from, how many, how skewed."""
    if dataset is None:
        return None
    partition = load_partition(dataset, config.data, config.seeds.data)
    return {
        "description": dataset.description,
        "source": dataset.source,
        "fingerprint": dataset.fingerprint,
        "train_examples": dataset.num_train,
        "test_examples": len(dataset.y) - dataset.num_train,
        "clients": partition.num_clients,
        "skew": {k: float(v) for k, v in partition.skew.items()},
        **(_labels(dataset, partition) if labelled else {}),
    }


def _labels(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Return how many examples of each class the first clients have, if there are not too many classes."""
    if not 1 < dataset.num_classes <= MOST_CLASSES:
        return {}
    counts = label_counts(dataset, partition, SHOWN_CLIENTS).tolist()
    return {"labels": {"clients": list(partition.names[: len(counts)]), "counts": counts}}


__all__ = ["app", "run"]
