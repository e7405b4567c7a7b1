"""Plain local SGD, client half of FedAvg; and what every solver is.

w <- w - eta_t grad l(w; b), for each batch b of each of E epochs.  McMahan et al., Algorithm 1, ClientUpdate.

A solver has up to three hooks of the one loop, `begin`, `correct` and `finish`. It is built anew for each
client and round from what came down and what the client kept; nothing else survives a round.
"""

from __future__ import annotations

from collections.abc import Mapping

from client_app.loop import LocalTask, Tensors
from task import wire
from task.arrays import Arrays, state_of
from task.config import Config


class Solver:
    """Plain SGD; the base of every other solver.

    Args:
        config: The run.
        scalars: The message's downward scalars (``lr`` and those of the catalogue entry).
        arrays: The message's downward array records by field, ``arrays`` among them.
        kept: What the client kept, by field of the entry; empty if this client keeps nothing or is new.
    """

    trains: bool = True
    """Whether the loop takes local steps at all."""

    def __init__(
        self,
        config: Config,
        scalars: Mapping[str, float],
        arrays: Mapping[str, Arrays],
        kept: Mapping[str, Arrays],
    ) -> None:
        self.config = config
        self.scalars = scalars
        self.arrays = arrays
        self.kept = kept

    def begin(self, task: LocalTask) -> None:
        """Look at the received model before the first step."""

    def correct(self, task: LocalTask, grads: Tensors) -> None:
        """Change the batch gradient in place before the step; runs without autograd."""

    def finish(self, task: LocalTask, stats: dict[str, float]) -> tuple[wire.Upload, dict[str, Arrays]]:
        """Return what goes up and what the client keeps.

        Args:
            task: The training that was done; its model holds w_k.
            stats: What the loop measured.
        """
        scalars = {wire.NUM_EXAMPLES: task.num_examples, **stats}
        return wire.Upload({wire.ARRAYS: state_of(task.model)}, scalars), {}


def named(task: LocalTask, tensors: Tensors) -> Arrays:
    """Return tensors that are parallel to the parameters as arrays under the parameters' names."""
    names = [name for name, p in task.model.named_parameters() if p.requires_grad]
    return {n: t.detach().cpu().numpy() for n, t in zip(names, tensors, strict=True)}
