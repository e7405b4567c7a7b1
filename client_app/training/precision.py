"""Mixed precision: forward and backward passes in 16 bits where that is safe, parameters in 32.

PyTorch's autocast chooses by operation: matrix products and convolutions take 16 bits, losses and softmax
32, and normalisation layers keep their parameters and running statistics in 32. Gradients come out as
float32, and the steps are the loop's. Evaluation is not concerned.

Small gradients would vanish in float16, so that the loss is multiplied by a power of two and the gradient
divided by it, which changes no other bit. If a gradient overflows the batch is done again with less, and the
buffers that it moved are put back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from client_app.training.programs import Batch, Dense, LossAndGradient, Program, Tensors
from client_app.training.stacked import Stacked
from task.errors import ConfigError
from task.numerics.arrays import Arrays, NamedArrays

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LOSS_SCALE, STEP = 2.0**14, 2.0**-4


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse mixed precision where it would only be slower.

    Raises:
        ConfigError: The device is no GPU.
    """
    if precision in DTYPES and device.type != "cuda":
        raise ConfigError(
            f'run-config key "precision": expected a CUDA GPU on this node for {precision}, which is '
            'slower than float32 on a CPU; got none (or device = "cpu"). Leave the key out'
        )


def in_precision(program: Program, precision: str) -> Program:
    """Return a program whose passes are of this precision; float32 leaves it as it is."""
    if precision not in DTYPES:
        return program
    return (MixedBatched if program.stacks else Mixed)(program, DTYPES[precision])


class Mixed(Program):
    """Another program with its passes under autocast."""

    stacks = False

    def __init__(self, program: Program, dtype: torch.dtype) -> None:
        super().__init__(program.model, program.task)
        self.program, self.dtype = program, dtype

    def _autocast(self, params: Tensors) -> torch.autocast:
        # Parameters are cast again in each pass: their memory changes in place, which the cache overlooks.
        return torch.autocast(params[0].device.type, self.dtype, cache_enabled=False)

    def load(self, received: NamedArrays, clients: int, own: Sequence[NamedArrays] = ()) -> Tensors:
        """Return what the program returns."""
        return self.program.load(received, clients, own)

    def states(self, params: Tensors) -> list[Arrays]:
        """Return what the program returns."""
        return self.program.states(params)

    def lent(self, params: Tensors) -> list[Arrays]:
        """Return what the program returns."""
        return self.program.lent(params)

    def logits(self, params: Tensors, x: torch.Tensor) -> torch.Tensor:
        """Return the program's logits, float32."""
        with self._autocast(params):
            return self.program.logits(params, x).float()

    def features(self, params: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the program's features and logits, float32."""
        with self._autocast(params):
            z, logits = self.program.features(params, x)
        return z.float(), logits.float()

    def _gradient(self, params: Tensors, batch: Batch, frozen: Collection[str]) -> LossAndGradient:
        with self._autocast(params):
            if isinstance(self.program, Stacked):  # a backward pass that is written out has no autocast
                return Stacked.computed(self.program, params, batch, frozen)
            return self.program.gradient(params, batch, frozen)

    def gradient(self, params: Tensors, batch: Batch, frozen: Collection[str] = ()) -> LossAndGradient:
        """Return each client's scaled loss [K] and its gradient, both float32."""
        if self.dtype is not torch.float16:
            return self._gradient(params, batch, frozen)
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        scale = LOSS_SCALE
        while True:
            loss, gradient = self._gradient(params, replace(batch, scale=batch.scale * scale), frozen)
            with torch.no_grad():
                tensors = torch._foreach_mul(gradient.tensors(), 1.0 / scale)
                finite = bool(torch.stack(torch._foreach_norm(tensors)).isfinite().all())
            if finite or scale <= STEP:
                return loss / scale, Dense(list(tensors))
            scale *= STEP
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])


class MixedBatched(Mixed):
    """The same of a program for several clients."""

    stacks = True
