"""The newest global model of a run that a node keeps, if its owner says so, to predict without the link.

``FOLDER/<run-name>.safetensors`` holds the arrays and the card of a result folder's model
(`task.resolve.model_card`), and as metadata ``kept`` what it takes to find a client's own model again: the
run's id and keys as this node reads them, the round of the message that brought the arrays, rounds that the
server has gone back from, and whose data the node has.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task.errors import ConfigError, StateError, local, reason
from task.numerics.arrays import Arrays
from task.resolve.model_card import ModelCard, card_in, read_arrays
from task.storage.client_state import SUFFIX, safe_name
from task.storage.files import write_safetensors

KEPT = "kept"


@dataclass(frozen=True)
class KeptModel:
    """Where a kept model comes from."""

    run: str  # the run's id
    round: int  # of the message; a client's own state is of this round or an earlier one
    keys: Mapping[str, Any]  # every run-config key, with this node's paths
    node: Mapping[str, str | int]  # node config that says whose data the node has
    void: tuple[int, ...] = ()


def write_kept_model(folder: Path, name: str, arrays: Arrays, card: ModelCard, kept: KeptModel) -> None:
    """Replace the kept model of the run of this name, atomically."""
    path = folder / f"{safe_name(name)}{SUFFIX}"
    write_safetensors(path, arrays, card.metadata() | {KEPT: json.dumps(asdict(kept))})


def find_kept_model(folder: Path, name: str = "") -> Path:
    """Return the file of a run's kept model; without a name the newest.

    Raises:
        ConfigError: There is none.
    """
    found = sorted(folder.glob(f"[!.]*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    if name:
        found = [path for path in found if path.stem == safe_name(name)]
    if not found:
        raise ConfigError(
            f"{folder}: expected a kept model{f' of run {name}' if name else ''}; there is none. A "
            "node keeps them with keep-models = true in [policy] of its kit.toml, from the next message on"
        )
    return found[-1]


def read_kept_model(path: Path) -> tuple[ModelCard, Arrays, KeptModel]:
    """Return what `write_kept_model` wrote.

    Raises:
        ConfigError: There is no such file, or it is no kept model.
        StateError: It is damaged.
    """
    metadata, arrays = read_arrays(path)
    card = card_in(metadata, path)
    if (text := metadata.get(KEPT)) is None:
        raise ConfigError(f"{path}: expected a model that a node has kept; got one of a result folder")
    try:
        value = json.loads(text)
        void = tuple(int(r) for r in value["void"])
        return card, arrays, KeptModel(value["run"], int(value["round"]), value["keys"], value["node"], void)
    except (ValueError, KeyError, TypeError) as err:
        raise StateError(f"{local(path)}: damaged metadata: {reason(err)}") from None
