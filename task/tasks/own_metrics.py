"""A user's own metric, ``package.module:name``: sums over examples, and a value of the sums.

It is an object, or a class that needs no arguments, with two methods:

* ``sums(outputs, y)`` returns what is added over batches, clients and nodes: integers or floats, an array
  (NumPy's or a tensor) or a dict of some. Names, shapes and kinds are the same for any number of examples.
* ``value(sums)`` returns the metric, a number, of the total, in the same form as NumPy arrays.

=======================  =========================  ================
task                     outputs                    y
=======================  =========================  ================
classification           logits [n, C]              classes [n]
language, tagging        logits of n positions      characters [n]
segmentation             logits of n pixels         classes [n]
multi-label              logits [n, C]              0 or 1, [n, C]
regression               numbers [n, d]             numbers [n, d]
reconstruction           numbers [n, p]             inputs [n, p]
=======================  =========================  ================

Floats are added exactly, as `task.numerics.limbs` does, so that a total is the same in any order.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from task.errors import ConfigError, local
from task.numerics.arrays import Arrays
from task.numerics.limbs import LIMBS, exact, number_of
from task.references import load_reference, place
from task.tasks.specs import TASKS
from task.text import logger

_PIXELS = 4  # of the reconstructions that a metric is tried on
_Form = dict[str, tuple[tuple[int, ...], str]]  # by name, shape and "i" or "f"


class OwnMetric:
    """A metric that a user brings, tried on made-up outputs before it is used.

    Args:
        reference: ``package.module:name``.
        task: Name of the task.
        classes: Outputs of the model.

    Raises:
        ConfigError: It is no such thing, or its sums change their form with the number of examples.
    """

    def __init__(self, reference: str, task: str, classes: int) -> None:
        self.reference, self._task = reference, task
        self._where = f'run-config key "metrics": "{reference}"'
        made = load_reference("metrics", reference)
        try:
            self._metric = made() if isinstance(made, type) else made
        except Exception as err:  # whatever the user's code raises
            raise ConfigError(f"{self._where} cannot be made without arguments: {place(err)}") from err
        missing = [name for name in ("sums", "value") if not callable(getattr(self._metric, name, None))]
        if missing:
            raise ConfigError(
                f"{self._where}: expected an object or a class with the methods sums(outputs, y) and "
                f"value(sums); it has no {' and no '.join(missing)}"
            )
        with torch.random.fork_rng(devices=[]):
            found = [self._added(*self._made_up(n, classes)) for n in (1, 3)]
        self._form = _form_of(found[0])
        self._check_form(found[1])
        try:
            self._number(self._metric.value(self._whole(_limbs(found[1]))))
        except ArithmeticError:
            pass  # not defined for these
        except ConfigError:
            raise
        except Exception as err:  # whatever the user's code raises
            raise ConfigError(f"{self._where}: value(sums) failed: {place(err)}") from err

    @property
    def like(self) -> Arrays:
        """Zeros of the names and shapes of the sums, int64."""
        return {
            self._wire_name(name): np.zeros((shape or (1,)) if kind == "i" else (*shape, LIMBS), np.int64)
            for name, (shape, kind) in self._form.items()
        }

    def sums(self, outputs: Any, y: torch.Tensor) -> Arrays:
        """Return the sums of a batch as integers.

        Raises:
            ConfigError: The user's code fails, or its sums have another form than before.
        """
        if isinstance(outputs, torch.Tensor):
            outputs, y = self._counted(outputs, y)
            if not len(y):
                return self.like
        found = self._added(outputs, y)
        self._check_form(found)
        return {self._wire_name(name): a for name, a in _limbs(found).items()}

    def value(self, sums: Mapping[str, npt.NDArray[np.int64]]) -> float | None:
        """Return the metric of the total; None where it is not defined or the user's code fails."""
        try:
            parts = {name: sums[self._wire_name(name)] for name in self._form}
            return self._number(self._metric.value(self._whole(parts)))
        except ArithmeticError:
            return None
        except Exception as err:  # after the training; it must not be lost
            logger.warning("%s: value(sums) failed, so it counts as not defined: %s", self._where, place(err))
            return None

    def _number(self, value: Any) -> float | None:
        """Return a value as a float, None if it is NaN or infinite."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{self._where}: expected value(sums) to return a number; got {type(value).__name__}"
            ) from None
        return number if np.isfinite(number) else None

    def _wire_name(self, name: str) -> str:
        return f"{self.reference}/{name}" if name else self.reference

    def _counted(self, outputs: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs and targets of all that counts, in the shapes of the table above."""
        if TASKS[self._task].classes:
            outputs, y = outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), y.reshape(-1)
            keep = y >= 0
        else:
            y = y.reshape(len(y), -1)
            outputs, keep = outputs.reshape(y.shape), ~y[:, 0].isnan()
        return outputs[keep], y[keep]

    def _added(self, outputs: Any, y: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
        """Return what the user's code adds up, int64 or float64 by name; "" is that of an array alone."""
        try:
            found = self._metric.sums(outputs, y)
        except Exception as err:  # whatever the user's code raises
            where = place(err).removeprefix(f"{type(err).__name__}: {err}")
            raise ConfigError(
                f"{self._where}: sums(outputs, y) failed on {len(y)} examples: {type(err).__name__}: "
                f"{local(err)}{where}"
            ) from err
        parts = found if isinstance(found, Mapping) else {"": found}
        if not parts or not all(isinstance(name, str) for name in parts):
            raise ConfigError(f"{self._where}: expected sums(outputs, y) to name its arrays by text")
        return {name: self._numbers(name, part) for name, part in sorted(parts.items())}

    def _numbers(self, name: str, part: Any) -> npt.NDArray[Any]:
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu()
            part = part.double() if part.is_floating_point() else part
        array = np.asarray(part)
        if array.dtype.kind not in "biuf" or not array.size:
            what = f"{array.dtype} {list(array.shape)}" if array.dtype.kind != "O" else type(part).__name__
            raise ConfigError(
                f"{self._where}: expected sums(outputs, y) to return integers or floats, an array or a dict "
                f"of some; got {local(f'{what} as {name}' if name else what)}"
            )
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)

    def _check_form(self, found: Mapping[str, npt.NDArray[Any]]) -> None:
        if (form := _form_of(found)) != self._form:
            raise ConfigError(
                f"{self._where}: expected sums(outputs, y) to return the same names, shapes and kinds for "
                f"any number of examples, {_words(self._form)}; got {local(_words(form))}"
            )

    def _whole(self, parts: Mapping[str, npt.NDArray[np.int64]]) -> Any:
        """Return totals as the user's code gave its sums."""
        found = {}
        for name, (shape, kind) in self._form.items():
            if kind == "i":
                found[name] = parts[name].reshape(shape)
            else:
                numbers = [float(number_of(limbs)) for limbs in parts[name].reshape(-1, LIMBS)]
                found[name] = np.array(numbers).reshape(shape)
        return found[""] if list(found) == [""] else found

    def _made_up(self, n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs and targets of n examples, always the same."""
        rng = np.random.default_rng(n)
        width = _PIXELS if self._task == "reconstruction" else classes
        outputs = torch.from_numpy(rng.normal(size=(n, width)).astype(np.float32))
        if TASKS[self._task].classes:
            return outputs, torch.from_numpy(rng.integers(0, classes, n))
        y = rng.integers(0, 2, (n, width)) if self._task == "multi-label" else rng.random((n, width))
        return outputs, torch.from_numpy(y.astype(np.float32))


def _limbs(found: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Return sums as integers that add up exactly."""
    return {k: exact(a[None]) if a.dtype.kind == "f" else np.atleast_1d(a) for k, a in found.items()}


def _form_of(found: Mapping[str, npt.NDArray[Any]]) -> _Form:
    return {name: (a.shape, a.dtype.kind) for name, a in found.items()}


def _words(form: _Form) -> str:
    kinds = {"i": "integers", "f": "floats"}
    return ", ".join(
        f"{name}{' = ' * bool(name)}{kinds[kind]} {list(shape)}" for name, (shape, kind) in form.items()
    )
