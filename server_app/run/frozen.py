"""The frozen part of a run's model in its folder: in the checkpoint once, and in the results with the rest.

``checkpoint/frozen.safetensors`` has it from before round 1 on; the checkpoints of rounds have what travels.
``model.safetensors`` has both, and ``adapters.safetensors`` beside it what travels alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from server_app.results.folder import CHECKPOINT, RunFolder
from server_app.run import peft_folder
from task.errors import StateError
from task.models.frozen import thaw, use
from task.numerics.arrays import Arrays, NamedArrays, array_of, sha256, tensors_of
from task.storage.files import read_safetensors, write_safetensors
from task.wire.frozen import OWN_FROZEN

FILE = "frozen.safetensors"  # in the checkpoint
ADAPTERS = "adapters.safetensors"
RECORD = "frozen"  # in config.json and result.json


def record_of(frozen: NamedArrays) -> dict[str, Any]:
    """Return what config.json and result.json say of a frozen part."""
    numbers, size = sum(a.size for a in frozen.values()), sum(a.nbytes for a in frozen.values())
    return {"sha256": sha256(frozen), "tensors": len(frozen), "numbers": numbers, "bytes": size}


def expected_of(frozen: NamedArrays) -> dict[str, str]:
    """Return the SHA-256 that a node's own file of a frozen part must have, as `expect_code` takes it."""
    return {OWN_FROZEN: sha256(frozen)} if frozen else {}


def frozen_of(module: nn.Module, names: Sequence[str]) -> Arrays:
    """Return the frozen part of a module, which keeps it from then on apart from what it loads."""
    if not names:
        thaw(module)
    tensors = tensors_of(module)
    return {name: array_of(tensors[name]) for name in names}


def frozen_of_run(module: nn.Module, frozen: Arrays, resumed: RunFolder | None) -> Arrays:
    """Return the frozen part of a run, which its module then uses; of a resumed run that of its folder.

    Raises:
        StateError: The run had another one.
    """
    before = resumed.config().get(RECORD) if resumed else None
    if resumed is None or before is None:
        use(module, frozen)
        return frozen
    found = _read(resumed.path, frozen) or frozen
    use(module, found)
    if (got := sha256(found)) != before["sha256"]:
        raise StateError(
            f"{resumed.path}: expected the frozen part of the model that the run began with, SHA-256 "
            f"{before['sha256'][:12]}; got {got[:12]}. Restore {CHECKPOINT}/{FILE}, or start a new run"
        )
    return found


def _read(folder: Path, names: Iterable[str]) -> Arrays | None:
    path = folder / CHECKPOINT / FILE
    if not path.exists():
        return None
    try:
        arrays = read_safetensors(path)[1]
        return {name: arrays[name] for name in names}
    except (OSError, SafetensorError, KeyError) as err:
        raise StateError(f"{path}: expected a whole file; got {type(err).__name__}: {err}") from None


def write_frozen(folder: Path, frozen: NamedArrays, module: nn.Module) -> None:
    """Write what a run begins with: the adapters' configuration, and the frozen part, unless it is there."""
    if not frozen:
        return
    peft_folder.begin(folder, module)
    path = folder / CHECKPOINT / FILE
    if not path.exists():
        write_safetensors(path, frozen)


def in_folder(folder: RunFolder) -> Arrays:
    """Return the frozen part of a run from its folder; empty if it has none.

    Raises:
        StateError: The file is damaged or missing.
    """
    record: Mapping[str, Any] | None = folder.config().get(RECORD)
    if record is None:
        return {}
    path = folder.path / CHECKPOINT / FILE
    try:
        arrays = read_safetensors(path)[1]
    except (OSError, SafetensorError) as err:
        raise StateError(f"{path}: expected the frozen part of the model; got {err}") from None
    if (got := sha256(arrays)) != record["sha256"]:
        raise StateError(f"{path}: expected SHA-256 {record['sha256'][:12]}; got {got[:12]}")
    return arrays


def write_adapters(folder: Path, model: NamedArrays, frozen: NamedArrays) -> None:
    """Write what travels of a run's model beside it."""
    if frozen:
        about = {"format": "pt", "frozen-sha256": sha256(frozen)}
        write_safetensors(folder / ADAPTERS, model, about)
        peft_folder.end(folder, model)
