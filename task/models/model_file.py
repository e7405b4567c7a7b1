"""Model files that a run can start from, of any origin."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from task.adapters.names import bare_name, has_adapters
from task.errors import ConfigError
from task.numerics.arrays import BFLOAT16, Arrays, NamedArrays, array_of
from task.numerics.tensors import tensor_of
from task.population import some

PICKLED = (".pt", ".pth")
SUFFIXES = (".safetensors", *PICKLED)
MODEL = "model.safetensors"  # of a result folder


@dataclass
class Loaded:
    """How a file's tensors were used, for the log and ``config.json``."""

    file: str
    sha256: str  # of the file's bytes
    tensors: list[str] = field(default_factory=list)  # taken from the file
    missing: list[str] = field(default_factory=list)  # of the model, not in the file: as drawn by seed
    unexpected: list[str] = field(default_factory=list)  # in the file, not of the model
    differing: list[str] = field(default_factory=list)  # with both forms: as drawn by seed
    private: list[str] = field(default_factory=list)  # that stay with the clients: as drawn by seed

    def misfits(self) -> list[str]:
        """Return in words what did not fit."""
        named = (("missing", self.missing), ("unexpected", self.unexpected), ("differing", self.differing))
        return [f"{what}: {some(names)}" for what, names in named if names]

    def lines(self) -> list[str]:
        """Return lines for the user."""
        kept = [f"not used, as they stay with the clients: {some(self.private)}"] if self.private else []
        rest = "; ".join([*self.misfits(), *kept])
        count = len(self.tensors)
        return [f"initial model: {count} tensors from {self.file}" + (f"; {rest}" if rest else "")]


def load(
    key: str,
    path: str,
    shared: NamedArrays,
    private: tuple[str, ...],
    *,
    strict: bool,
    ties: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Arrays, Loaded]:
    """Return the model with a file's tensors, and how they were used.

    A file of the model without adapters is loaded into what these are added to.

    Args:
        key: What names the file, for errors.
        path: A ``.safetensors`` file, a state dict that ``torch.save`` wrote to ``.pt`` or ``.pth``, or the
            result folder of a finished run.
        shared: The model as drawn by seed, as far as the server knows it.
        private: Names of its other tensors.
        strict: Whether all tensors must fit.
        ties: By each further name of a tied tensor, the one that it has in `shared`; a file may have either.

    Raises:
        ConfigError: The file cannot be read, has numbers that are not finite, or does not fit: all of it if
            `strict`, else nothing of it.
    """
    file = Path(path).expanduser()
    file = file / MODEL if file.is_dir() else file
    given, digest = _read(key, file)
    bare = has_adapters(shared) and not has_adapters(given)
    if bare:  # what adapters are added to; they begin as they are drawn
        given = _wrapped(given, [*shared, *private, *ties])
    given = {**{ties[n]: t for n, t in given.items() if n in ties}, **given}
    given = {n: t for n, t in given.items() if n not in ties}
    loaded = Loaded(path, digest)
    arrays = dict(shared)
    for name, old in shared.items():
        if name not in given:
            if not bare or bare_name(name):
                loaded.missing.append(name)
            continue
        new = given[name]
        floats = [a.dtype.kind == "f" or a.dtype == BFLOAT16 for a in (new, old)]
        if new.shape != old.shape or floats[0] != floats[1]:
            loaded.differing.append(f"{name} (expected {_form(old)}, got {_form(new)})")
            continue
        if not np.isfinite(new).all():
            raise ConfigError(f"{key}: {file}: expected finite numbers in {name!r}; got NaN or infinity")
        half = old.dtype == BFLOAT16
        arrays[name] = array_of(tensor_of(new).bfloat16()) if half else np.array(new, old.dtype, order="C")
        loaded.tensors.append(name)
    loaded.private = [name for name in private if name in given]
    loaded.unexpected = [name for name in given if name not in shared and name not in private]
    if not loaded.tensors or (strict and loaded.misfits()):
        more = "" if not loaded.tensors else ", or initial-model-strict = false to load what fits"
        raise ConfigError(
            f"{key}: {file} does not fit the model: {'; '.join(loaded.misfits())}; expected a file of the "
            f'same "model" on data of the same shape and classes{more}'
        )
    return arrays, loaded


def _wrapped(given: dict[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return a model's tensors by the names that a model with adapters gives them."""
    bare = {name: bare_name(name) for name in names}
    used = set(bare.values())
    found = {name: given[of] for name, of in bare.items() if of in given}
    return found | {name: tensor for name, tensor in given.items() if name not in used}


def _read(key: str, file: Path) -> tuple[dict[str, np.ndarray], str]:
    """Return the arrays of a file by name, and the checksum of its bytes."""
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"{key}: expected a file that ends in {', '.join(SUFFIXES)}; got {file}")
    with _whole(key, file):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if file.suffix in PICKLED:
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
                found = found["state_dict"]
        else:
            found = load_file(file)
    if not isinstance(found, Mapping) or not all(isinstance(t, torch.Tensor) for t in found.values()):
        raise ConfigError(
            f"{key}: {file}: expected a state dict, tensors by name; got {type(found).__name__}. "
            "Save model.state_dict()"
        )
    return {str(name): _array(tensor) for name, tensor in found.items()}, digest


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array; NumPy has no bfloat16, and no parameter has fewer bits than float32."""
    half = tensor.is_floating_point() and tensor.element_size() < 4
    array: np.ndarray = (tensor.float() if half else tensor).detach().numpy()
    return array


def _form(array: np.ndarray) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


@contextmanager
def _whole(key: str, file: Path) -> Iterator[None]:
    """Name the file that cannot be read in the block."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{key}: expected a file; got {file}, which does not exist") from None
    except (OSError, SafetensorError) as err:
        raise ConfigError(f"{key}: {file} cannot be read: {err}") from None
    except Exception as err:  # torch.load may raise anything for a file of another kind
        what = "a state dict that has only tensors"
        raise ConfigError(f"{key}: {file}: expected {what}; got {type(err).__name__}") from None
