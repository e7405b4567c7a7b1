"""Trackers: a run's keys, rounds, final numbers and plots in TensorBoard, MLflow or Weights & Biases.

Each is an extra of the package, imported only where a run names it. A package that is missing ends the run
before it starts; whatever a tracker does wrong later costs a line in the log and the rest of its own record.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_app.results.folder import CHECKPOINT, RunFolder
from server_app.results.headline import headline
from server_app.results.lines import Row, number, read_object
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.effective import unmet
from task.text import logger

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROJECT = "bouquet"
MLFLOW_BATCH = 100  # parameters in one call


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker gets it at the start."""

    folder: Path
    id: str
    keys: Mapping[str, Any]  # the run-config keys that the run reads
    step: int  # the first round to be recorded
    resumed: bool

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name


class Tracker(ABC):
    """Where a run is recorded besides its result folder."""

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None:
        """Begin or go on with the record of a run, its hyper-parameters first."""

    @abstractmethod
    def round(self, values: Mapping[str, float], step: int) -> None:
        """Record the numbers of a finished round."""

    @abstractmethod
    def finish(self, result: Row, folder: Path, figure: Callable[[], Figure]) -> None:
        """Record the final numbers, the headline table and the plots."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """End the record."""


class TensorBoard(Tracker):
    """Event files in ``<run>/tensorboard``; ``tensorboard --logdir runs`` shows all runs."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = run.step if run.resumed else None  # rounds after the checkpoint are done again
        self._run = run
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        self._writer.add_text("keys", _markdown(run.keys.items(), ("key", "value")))

    def round(self, values: Mapping[str, float], step: int) -> None:
        """Record the numbers of a finished round."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finish(self, result: Row, folder: Path, figure: Callable[[], Figure]) -> None:
        """Record the headline table, the hyper-parameters with the final numbers, and the curves."""
        self._writer.add_text("result", _markdown(headline(result), ("", "")))
        final = {f"final/{key}": value for key, value in scalars(result).items() if "/" not in key}
        self._writer.add_hparams(dict(self._run.keys), final, run_name=".")
        self._writer.add_figure("curves", figure())

    def close(self, failed: bool) -> None:
        """Close the event file."""
        self._writer.close()


class MLflow(Tracker):
    """A run of the experiment ``bouquet`` at ``$MLFLOW_TRACKING_URI``, by default ``mlflow.db`` in runs-dir.

    The id of MLflow's run is kept in ``<run>/mlflow.txt``, for a resume.
    """

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        local = f"sqlite:///{run.folder.parent.absolute() / 'mlflow.db'}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local)
        kept = run.folder / "mlflow.txt"
        if run.resumed and kept.exists():
            self._id = kept.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(PROJECT)
        artifacts = (run.folder.parent.absolute() / "mlflow-artifacts").as_uri()
        place = None if os.environ.get("MLFLOW_TRACKING_URI") else artifacts
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT, place)
        self._id = self._client.create_run(
            experiment, run_name=run.name, tags={"bouquet.id": run.id}
        ).info.run_id
        kept.write_text(self._id)
        from mlflow.entities import Param

        params = [Param(key, str(value)) for key, value in run.keys.items()]
        for first in range(0, len(params), MLFLOW_BATCH):
            self._client.log_batch(self._id, params=params[first : first + MLFLOW_BATCH])

    def round(self, values: Mapping[str, float], step: int) -> None:
        """Record the numbers of a finished round."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_plain(key), value, now, step) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, result: Row, folder: Path, figure: Callable[[], Figure]) -> None:
        """Record the final numbers, the headline as tags, and the report with its plots as artifacts."""
        for key, value in scalars(result).items():
            self._client.log_metric(self._id, _plain(f"final/{key}"), value)
        for label, text in headline(result):
            self._client.set_tag(self._id, _plain(label), text)
        self._client.log_figure(self._id, figure(), "curves.png")
        for path in [
            folder / "report.html",
            folder / "result.json",
            *sorted((folder / "plots").glob("*.svg")),
        ]:
            if path.exists():
                self._client.log_artifact(self._id, str(path), "plots" if path.suffix == ".svg" else None)

    def close(self, failed: bool) -> None:
        """End MLflow's run."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _plain(key: str) -> str:
    """Return a name with the letters that MLflow takes only."""
    return re.sub(r"[^\w.\- :/]", "", key)


class WandB(Tracker):
    """A run of the project ``bouquet``, in ``<run>/wandb``; offline unless ``$WANDB_MODE`` says otherwise.

    ``wandb sync <run>/wandb/offline-run-*`` sends it.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.name, id=run.id, dir=str(run.folder),
            config=dict(run.keys), mode=mode, resume="allow" if mode == "online" else None,
            settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip

    def round(self, values: Mapping[str, float], step: int) -> None:
        """Record the numbers of a finished round."""
        self._run.log(dict(values), step=step)

    def finish(self, result: Row, folder: Path, figure: Callable[[], Figure]) -> None:
        """Record the final numbers in the summary, the headline table, the curves and the report."""
        import PIL.Image
        import wandb

        self._run.summary.update({f"final/{key}": value for key, value in scalars(result).items()})
        rows = [list(row) for row in headline(result)]
        self._run.log({"result": wandb.Table(columns=["what", "value"], data=rows)})
        picture = io.BytesIO()  # of a figure it would want pyplot
        figure().savefig(picture, format="png", dpi=110)
        self._run.log({"curves": wandb.Image(PIL.Image.open(picture))})
        report = folder / "report.html"
        if report.exists():
            self._run.log({"report": wandb.Html(report.read_text("utf-8"))})

    def close(self, failed: bool) -> None:
        """End W&B's run."""
        self._run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_trackers(config: Config) -> None:
    """Refuse a run whose trackers are not installed.

    Raises:
        ConfigError: Saying what to install.
    """
    for name in config.output.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f'run-config key "tracker": "{name}" needs a package that is not installed here; expected it '
                f"after: pip install 'bouquet[{name}]'"
            )


