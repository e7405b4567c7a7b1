"""Let a user's model read inputs by name and answer in the forms that libraries use.

What is attached are hooks of the module itself, so that its tensors keep their names, copies of it keep the
hooks, and gradients, exports and evaluation call it alike.

The outputs that a loss of ours and the metrics see are *one* tensor: of a dict ``logits`` (Hugging Face) or
``out`` (torchvision's segmentation), of a tuple its first tensor of floats. Where a sequence has a target at
each position, logits ``[B, T, C]``, as libraries give them, become ``[B, C, T]``. A loss of the user's own
gets the outputs as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from task.inputs import by_name, kind_of, read_form, unpacked
from task.models.lora import Adapters

_AS_GIVEN = ContextVar("as_given", default=False)  # whether outputs stay as the module gives them
MAIN = ("logits", "out")  # names of the tensor that counts, in a dict


@dataclass(frozen=True)
class Outputs:
    """What a run's task expects a model to give."""

    classes: int  # C
    sequence: bool  # whether each position of a sequence has a target, so that logits are [B, C, T]


@dataclass(frozen=True)
class _Named:
    """Calls a module with the inputs by name that a packed tensor has; other calls stay as they are."""

    form: str

    def __call__(self, module: nn.Module, args: Any, named: Any) -> Any:
        if named or len(args) != 1 or not isinstance(args[0], torch.Tensor):
            return None
        return (), unpacked(args[0], self.form)


@dataclass(frozen=True)
class _Main:
    """Replaces a module's outputs by the tensor that counts."""

    outputs: Outputs

    def __call__(self, module: nn.Module, args: Any, out: Any) -> Any:
        return out if _AS_GIVEN.get() else main_of(out, self.outputs)


def main_of(out: Any, outputs: Outputs) -> Any:
    """Return the tensor of outputs that counts; what has none, and a tensor in its place, stays as it is."""
    found = _picked(out)
    if not outputs.sequence or not isinstance(found, torch.Tensor) or found.dim() != 3:
        return found
    C = outputs.classes
    last = found.shape[2] == C and (found.shape[1] != C or found is not out)
    return found.movedim(2, 1) if last else found


def _picked(out: Any) -> Any:
    if isinstance(out, Mapping):
        named = [out[name] for name in MAIN if isinstance(out.get(name), torch.Tensor)]
        floats = [t for t in out.values() if _is_floats(t)]
        return named[0] if named else floats[0] if len(floats) == 1 else out
    if isinstance(out, tuple | list):
        return next((t for t in out if _is_floats(t)), out)
    return out


def _is_floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@dataclass(frozen=True)
class Interface:
    """How a run calls a user's model, and what it makes of the answer."""

    form: str = ""  # of the inputs, see `task.inputs`
    outputs: Outputs | None = None  # None = the loss gets the outputs as they are
    adapters: Adapters | None = None  # which are added to it

    def shape(self, shape: tuple[int, ...]) -> Any:
        """Return the shape of an example for the function that makes the model; a dict for inputs by name."""
        return {one.name: one.shape for one in read_form(self.form)} if by_name(self.form) else shape

    def attach(self, model: nn.Module) -> None:
        """Attach to a model what its inputs and outputs need."""
        if by_name(self.form):
            model.register_forward_pre_hook(_Named(self.form), with_kwargs=True)
        last, outputs = model, self.outputs
        while type(last) is nn.Sequential and len(last):
            last = last[-1]
        # The layers of torch give tensors, and a chain of them stays one that trains clients together.
        if outputs and (outputs.sequence or not type(last).__module__.startswith(("torch.nn", "task."))):
            model.register_forward_hook(_Main(outputs))

    def examples(self, count: int, model: nn.Module | None = None) -> torch.Tensor:
        """Return made-up examples of the form: ids (7 i + 1) mod vocabulary, a mask with a 0 at the end."""
        embeddings: Any = getattr(model, "get_input_embeddings", lambda: None)
        embedding = embeddings()
        vocabulary = int(getattr(embedding, "num_embeddings", 1))
        parts = []
        for one in read_form(self.form):
            made = torch.arange(count * one.size, dtype=torch.float64).view(count, *one.shape)
            if one.dtype == "float32":
                made = made % 2 - 0.5
            elif "mask" in one.name or one.dtype == "bool":
                made = torch.ones_like(made)
                made.flatten(1)[:, -1] = 0
            else:
                made = (7 * made + 1) % vocabulary
            parts.append(made)
        if not by_name(self.form):
            return parts[0].long()
        x = torch.cat([part.flatten(1) for part in parts], 1)
        return {"text": x.long(), "features": x.float(), "mixed": x}[kind_of(self.form)]


def kind_of_outputs(model: nn.Module, x: torch.Tensor) -> str:
    """Return of which type the outputs of a model are as it gives them, in words."""
    token = _AS_GIVEN.set(True)
    try:
        out = model(x)
    finally:
        _AS_GIVEN.reset(token)
    return "a tensor" if isinstance(out, torch.Tensor) else type(out).__name__
