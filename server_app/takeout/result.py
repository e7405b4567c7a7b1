"""A run's result in Python: rounds and clients as data frames, its model, its plot."""

from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_app.results.folder import RunFolder
from server_app.results.lines import Row
from task.errors import ConfigError, StateError

if TYPE_CHECKING:  # seconds
    import pandas as pd
    from matplotlib.figure import Figure
    from torch import nn

    from server_app.takeout.samples import Judged


class RunResult:
    """A result folder; what is not there yet reads as no rounds, no result."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).resolve()
        self._folder = RunFolder(self.path)

    @property
    def config(self) -> dict[str, Any]:
        """Every run-config key with its value."""
        return dict(self._folder.config().get("run", {}))

    @property
    def summary(self) -> Row:
        """What result.json holds; {} while the run is not finished."""
        return self._folder.result() or {}

    @property
    def rounds(self) -> "pd.DataFrame":
        """A row for each round: loss, accuracy, seconds, bytes and the rest of rounds.jsonl.

        Numbers of one group have its name in front, such as ``seconds.total``.
        """
        return _frame(self._folder.rounds(unfinished=True))

    @property
    def clients(self) -> "pd.DataFrame":
        """A row for each client and evaluation, of training (``phase``) or of its test data."""
        frame = _frame(self._folder.clients(unfinished=True))
        return frame.rename(columns=lambda name: name.removeprefix("metrics."))

    @property
    def table(self) -> "pd.DataFrame":
        """The table of an analysis, table.csv.

        Raises:
            StateError: The run has none.
        """
        import pandas as pd

        path = self.path / "table.csv"
        if not path.exists():
            raise StateError(
                f"{path}: expected the table of an analysis, such as statistics or glm; got none"
            )
        return pd.read_csv(path)

    @cached_property
    def model(self) -> "nn.Module":
        """The final global model, in evaluation mode; it reads examples that are scaled as in training.

        Raises:
            ConfigError: The run has not ended, or its models are the clients' own.
        """
        return self.client_model("")

    def client_model(self, client: str) -> "nn.Module":
        """Return a client's own model.

        Raises:
            BouquetError: There is none on this machine.
        """
        from server_app.takeout.model import take

        return take(self.path, client).model

    def predict(self, data: str | Path | None = None, client: str = "") -> "pd.DataFrame":
        """Return the columns that `bouquet predict` writes, for each example of a file.

        Of a classifier they are ``id``, ``predicted`` and ``p_CLASS``, of an analysis what it says of a row.
        Without `data` the examples are the run's test set, or the client's. Loss and accuracy are in the
        attribute ``attrs`` of the frame where there are labels.

        Raises:
            BouquetError: The model or the data cannot be used.
        """
        import pandas as pd

        from server_app.takeout.taken import taken_in
        from task.tasks.evaluate import BATCH

        where = None if data is None else Path(data)
        said = taken_in(self.path, client).predict(where, whole=False, batch=BATCH)
        frame = pd.DataFrame(dict(said.columns))
        frame.attrs.update(said.scores)
        return frame

    def samples(self, client: str = "", seed: int = 0) -> "Judged":
        """Draw new images from a generative model and compare them with real ones, as `bouquet samples`.

        Raises:
            BouquetError: The model draws none, or the data cannot be used.
        """
        from server_app.takeout.model import take
        from server_app.takeout.samples import judge

        return judge(take(self.path, client), seed)

    def plot(self) -> "Figure":
        """Return accuracy and loss by round, and the clients' accuracies; a notebook shows the figure.

        Raises:
            ConfigError: Nothing was measured yet.
        """
        from server_app.results.compare import figure_of_run

        figure = figure_of_run(self.path)
        if not any(axes.has_data() for axes in figure.axes):
            raise ConfigError(f"{self.path}: expected a round with an evaluation; there is none yet")
        figure._repr_png_ = lambda: _png(figure)  # type: ignore[attr-defined]  # what a notebook asks for
        return figure

    def __repr__(self) -> str:
        run, result = self.config, self.summary
        state = "not finished" if not result else f"{result.get('rounds')} rounds"
        if result.get("accuracy") is not None:
            state += f", accuracy {result['accuracy']:.3f}"
        return f"<{run.get('algorithm')} on {run.get('dataset')}, {state}: {self.path}>"


def _png(figure: "Figure") -> bytes:
    data = BytesIO()
    figure.savefig(data, format="png", dpi=70)
    return data.getvalue()


def _frame(rows: list[Row]) -> "pd.DataFrame":
    import pandas as pd

    return pd.json_normalize(rows, max_level=1)
