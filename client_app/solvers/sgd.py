"""Plain local SGD, client half of FedAvg, and the base of every solver.

w <- w - eta_t grad l(w; b), for each batch b of each of E epochs.  McMahan et al., Algorithm 1, ClientUpdate.

A solver changes hooks of the one loop, the methods of `Solver` from `begin` on. It is built for each cohort
and round from what came down and what the clients kept; nothing else survives a round.

All tensors in hooks have the clients as their first axis, [K, ...], and numbers that differ by client are
lists of K, so that a hook is written once for a client alone and for a cohort trained as one program.
During the loop clients with fewer steps drop out of the end: ``task.params`` and ``task.memory`` are cut
with them, a solver's own attributes are not. ``task.start`` is [1, ...] and fits any K.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from client_app.training.loop import LocalTask, Terms, train
from client_app.training.programs import Batch, Dense, LossAndGradient, Tensors
from task.config.knobs import Config
from task.errors import ConfigError, WireError
from task.numerics.arrays import Arrays, only
from task.tasks.base import Task
from task.tasks.evaluate import measure
from task.wire import messages as wire

PerClient = Mapping[str, Mapping[str, Arrays]]
Finished = list[tuple[wire.ClientUpdate, dict[str, Arrays]]]
Gradients = Callable[[Any, LocalTask, Batch], LossAndGradient]  # the method of solvers
OURS = "client_app."  # with which the names of our modules begin
_NONE: Mapping[str, Sequence[Arrays]] = MappingProxyType({})


def _checked(gradient: Gradients) -> Gradients:
    """Return a solver's `gradient` that gives tensors to a user's class, and checks what that returns."""

    @wraps(gradient)
    def checked(self: Any, task: LocalTask, batch: Batch) -> LossAndGradient:
        found: Any = gradient(self, task, batch)
        if not self.own_gradient:
            return found  # type: ignore[no-any-return]
        where = f"gradient of {type(self).__name__}: expected (losses, gradient)"
        if not (isinstance(found, tuple) and len(found) == 2):
            raise ConfigError(f"{where}; got {type(found).__name__}")
        losses, values = found[0], found[1].tensors() if hasattr(found[1], "tensors") else found[1]
        got = [
            list(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__
            for t in (losses, *(values if isinstance(values, list | tuple) else (values,)))
        ]
        wanted = [[len(batch.x)], *(list(p.shape) for p in task.params)]
        if got != wanted:
            raise ConfigError(
                f"{where} as the loss of each client {wanted[0]} and a tensor for each parameter, of shapes "
                f"{wanted[1:]}; got {got[0]} and {got[1:]}"
            )
        return losses.detach(), Dense([t.detach() for t in values])

    return checked


@dataclass(eq=False)
class Solver:
    """Plain SGD; the base of every other solver."""

    name: ClassVar[str] = "sgd"  # what catalogue entries call it
    trains: ClassVar[bool] = True  # whether the loop takes local steps at all
    # Whether layers with two modes are in training mode; else nothing is drawn and no buffer moves.
    training: ClassVar[bool] = True
    adapts: ClassVar[bool] = False  # whether `personalise` needs the client's training data
    # Whether each `gradient` returns tensors, never factors of some: a user's own class has one of its own.
    own_gradient: ClassVar[bool] = False

    config: Config
    scalars: Mapping[str, float]  # the message's downward scalars: ``lr`` and those of the catalogue entry
    arrays: Mapping[str, Arrays]  # its downward records by field, ``arrays`` among them
    kept: Sequence[Mapping[str, Arrays]]  # of each client, by field; empty where it keeps nothing or is new
    per_client: Sequence[PerClient] = ()  # records for single clients, by record and name
    order: wire.TrainOrder | None = None  # the message, for the few solvers that need it

    def __init_subclass__(cls, **given: str | bool) -> None:
        """Take the name, and what is otherwise than in plain SGD."""
        for key, value in given.items():
            assert hasattr(cls, key), key
            setattr(cls, key, value)
        if "gradient" in vars(cls):
            cls.own_gradient |= not cls.__module__.startswith(OURS)
            cls.gradient = _checked(vars(cls)["gradient"])  # type: ignore[method-assign]

    def received(self, task: LocalTask, name: str) -> Tensors:
        """Return a downward record of the parameters as tensors [1, ...]."""
        device, record = task.examples.device, self.arrays[name]
        return [torch.tensor(record[n], device=device).unsqueeze(0) for n in task.program.names]

    def routed(self, name: str) -> list[Arrays]:
        """Return a downward record that differs by client, one for each.

        Raises:
            WireError: None came down for a client.
        """
        found = [next(iter(own[name].values()), None) for own in self.per_client]
        if None in found:
            raise WireError(f"message: expected a record {name!r} for each client; got none", name)
        return [arrays for arrays in found if arrays is not None]

    def remembered(self, task: LocalTask, name: str) -> Tensors:
        """Return a kept record of the parameters as tensors [K, ...]; zeros for a client that has none."""
        tensors = [torch.zeros_like(p, device="cpu") for p in task.params]
        for k, fields in enumerate(self.kept):
            for n, t in zip(task.program.names, tensors, strict=True):
                if name in fields:
                    t[k].copy_(torch.from_numpy(fields[name][n]))
        return [t.to(task.examples.device) for t in tensors]

    def begin(self, task: LocalTask) -> None:
        """Prepare from the received model before the first step; fill ``task.memory``."""

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Train, and return what the loop measured; ``task.params`` are what goes up afterwards.

        A solver with phases calls the loop several times.
        """
        return train(task, self)

    @_checked
    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the batch's losses [K] and gradient at ``task.params``, perhaps of another objective.

        A gradient may be a list of tensors that is parallel to ``task.params``.
        """
        return task.program.gradient(task.params, batch, task.frozen)

    @property
    def plain_gradient(self) -> bool:
        """Whether a step's gradient is that of the loss, so that the program may take the step itself."""
        kind = type(self)
        same = kind.gradient is Solver.gradient and kind.terms is Solver.terms
        return same and not self.config.sam.rho

    def terms(self, task: LocalTask) -> Terms:
        """Return linear terms (factor, tensors), such as mu w - mu w^t, to add to each batch gradient."""
        return []

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return what goes up and what is kept, for each client, once ``task.params`` are the w_k.

        `stats` are what the loop measured.
        """
        return self.updates(task, stats)

    def updates(
        self,
        task: LocalTask,
        stats: Sequence[Mapping[str, float]] = (),
        *,
        model: bool = True,
        up: Mapping[str, Sequence[Arrays]] = _NONE,
        scalars: Mapping[str, Sequence[float]] = MappingProxyType({}),
        keep: Mapping[str, Sequence[Arrays]] = _NONE,
    ) -> Finished:
        """Put together what `finish` returns, from sequences with an element for each client.

        With `model`, w_k goes up and its private part is kept. `up`, `scalars` and `keep` are further records
        and numbers by name.
        """
        finished: Finished = []
        made = task.program.lent if task.lends else task.program.states
        states = made(task.params) if model else [{}] * task.clients
        for k, (state, n) in enumerate(zip(states, task.num_examples, strict=True)):
            shared = {name: a for name, a in state.items() if name not in task.private}
            arrays = {wire.ARRAYS: shared} if shared or (model and wire.ARRAYS in self.arrays) else {}
            arrays |= {name: records[k] for name, records in up.items()}
            numbers = {wire.NUM_EXAMPLES: n, **(stats[k] if stats else {})}
            numbers |= {name: values[k] for name, values in scalars.items()}
            kept = {"personal": only(state, task.private)} if model and task.private else {}
            kept |= {name: records[k] for name, records in keep.items()}
            finished.append((wire.ClientUpdate(arrays, numbers), kept))
        return finished

    def personalise(self, task: LocalTask) -> None:
        """Make ``task.params``, in place, the client's own model as it is before local training.

        They are the received shared part and the kept private part. Nothing is kept afterwards.
        """

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return each client's own model after local training."""
        return task.states()

    def predictor(self, model: torch.nn.Module, task: LocalTask, k: int) -> torch.nn.Module:
        """Return what answers for client k: the module with its own model in it, or more around that."""
        return model

    def measure(
        self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, task: Task
    ) -> tuple[dict[str, float], Arrays]:
        """Return what `task.tasks.evaluate.measure` does, of one client's own model on its test data."""
        return measure(model, x, y, task=task)


def proximal(task: LocalTask, mu: float) -> Terms:
    """Return mu w - mu w^t, the terms of the gradient of mu/2 |w - w^t|^2."""
    return [(mu, task.params), (-mu, task.start)] if mu else []


class OwnModelSolver(Solver):
    """SGD that keeps the client's own model; a new client has the model that it starts from."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return what plain SGD does; keep the client's own model."""
        return self.updates(task, stats, keep={"personal": self.own_models(task)})

    def personalise(self, task: LocalTask) -> None:
        """Take the kept model."""
        starts = task.own or [{}] * task.clients
        task.load([fields.get("personal", start) for fields, start in zip(self.kept, starts, strict=True)])
