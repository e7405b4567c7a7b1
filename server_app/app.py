"""The ServerApp: puts a run together, lets the strategy run it and leaves the result folder."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from server_app.extras.trackers import Trackers, check_trackers, tracking
from server_app.results.folder import RunFolder
from server_app.results.report import write_report
from server_app.results.samples import write_samples
from server_app.results.summary import summarise
from server_app.run.arrivals import check_deployed
from server_app.run.confined import KIT, confined
from server_app.run.data_card import server_data
from server_app.run.encryption import check_key, in_clear
from server_app.run.evaluate import by_level, by_model, global_model, of_kinds
from server_app.run.kept import KeptSync, settle
from server_app.run.naming import check_free, folder_of_run
from server_app.run.opening import OpenedRun, open_run
from server_app.run.progress import Progress, closing_table, title_of
from server_app.run.recorder import Recorder
from server_app.run.run_lock import holding
from server_app.run.stopped import finish_stopped
from server_app.run.terminal import Terminal
from strategies.engine.arrival_log import ArrivalLog
from strategies.transport.packed import PackingGrid
from task import timing, trust
from task.config.knobs import Config
from task.config.paths import state_root
from task.datasets.partition import load_partition
from task.encryption import ckks
from task.errors import BouquetError, ConfigError, kind_of
from task.flower.ray import in_simulation
from task.models.brought import find_maker
from task.models.family import Widths
from task.models.kinds import SideBySide
from task.numerics.arrays import Arrays
from task.privacy.accounting import accountant
from task.references import is_reference, place, references_in
from task.resolve.contract import contract_of, levels_of
from task.resolve.model_card import DIGESTS
from task.resolve.read import read_config
from task.storage.client_state import folder_of
from task.tasks import task_of
from task.text import logger
from task.wire import messages as wire

MOST_CLASSES, SHOWN_CLIENTS = 100, 60  # of the labels in config.json

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's entry point.

    Flower reports an error's text only; the link must distinguish a wrong key, a lost node and a full disk,
    see `task.errors.LASTING`.
    """
    try:
        kit = os.environ.get(KIT)
        keys = confined(context.run_config, Path(kit)) if kit else context.run_config
        trust.user_named(references_in(keys))  # whoever submits a run has typed its keys
        config = read_config(keys)
        if in_simulation():
            check_deployed(config)
        run(cast(Grid, PackingGrid(grid)), config, wait_s=timing.FOLDER_HELD_S)
    except Exception as err:
        expected = isinstance(err, BouquetError | OSError)
        raise RuntimeError(f"{kind_of(err)}: {err if expected else place(err)}") from err


