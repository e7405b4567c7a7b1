"""The ServerApp: assembles a run, lets the strategy run it, and writes the result folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from server_app.results.folder import RunFolder
from server_app.run.finish import write_results
from server_app.run.kept import KeptSync, finish
from server_app.run.naming import check_free, drop_unbegun, folder_of_run
from server_app.run.opening import open_run
from server_app.run.prepare import check_measured, prepare, read_submitted
from server_app.run.progress import closing_table, progress_of
from server_app.run.recorder import Recorder
from server_app.run.run_lock import holding
from server_app.run.stopped import finish_stopped
from server_app.run.terminal import Terminal
from strategies.engine.journal import FeatureLog
from strategies.transport.packed import PackingGrid
from task import timing
from task.config.knobs import Config
from task.errors import BouquetError, kind_of
from task.references import place
from task.wire import messages as wire

if TYPE_CHECKING:
    from server_app.run.trackers import Trackers

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's entry point.

    Flower reports an error's text only; the link must distinguish a wrong key, a lost node and a full disk,
    see `task.errors.LASTING`.
    """
    try:
        config = read_submitted(context.run_config)
        run(cast(Grid, PackingGrid(grid)), config, wait_s=timing.FOLDER_HELD_S)
    except Exception as err:
        expected = isinstance(err, BouquetError | OSError)
        raise RuntimeError(f"{kind_of(err)}: {err if expected else place(err)}") from err


def run(
    grid: Grid,
    config: Config,
    rounds_over: Callable[[], object] = lambda: None,
    *,
    overlap: bool = True,
    wait_s: float = 0.0,
    stop_is_end: bool = False,
    follows: Sequence[FeatureLog] = (),
) -> Path:
    """Run a federation to its end and return its result folder.

    `rounds_over` is called after the last message, before the results are written. With
    `overlap` the central evaluation runs while the next round trains. Another run that writes into the result
    folder is waited for up to `wait_s`. With `stop_is_end` Ctrl-C leaves a result of the rounds so far;
    without it, the caller continues the run. `follows` are logs of an earlier run, which this one repeats.

    Raises:
        BouquetError: The run cannot start or continue; what was written so far stays.
    """
    check_measured(config)
    path = folder_of_run(config)
    with holding(path, wait_s), _tracking(config) as trackers:
        if not config.output.resume:
            check_free(path)  # another run may have begun while this one waited
        try:
            return _run(grid, config, path, rounds_over, overlap, trackers, follows)
        except KeyboardInterrupt:
            if stop_is_end:
                rounds_over()
                _leave(path, config)
            raise


def _tracking(config: Config) -> AbstractContextManager[Trackers | None]:
    """Yield the run's trackers; without the run-config key ``tracker``, None, and nothing is imported."""
    if not config.output.trackers:
        return nullcontext()
    from server_app.run.trackers import tracking

    return tracking(config)


def _leave(path: Path, config: Config) -> None:
    """Write and print the results of a run stopped by the user, or remove one that has not begun."""
    result = finish_stopped(path, "by the user")
    if not config.output.resume:
        drop_unbegun(path)
    if result is not None and config.output.progress != "none":
        closing_table(result, path.resolve())


def _run(
    grid: Grid,
    config: Config,
    path: Path,
    rounds_over: Callable[[], object],
    overlap: bool,
    trackers: Trackers | None,
    follows: Sequence[FeatureLog],
) -> Path:
    opened = open_run(grid, config, path)
    config, model = opened.config, opened.model
    server, output = config.server, config.output
    folder = RunFolder.create(path, opened.record, resume=output.resume)
    run_id = str(folder.config()["id"])
    if trackers:
        trackers.begin(folder, output.resume)
    with progress_of(config) as progress:
        model.begin(path)
        for line in opened.remarks:
            progress.message(line)
        recorder = Recorder(
            folder,
            progress,
            every=output.checkpoint_every,
            resume=output.resume,
            card=opened.card,
            kept=KeptSync.of(config, run_id),
            tell=trackers.round if trackers else lambda row: None,
            follows=follows,
        )
        try:
            result = opened.strategy.start(
                grid,
                model.handed_over(),
                num_rounds=server.num_server_rounds,
                timeout=server.round_timeout,
                evaluate_fn=model.evaluation(config),
                journal=recorder,
                trainable=model.parts.trainable,
                overlap=overlap,
                measures=model.task.measures,
            )
            rounds_over()
        except KeyboardInterrupt:
            recorder.close()
            raise
        recorder.close()
    summary = write_results(folder, opened, wire.read_arrays(result.arrays), recorder.stopped)
    if trackers:
        trackers.finish(summary, path)
    if not follows:  # the caller of a replay reports its outcome
        closing_table(summary, path.resolve())
    if line := finish(config, run_id):
        Terminal().print(line, soft_wrap=True)
    return path


__all__ = ["app", "prepare", "run"]
