"""What a model file says of the model in it, so that it can be used without the run that made it.

The metadata ``bouquet`` of ``model.safetensors`` is a JSON object::

    {"format": 1, "algorithm": "fedavg", "model": "2nn", "dataset": "mnist", "seed": 1,
     "task": "classification", "kind": "image", "input_shape": [1, 28, 28], "num_classes": 10,
     "classes": [], "columns": [], "normalisation": {"scale": 255.0, "mean": [0.0], "std": [1.0]},
     "run": {"algorithm": ..., every run-config key that was set}}

Of images that are cropped ``normalisation`` has ``crop`` too, the side of the square in the middle, and of
those that are read by their own mean and deviation ``"standardised": true``. There are also ``meaning``
(`task.datasets.description`) where only nodes had data: what they agreed on, with digests in place of names;
``moments`` (`task.numerics.moments`) where the run has filled or standardised columns, and ``int8`` where the
arrays are 8-bit codes (`task.numerics.int8`): what was measured in float32 and in int8, as in
``{"accuracy": [0.98, 0.979], "loss": [0.07, 0.071], "examples": 10000}``; ``{}`` if nothing was; and
``holds`` where the arrays are no model's, as of vertical algorithms. It is one object since the order of
several metadata in a file is arbitrary. Names, folders and what else differs between machines is not in it:
equal runs give equal bytes, in a simulation and on machines.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import CHANGE_NO_RESULT, Config
from task.config.read import as_run_config, defaults, read_checked
from task.config.renamed import present
from task.config.sections import Value
from task.datasets import Dataset, natural_task
from task.datasets.base import PIXELS
from task.datasets.description import Description, Meaning
from task.errors import ConfigError, StateError, local, reason
from task.inputs import kind_of, read_form
from task.numerics import int8
from task.numerics.arrays import Arrays
from task.numerics.moments import ColumnMoments, from_dict
from task.resolve.effective import models_in
from task.storage.files import read_safetensors
from task.tasks import with_task

FORMAT = 1
# Of a run of parties, whose parts of the model stay where they are.
DIGESTS = "no weights: the SHA-256 of each party's part of the model, which stays at the party"
METADATA = "bouquet"
BESIDE = "bouquet-frozen"  # metadata of a file without the frozen part: the file next to it that has it
# Keys of one machine or of how long it waits; none of them says anything about the model.
OF_THE_MACHINE = CHANGE_NO_RESULT | {
    "data-path", "node-names", "device", "threads", "stack", "min-replies", "enough-replies",
}  # fmt: skip


# Not read from a card: the author of a card must not choose which files of this machine are read or written.
PATHS = frozenset(
    {"cache-dir", "data-dir", "data-path", "initial-model", "initial-model-strict", "runs-dir", "state-dir"}
)


@dataclass(frozen=True)
class ModelCard:
    """What a model reads and says, and the run that made it."""

    run: Mapping[str, Value]  # run-config keys that are not at their default
    input_shape: tuple[int, ...]  # of one example
    num_classes: int
    kind: str = ""  # of the data set, "image", "features" or "text"; "" = only the nodes had data
    scale: float = 255.0  # images are divided by it, then `mean` is subtracted and `std` divides, by channel
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    classes: tuple[str, ...] = ()  # names of the classes; empty where they are just numbers
    columns: tuple[str, ...] = ()  # of a table: the features in their order, then the label
    meaning: Meaning = field(default_factory=Meaning)  # of data that only nodes have: names as digests
    moments: ColumnMoments | None = None  # by which its columns are filled and standardised
    taken: Mapping[str, str] = field(default_factory=dict)  # of an exported model: run and client
    left_out: tuple[str, ...] = ()  # keys of the run that were not read from the card, see `PATHS`
    int8: Mapping[str, Any] | None = None  # of a file of 8-bit codes: what was measured before and after

    @cached_property
    def config(self) -> Config:
        """The run's config, as far as it says what the model is."""
        return read_checked(self.run)

    @cached_property
    def task(self) -> str:
        """What the model was trained for, a name in `task.tasks.TASKS`."""
        return with_task(self.config, natural_task(self.config.data)).data.task

    @property
    def model(self) -> str:
        """Name of the model; where the run has several kinds, all of them; "" where its algorithm has one."""
        return models_in(as_run_config(self.config))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, their numbers where they have none."""
        return self.classes or tuple(str(i) for i in range(self.num_classes))

    def _normalisation(self) -> dict[str, Any]:
        said: dict[str, Any] = {"scale": self.scale, "mean": list(self.mean), "std": list(self.std)}
        data = self.config.data
        said |= {"crop": data.crop} if data.crop else {}
        return said | ({"standardised": True} if data.pixels == "standardised" else {})

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        config = self.config
        value: dict[str, Any] = {
            "format": FORMAT,
            "algorithm": config.algorithm,
            "model": self.model,
            "dataset": config.data.dataset,
            "seed": config.seed,
            "task": self.task,
            "kind": self.kind,
            "input_shape": list(self.input_shape),
            "num_classes": self.num_classes,
            "classes": list(self.classes),
            "columns": list(self.columns),
            "normalisation": self._normalisation(),
            "run": dict(self.run),
            **self.taken,
        }
        if algorithm_of(config.algorithm).vertical and not self.taken:
            value["holds"] = DIGESTS
        if self.meaning.parts:
            value["meaning"] = self.meaning.as_dict()
        if self.moments:
            value["moments"] = self.moments.as_dict()
        if self.int8 is not None:
            value["int8"] = dict(self.int8)
        return {METADATA: json.dumps(value)}


def card_of(
    config: Config,
    shape: tuple[int, ...],
    num_classes: int,
    dataset: Dataset | None,
    moments: ColumnMoments | None = None,
    meaning: Meaning | None = None,
    names: Description | None = None,
) -> ModelCard:
    """Return the card of a run's model.

    `dataset` is None if only the nodes have data; `meaning` is then what they have agreed on, and `names` has
    the names of it, where a node's owner lets them out.
    """
    keys, default = as_run_config(config), defaults()
    if config.data.task == natural_task(replace(config.data, task="auto")):
        keys["task"] = default["task"]
    run = {k: v for k, v in keys.items() if v != default[k] and k not in OF_THE_MACHINE}
    card = ModelCard(run, tuple(shape), num_classes, moments=moments)
    if dataset is None:
        if meaning is not None:  # without the parts that no node names
            named = {part: digest for part, digest in meaning.parts.items() if digest}
            card = replace(card, meaning=replace(meaning, parts=named))
        if names is not None:
            numbered = names.classes == tuple(map(str, range(len(names.classes))))
            columns = (*map(str, names.columns), ", ".join(names.targets)) if names.columns else ()
            card = replace(card, columns=columns, classes=() if numbered else names.classes)
        kind = {"csv": "features", "imagefolder": "image"}.get(config.data.dataset, "")
        if config.data.dataset == "arrow" and meaning is not None:
            kind = meaning.parts.get("kind", "")
        if read_form(config.data.inputs):
            kind = kind_of(config.data.inputs)
        if kind == "image":
            # As every node scales pictures of its own.
            shift, divisor = PIXELS.get(config.data.pixels, PIXELS["centred"])
            return replace(card, kind="image", mean=(shift,) * shape[0], std=(divisor,) * shape[0])
        return replace(card, kind=kind)
    of_data = ("kind", "scale", "mean", "std", "classes", "columns")
    return replace(card, **{k: getattr(dataset, k) for k in of_data})


def read_model(path: Path) -> tuple[ModelCard, Arrays]:
    """Return the card and the arrays of a model file; those of an int8 file in float32.

    A file without the model's frozen part names the one next to it that has that.

    Raises:
        ConfigError: There is no such file, or it has no card.
        StateError: It is damaged, or a newer Bouquet made it.
    """
    metadata, arrays = read_arrays(path)
    card = card_in(metadata, path)
    if beside := metadata.get(BESIDE):
        arrays |= read_arrays(path.parent / Path(beside).name)[1]
    return card, arrays if card.int8 is None else int8.restored(arrays)


def read_arrays(path: Path) -> tuple[dict[str, str], Arrays]:
    """Return the metadata and the arrays of a safetensors file.

    Raises:
        ConfigError: There is no such file.
        StateError: It is damaged.
    """
    try:
        return read_safetensors(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a model file; there is none") from None
    except (SafetensorError, OSError) as err:
        raise StateError(f"{local(path)}: expected a whole safetensors file; got {local(err)}") from None


def card_in(metadata: Mapping[str, str], path: Path) -> ModelCard:
    """Return the card in the metadata of a file.

    Raises:
        ConfigError: It has none.
        StateError: It is damaged, or a newer Bouquet made it.
    """
    if (text := metadata.get(METADATA)) is None:
        raise ConfigError(
            f'{path}: expected a model of Bouquet, with metadata "{METADATA}"; got a file without. '
            "Earlier versions wrote none: --resume the run, with as many rounds as it has, writes it again"
        )
    try:
        return _read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise StateError(f"{local(path)}: damaged metadata: {reason(err)}") from None


def _read(value: Mapping[str, Any]) -> ModelCard:
    if int(value["format"]) > FORMAT:
        raise StateError(
            f"a newer Bouquet made this model file (format {local(value['format'])}); update Bouquet"
        )
    scaling = value["normalisation"]
    return ModelCard(
        {key: it for key, it in present(value["run"]).items() if key not in PATHS},
        tuple(value["input_shape"]),
        int(value["num_classes"]),
        str(value["kind"]),
        float(scaling["scale"]),
        tuple(scaling["mean"]),
        tuple(scaling["std"]),
        tuple(value["classes"]),
        tuple(value["columns"]),
        Meaning.from_dict(value.get("meaning", {"parts": {}, "inputs": [], "outputs": []})),
        from_dict(value["moments"]) if "moments" in value else None,
        {k: str(value[k]) for k in ("run_name", "client") if k in value},
        tuple(sorted(PATHS & value["run"].keys())),
        dict(value["int8"]) if "int8" in value else None,
    )
