"""The model of a run as `bouquet predict` and `bouquet export` use it, with its examples."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

from server_app.takeout.examples import Input, read_examples
from server_app.takeout.export import SUFFIXES, export
from server_app.takeout.model import TakenModel, take_kept, taken_of
from server_app.takeout.model_file import ModelFile
from server_app.takeout.predict import own_examples, predict
from server_app.takeout.taken import Said, Taken, no_trees, out_of
from task.errors import ConfigError


class Network(Taken):
    """The global model, or a client's own."""

    def __init__(self, path: Path, client: str, load: Callable[[], TakenModel]) -> None:
        self._path, self._client, self._load = path, client, load

    @cached_property
    def _taken(self) -> TakenModel:
        return self._load()

    def _examples(self, data: Path | None, *, whole: bool = False) -> Input:
        taken = self._taken
        return own_examples(taken, whole=whole) if data is None else read_examples(data, taken.card)

    def predict(self, data: Path | None, *, whole: bool, batch: int) -> Said:
        """Return what `Prediction.columns` says, and loss and accuracy where there are labels."""
        examples = self._examples(data, whole=whole)
        found = predict(self._taken, examples, batch)
        lines = [*self._taken.notes, *examples.remarks, *found.report()]
        return Said(found.columns(), f"{len(found.ids):,} predictions: ", lines, found.scores)

    def export(self, form: str, out: Path | None, data: Path | None, *, int8: bool) -> list[str]:
        """Write the model; without a test its outputs are compared on random examples."""
        if form not in SUFFIXES:
            raise no_trees(form)
        taken = self._taken
        try:
            examples = self._examples(data)
        except ConfigError:  # no test set
            examples = None
        path = out or out_of(self._path, SUFFIXES[form], self._client)
        return [*taken.notes, *export(taken, form, path, examples, int8=int8).lines()]


def of_file(file: ModelFile, client: str) -> Network:
    """Return the model of a file."""
    return Network(file.path, client, partial(taken_of, file, client))


def stored_at(path: Path, client: str) -> Network:
    """Return the model that a node has stored in a file."""
    return Network(path, client, partial(take_kept, path, client))


TAKES = {"train": of_file}
