"""What can be taken out of a run, whichever kind of model it has made.

A module of this room declares in ``TAKES`` by which class it takes out the results of some kinds of work
(`task.catalogue.entry.Algorithm.work`): networks, analyses, trees. No list names the module.
"""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from server_app.results.folder import MODEL
from server_app.takeout.model_file import read_file
from task.catalogue.declared import declared_in
from task.errors import ConfigError
from task.storage.client_state import safe_name

# By name, a value for each example; "id" comes first.
Columns = list[tuple[str, Sequence[object] | np.ndarray]]
_ANY = "train"  # what takes the results of work that no module declares, and says what is wrong with them


@dataclass(frozen=True)
class Said:
    """What was predicted of some examples."""

    columns: Columns
    what: str = ""  # the columns, in a line about the file that has them
    lines: Sequence[str] = ()  # for the user
    # "loss", "accuracy" and "examples" of all and of each part, where there are labels.
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Taken(ABC):
    """What a run has made. Nothing of it is opened before it is used."""

    @abstractmethod
    def predict(self, data: Path | None, *, whole: bool, batch: int) -> Said:
        """Return what is predicted of the examples in `data`; None = those of the run's test.

        Args:
            data: A file or a folder.
            whole: Whether the run's test is the global one in any case.
            batch: Examples at a time.

        Raises:
            BouquetError: The model or the data cannot be used.
        """

    @abstractmethod
    def export(self, form: str, out: Path | None, data: Path | None, *, int8: bool) -> list[str]:
        """Write it in a format to `out`, None = a file in the current folder; return lines for the user.

        Args:
            form: A format of `bouquet export`.
            out: The file.
            data: Examples on which the outputs are compared; None = those of the run's test.
            int8: Whether weights are quantised.

        Raises:
            BouquetError: It does not go into this format, or what was written answers otherwise.
        """


def taken_in(run: Path, client: str = "") -> Taken:
    """Return what a run has made, or the own model of one of its clients; the model file is read once.

    `run` is a result folder, the name of one below runs/, or a model file.

    Raises:
        ConfigError: There is no such run, or its file has no card.
        StateError: The file is damaged, or a newer Bouquet made it.
    """
    file = read_file(run)
    takes = declared_in("TAKES", "server_app.takeout")
    found: Taken = takes.get(file.entry.work, takes[_ANY])(file, client)
    return found


def as_csv(columns: Columns) -> str:
    """Return columns as csv; nine digits give back every float32."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    cells = (
        [f"{v:.9g}" for v in values.tolist()]
        if isinstance(values, np.ndarray) and values.dtype == np.float32
        else values
        for _, values in columns
    )
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()


def out_of(path: Path, suffix: str, client: str = "") -> Path:
    """Return where an export of a model file is written by default: in the current folder, by its run."""
    name = path.parent.name if path.name == MODEL else path.stem
    return Path(f"{name}{f'-{safe_name(client)}' if client else ''}{suffix}")


def no_trees(form: str) -> ConfigError:
    """Return the error about a format that only trees have."""
    return ConfigError(f"--format {form}: expected a run that grows trees, and no option but --out")