class Trackers:
    """The trackers of one run; one that fails is left out from then on, with one line in the log."""

    def __init__(self, names: tuple[str, ...], kinds: Mapping[str, type[Tracker]] = TRACKERS) -> None:
        self._kinds = {name: kinds[name] for name in names}
        self._live: dict[str, Tracker] = {}

    def begin(self, folder: RunFolder, resumed: bool) -> None:
        """Begin all records, or go on with those of a resumed run."""
        if not self._kinds:
            return
        config, last = folder.config(), None
        if resumed:
            last = read_object(folder.path / CHECKPOINT / "latest.json", [])
        keys = {key: value for key, value in config["run"].items() if unmet(key, config["run"]) is None}
        step = int(last["round"]) + 1 if last else 0
        run = TrackedRun(folder.path, str(config["id"]), keys, step, resumed)
        for name, kind in self._kinds.items():
            with self._guarded(name):
                self._live[name] = kind(run)

    def round(self, row: Mapping[str, Any]) -> None:
        """Record a finished round, given by its line of rounds.jsonl."""
        step, values = int(row["round"]), scalars(row)
        self._each(lambda tracker: tracker.round(values, step))

    def finish(self, result: Row, folder: Path) -> None:
        """Record the end of the run, whose result folder is complete."""
        from server_app.results.compare import figure_of_run  # imports seconds of plotting

        self._each(lambda tracker: tracker.finish(result, folder, lambda: figure_of_run(folder)))

    def close(self, failed: bool) -> None:
        """End all records."""
        self._each(lambda tracker: tracker.close(failed))
        self._live.clear()

    def _each(self, act: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._live.items()):
            with self._guarded(name):
                act(tracker)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as err:  # of another's library: the run is worth more than its record there
            failed = self._live.pop(name, None)
            logger.error(
                "tracker %s failed, the run continues without it: %s: %s", name, type(err).__name__, err
            )
            if failed is not None:
                with suppress(Exception):  # it may be whole enough to end its record
                    failed.close(failed=False)


@contextmanager
def tracking(config: Config) -> Iterator[Trackers]:
    """Give the trackers that a run names, and close them at the end of the block, however it ends.

    Raises:
        ConfigError: As `check_trackers`.
    """
    check_trackers(config)
    trackers = Trackers(config.output.trackers)
    failed = True
    try:
        yield trackers
        failed = False
    finally:
        trackers.close(failed)


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row without that of the round; those of a table in it are ``table/name``."""
    found = dict[str, float]()
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{key}/{name}": inner for name, inner in scalars(value).items()}
        elif (
            plain := number(int(value) if isinstance(value, bool) else value)
        ) is not None and key != "round":
            found[key] = plain
    return found


def _markdown(rows: Any, head: tuple[str, str]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
