"""The frozen part of the model on a node: found or received once, checked by its SHA-256, held once.

A node has it by itself if the model is drawn from the run's seed, which gives the same numbers everywhere
where the code and PyTorch are the same, or if its owner has the file (node config ``initial-model``). It
stores what it received below its folder of client state, by hash. So its other processes, later runs and a
restarted node have it; they map the file into memory, which they share. The store is a cache: without a file
the node is sent the tensors again.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from task.models.frozen import thaw, use
from task.models.model_file import load
from task.numerics.arrays import Arrays, NamedArrays, array_of, sha256, ties_of
from task.storage.files import write_safetensors
from task.text import logger

FOLDER = ".frozen"  # in the folder of client state; no run's own folder begins with a dot
MOST_FILES = 4  # that a node keeps, those that it used last
MOST_HELD = 2  # of one process
_held: OrderedDict[str, Arrays] = OrderedDict()  # by SHA-256


def hold(digest: str, arrays: Arrays) -> None:
    """Hold a frozen part of this digest, which the caller has checked, for `bind`."""
    _held[digest] = arrays
    _held.move_to_end(digest)
    while len(_held) > MOST_HELD:
        _held.popitem(last=False)


def is_held(digest: str) -> bool:
    """Return whether this process has a frozen part."""
    return digest in _held


def held(digest: str) -> Arrays:
    """Return a frozen part that this process has; its arrays are not to be changed."""
    return _held[digest]


def bind(model: nn.Module, digest: str) -> nn.Module:
    """Have a module use a held frozen part in place of its own tensors; without one, have it load all."""
    return use(model, _held[digest]) if digest else thaw(model)


def stored(root: Path, digest: str, names: list[str]) -> Arrays | None:
    """Return a frozen part in a node's store, mapped into memory; None if it is not there whole.

    `root` is the node's folder of client state, `names` are the tensors in their order.
    """
    path = _file(root, digest)
    try:
        with safe_open(path, framework="pt") as file:
            arrays = {name: array_of(file.get_tensor(name)) for name in names}
        path.touch()
    except (OSError, SafetensorError):
        return None
    if sha256(arrays) == digest:
        return arrays
    logger.error("%s: expected SHA-256 %s; the file is damaged and not used", path, digest[:12])
    return None


def store(root: Path, digest: str, arrays: NamedArrays) -> Arrays:
    """Store a frozen part that came in a message; return it, mapped into memory where that was possible."""
    path = _file(root, digest)
    try:
        write_safetensors(path, arrays)
        found = stored(root, digest, list(arrays))
        _forget(path.parent)
    except OSError as err:
        found = None
        logger.error("the frozen part of the model is not stored, so it must be sent again: %s", err)
    return {name: a.copy() for name, a in arrays.items()} if found is None else found


def in_store(root: Path) -> list[str]:
    """Return the digests of what a node has stored."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.safetensors"))[:MOST_FILES]


def _file(root: Path, digest: str) -> Path:
    return root / FOLDER / f"{digest}.safetensors"


def _forget(folder: Path) -> None:
    """Delete all but the files that were used last; other processes may do so, too."""
    with suppress(OSError):
        files = sorted(folder.glob("*.safetensors"), key=lambda p: p.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)


def part_of(model: nn.Module, names: Iterable[str]) -> Arrays:
    """Return the frozen part of a model, in its memory if that is on the CPU."""
    tensors: dict[str, torch.Tensor] = model.state_dict()
    return {name: array_of(tensors[name]) for name in names}


def own(model: nn.Module, names: Sequence[str], file: str) -> tuple[str, Arrays]:
    """Return the frozen part of a model as it was just drawn, with what a file has of it, and its SHA-256.

    Raises:
        ConfigError: The file cannot be read, or has nothing of it.
    """
    arrays = part_of(model, names)
    if file:
        key = 'node config: key "initial-model"'
        arrays, _ = load(key, file, arrays, (), strict=False, ties=ties_of(model))
    return sha256(arrays), arrays