def prepare(run_config: Mapping[str, Any]) -> None:
    """Check the keys and bring the data into the cache, before anything else is started.

    Raises:
        BouquetError: As `run` would raise it later.
    """
    config = read_config(run_config)
    check_measured(config)
    check_trackers(config)
    if config.dp.noise:
        accountant()
    check_key(config)
    folder_of_run(config)
    for name in filter(is_reference, levels_of(config).values):
        find_maker(name)
    dataset = server_data(config)
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
    order: ArrivalLog | None = None,
) -> Path:
    """Run a federation to its end and return its result folder.

    `rounds_over` is called when no message will be sent any more, before the results are written. With
    `overlap` the central evaluation runs while the next round trains. Another run that writes into the result
    folder is waited for up to `wait_s`. With `stop_is_end` Ctrl-C leaves a result of the rounds so far;
    without it, whoever started this goes on with the run. `order` is that in which updates arrived, of a run
    that is done again.

    Raises:
        BouquetError: The run cannot start or continue; what was written so far stays.
    """
    check_measured(config)
    path = folder_of_run(config)
    with holding(path, wait_s), tracking(config) as trackers:
        if not config.output.resume:
            check_free(path)  # another run may have begun while this one waited
        try:
            return _run(grid, config, path, rounds_over, overlap, trackers, order)
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
    order: ArrivalLog | None,
) -> Path:
    opened = open_run(grid, config, path)
    config, server, output = opened.config, opened.config.server, opened.config.output
    folder = RunFolder.create(path, opened.record, resume=output.resume)
    trackers.begin(folder, output.resume)
    with Progress(output.progress, server.num_server_rounds, title_of(config)) as progress:
        for line in opened.remarks:
            progress.message(line)
        recorder = Recorder(
            folder,
            progress,
            every=output.checkpoint_every,
            resume=output.resume,
            card=opened.card,
            kept=KeptSync(folder_of(state_root(config), config.run_name, str(folder.config()["id"]))),
            tell=trackers.round,
            in_clear=partial(in_clear, config),
            order=order,
        )
        try:
            result = opened.strategy.start(
                grid,
                wire.pack_arrays(opened.shared),
                num_rounds=server.num_server_rounds,
                timeout=server.round_timeout,
                evaluate_fn=opened.evaluation(),
                journal=recorder,
                trainable=opened.parts.trainable,
                overlap=overlap,
                measures=opened.task.measures,
            )
            rounds_over()
        except KeyboardInterrupt:
            recorder.close()
            raise
        recorder.close()
    summary = _summary(folder, opened.keys)
    arrays = in_clear(config, wire.read_arrays(result.arrays))
    last = summary.get("rounds", 0)
    dataset = opened.dataset.at(last) if opened.dataset else None
    if dataset is not None and opened.entry.personal and not ckks.sealed(arrays):
        summary["global_model"] = global_model(
            opened.entry, opened.model, dataset, opened.task, wire.pack_arrays(arrays), last
        )
    if opened.entry.vertical:
        summary["model_holds"] = DIGESTS
    if isinstance(opened.family, Widths):
        summary["levels"] = by_level(
            opened.family,
            opened.model,
            dataset,
            opened.task,
            arrays,
            last,
            opened.strategy.registry.names,
        )
    if config.models.levels:
        of, names = opened.strategy.registry.model, opened.strategy.registry.names
        model, found = opened.model, {}
        if isinstance(model, SideBySide):
            found = of_kinds(model, dataset, opened.task, arrays)
        summary["levels"] = by_model(levels_of(config, of), opened.sizes, folder.clients(), names, found)
    if dataset is not None and dataset.drift and config.drift.pattern == "staggered":
        summary["drift_clients"] = dict(dataset.drift.begins)
    folder.finish(summary, arrays, opened.card)
    _report(path, opened, {} if ckks.sealed(arrays) else arrays)
    trackers.finish(summary, path)
    if order is None:  # whoever replays a run says what came of it
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
    except Exception as err:  # logged with its traceback: the model is there and must not be lost
        logger.exception("%s: the run is finished, but its summary could not be made", folder.path)
        known = {k: keys[k] for k in ("algorithm", "dataset", "model", "selection", "seed")}
        return {**known, "summary_error": f"{type(err).__name__}: {err}"}


def _report(path: Path, opened: OpenedRun, arrays: Arrays) -> None:
    """Write the report; a run whose report cannot be made is finished all the same."""
    try:
        if opened.dataset is not None:
            write_samples(path, opened.model, arrays, opened.dataset)
        write_report(path)
    except OSError:
        raise
    except Exception:  # logged with its traceback: the model is there and must not be lost
        logger.exception("%s: the run is finished, but its report could not be made", path)


def check_measured(config: Config) -> None:
    """Refuse a run whose models are the clients' own and that measures nothing on the clients.

    Raises:
        ConfigError: Naming the key to set.
    """
    if config.dp.central:  # numbers of single clients stay there
        return
    if config.server.he and config.server.fraction_evaluate == 0:
        raise ConfigError(
            'run-config key "fraction-evaluate": the server cannot open the model (he = true), so that '
            "clients measure it; expected > 0, such as 1.0, or the key left out; got 0"
        )
    if contract_of(config).personal and config.server.fraction_evaluate == 0:
        raise ConfigError(
            f'run-config key "fraction-evaluate": the models of "{config.algorithm}" are the clients\' own '
            "and are measured on their own test data; expected > 0, such as 1.0, or the key left out; got 0"
        )


__all__ = ["app", "run"]
