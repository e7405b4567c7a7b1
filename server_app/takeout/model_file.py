"""The model file of a run: where it lies, and what it says, read once for all who use it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from server_app.results.folder import CONFIG, ENCRYPTED, MODEL, RunFolder, no_run, place_of
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.config.read import read_checked
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.references import check_origin
from task.resolve.model_card import DIGESTS, ModelCard, read_model


@dataclass(frozen=True)
class ModelFile:
    """A model file that was read."""

    path: Path
    card: ModelCard
    arrays: Arrays

    @property
    def entry(self) -> Algorithm:
        """The catalogue's entry of the run's algorithm."""
        return self.card.config.entry

    @cached_property
    def folder(self) -> RunFolder | None:
        """The run's folder; None if the file lies elsewhere."""
        place = self.path.parent
        return RunFolder(place) if (place / CONFIG).exists() and self.path.name == MODEL else None

    @cached_property
    def config(self) -> Config:
        """The run's keys; without the folder those of the card.

        Raises:
            ConfigError: They name code that the user has not allowed, which is their maker's word.
        """
        if self.folder is None:
            return self.card.config
        keys = self.folder.config()["run"]
        check_origin(keys, self.folder.path / CONFIG)
        return read_checked(keys)

    def no_model(self) -> ConfigError:
        """Return the error about a file that has no whole model in it, naming what it has."""
        if self.entry.statistics:
            return ConfigError(
                f"{self.path}: expected a model; got a table of {self.entry.name}. Its folder has table.csv "
                "and table.tex; to read it: bouquet export RUN --format summary"
            )
        return ConfigError(
            f"{self.path}: expected a model that one party holds; got one of {self.entry.name}, which is "
            f"split between parties; the file has {DIGESTS}. The run evaluates it with all parties: "
            "client_accuracy in rounds.jsonl"
        )


def find(run: Path) -> Path:
    """Return the model file that a command names: itself, or that of a run's folder or of one below runs/.

    Raises:
        ConfigError: There is none.
    """
    place = place_of(run)
    if not place.exists():
        raise no_run("expected a result folder, a run's name below runs/ or a model.safetensors", run)
    if place.is_dir() and not (place / MODEL).exists():
        if (place / ENCRYPTED).exists():
            raise ConfigError(
                f"{place}: its model is encrypted; on a machine with the kit of a node: "
                f"bouquet decrypt {place} --kit KIT"
            )
        state = "has not finished; continue it with --resume" if (place / CONFIG).exists() else "is no run"
        raise ConfigError(f"{place}: expected a folder with {MODEL}; this one {state}")
    return place / MODEL if place.is_dir() else place


def read_file(run: Path) -> ModelFile:
    """Return the model file of a run; `run` is a result folder, the name of one below runs/, or the file.

    Raises:
        ConfigError: There is none, it has no card, or that names code that the user has not allowed.
        StateError: It is damaged, or a newer Bouquet made it.
    """
    path = find(run)
    card, arrays = read_model(path)
    check_origin(card.run, path)  # before its algorithm is looked up, which may be such code
    return ModelFile(path, card, arrays)
