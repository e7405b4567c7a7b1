"""Adaptive local aggregation (ALA), in front of any solver. Zhang et al., AAAI 2023, arXiv 2212.01197.

Before local training a client does not overwrite its model with the global one, it moves towards it:

Theta^_i = Theta_i^{t-1} + (Theta^{t-1} - Theta_i^{t-1}) * [1 in the lower layers; W_i in the top p] (eq. 4)
W_i <- clip(W_i - eta grad_{Theta^_i} L * (Theta^{t-1} - Theta_i^{t-1}), 0, 1) (eq. 6)

===============  ====================  =======================================================  ==========
symbol           variable              meaning                                                  where
===============  ====================  =======================================================  ==========
Theta^{t-1}      task.received         global model                                             down
Theta_i^{t-1}    ``local-model``       what the client last sent up                             kept
W_i              ``ala-weights``       weights of the top p layers, from ones on                kept
                 ``ala-started``       whether the start phase is over                          kept
s                ``fedala.percent``    percent of the client's examples that W_i is learnt on   run config
===============  ====================  =======================================================  ==========

The solver behind sees Theta^_i as what it received: it starts there, and a proximal term pulls there. A
client that has trained in no round yet has the run's initial model as Theta_i, as in the authors' code. Where
the top p layers of Theta and Theta_i are equal, as in the run's first round, there is nothing to learn and
ALA is skipped. The first round in which it is not is the start phase: epochs over the s % until the losses
settle, or ``fedala.max-epochs``; later one epoch a round. As in the authors' code, an epoch's loss is that of
its last minibatch, the s % are consecutive examples (or ``sampling = "random"``), drawn again each round, and
minibatches come in their order. Other than there, a last minibatch of fewer than B examples counts, and
clients that sit a round out keep W and Theta_i (there all clients take part in ALA in every round).

Theta^_i is computed so that W = 1 gives Theta and W = 0 gives Theta_i, to the last bit. The lower layers do
not move while W_i is learnt, so what they make of the examples is computed once. Buffers are overwritten by
the received ones, and layers with two ways behave as in evaluation: nothing is drawn and no statistic moves.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from client_app.solvers.sgd import Finished
from client_app.stages.stage import Stage
from client_app.training.loop import LocalTask
from client_app.training.programs import Batch, Program, Single, Tensors
from client_app.training.stacked import Perceptron
from task.config.personal_sections import FedALAConfig
from task.features.ala_weights import WEIGHT
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.tasks.base import Task
from task.wire import messages as wire

CHUNK = 32  # examples that go through the lower layers at once; few, so that activations stay in the cache


@dataclass
class AdaptiveAggregation:
    """What ALA does in one round, for the clients of a cohort."""

    config: FedALAConfig
    top: Sequence[str]  # names of the shared parameters that have weights W, those of the last layers
    kept: Sequence[Mapping[str, Arrays]]  # by client
    rngs: Sequence[np.random.Generator]  # of each client: draw its s %
    initial: Arrays  # the run's initial model, at least its shared part

    def __post_init__(self) -> None:
        self._next: list[dict[str, Arrays]] = []

    def apply(self, task: LocalTask) -> None:
        """Let the task begin from Theta^_i, for each client i."""
        own = [dict(mine) for mine in task.own] or [{} for _ in self.kept]
        for k, kept in enumerate(self.kept):
            weights = kept.get("ala-weights") or {n: np.ones_like(task.received[n]) for n in self.top}
            started = "ala-started" in kept and bool(kept["ala-started"]["started"])
            local = kept.get("local-model", self.initial)
            if any(not np.array_equal(local[n], task.received[n]) for n in self.top):
                weights, mixed = self._learn(task, k, local, weights, started)
                own[k] |= mixed
                started = True
            flag = np.array(started, np.float32)
            self._next.append({"ala-weights": weights, "ala-started": {"started": flag}})
        task.start_from(own)

    def keep(self, finished: Finished) -> Finished:
        """Add to what each client keeps its W_i, and the model that it sends up."""
        return [
            (upload, keep | {"local-model": upload.arrays.get(wire.ARRAYS, {})} | mine)
            for (upload, keep), mine in zip(finished, self._next, strict=True)
        ]

    def _learn(
        self, task: LocalTask, k: int, local: Arrays, weights: Arrays, started: bool
    ) -> tuple[Arrays, Arrays]:
        """Return W_i and the top layers of Theta^_i."""
        device = task.examples.device
        theta = dict(zip(task.program.names, (p[k : k + 1] for p in task.params), strict=True))
        new = [theta[n] for n in self.top]
        old = [torch.tensor(local[n], device=device).unsqueeze(0) for n in self.top]
        W = [torch.tensor(weights[n], device=device).unsqueeze(0) for n in self.top]
        step = torch._foreach_sub(new, old)
        task.program.train(False)
        lower, upper = _halves(task.program.model, self.top)
        program, batches = _program(upper, task.program.task), self._batches(task, k, lower, theta)
        at = [program.names.index(n) for n in self.top]
        losses: list[float] = []
        while not losses or not (started or self._settled(losses)):
            for batch in batches:
                mixed = theta | dict(zip(self.top, _mix(old, new, W), strict=True))
                loss, gradient = program.gradient([mixed[n] for n in program.names], batch)
                grads = gradient.tensors()
                for w, i, away in zip(W, at, step, strict=True):
                    w.addcmul_(grads[i], away, value=-self.config.eta).clamp_(0.0, 1.0)
            losses.append(loss.item())
        return self._named(W), self._named(_mix(old, new, W))

    def _settled(self, losses: Sequence[float]) -> bool:
        """Return whether the start phase ends here."""
        window = self.config.window
        quiet = len(losses) > window and float(np.std(losses[-window:])) < self.config.threshold
        return quiet or len(losses) >= self.config.max_epochs

    def _batches(
        self, task: LocalTask, k: int, lower: nn.Module, theta: Mapping[str, torch.Tensor]
    ) -> list[Batch]:
        """Return this round's minibatches as they leave the lower layers."""
        examples = task.examples
        rows = self._slice(k, examples.sizes[k]) + int(examples.offsets[k])
        below = {n: _channels_last(theta[n][0]) for n, _ in lower.named_parameters() if n in theta}
        with torch.no_grad():
            parts = torch.split(examples.x[rows], CHUNK)
            h = torch.cat([functional_call(lower, below, (x,)) for x in parts])
        y, targets = examples.y[rows], examples.targets[rows.numpy()]
        batches, size = [], task.config.batch_size or len(rows)
        for i in range(0, len(rows), size):
            part = slice(i, i + size)
            scale = torch.tensor([1.0 / max(int(targets[part].sum()), 1)], device=h.device)
            batches.append(Batch(h[part].unsqueeze(0), y[part].unsqueeze(0), scale))
        return batches

    def _slice(self, k: int, n: int) -> torch.Tensor:
        """Return the rows that W_i is learnt on in this round."""
        size = max(int(n * self.config.percent / 100), 1)
        rng = self.rngs[k]
        if self.config.sampling == "random":
            return torch.from_numpy(rng.permutation(n)[:size])
        return torch.arange(size) + int(rng.integers(n - size, endpoint=True))

    def _named(self, tensors: Tensors) -> Arrays:
        return {n: t[0].cpu().numpy() for n, t in zip(self.top, tensors, strict=True)}


class ALA(Stage):
    """Lets the clients of a message start from Theta^_i."""

    names = ("ala",)

    adapts: bool = True

    def start(
        self, task: LocalTask, cohort: Sequence[str], kept: Sequence[Mapping[str, Arrays]], server_round: int
    ) -> None:
        """Mix the received model with each client's own."""
        config, top = self.node.config, self.node.parts().top
        rngs = [seeds.rng_for(config.seeds.train, seeds.ALA, server_round, c) for c in cohort]
        self._mixing = AdaptiveAggregation(config.fedala, top, kept, rngs, self.node.initial())
        self._mixing.apply(task)

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Keep W_i and what goes up, and add the mean of W_i if the run asks for it."""
        kept = self._mixing.keep(finished)
        if self.node.config.fedala.write_weights:
            for upload, keep in kept:
                W = np.concatenate([w.ravel() for w in keep["ala-weights"].values()])
                upload.scalars[WEIGHT.name] = float(W.mean(dtype=np.float64))
        return kept


def _mix(old: Tensors, new: Tensors, W: Tensors) -> Tensors:
    """Return old + (new - old) * W, which is exactly new where W = 1 and old where W = 0."""
    return [torch.lerp(*three) for three in zip(old, new, W, strict=True)]


def _halves(model: nn.Module, top: Collection[str]) -> tuple[nn.Module, nn.Module]:
    """Cut a chain of layers before the first that has weights W; another model stays whole."""
    if isinstance(model, nn.Sequential):
        owners = {name.partition(".")[0] for name in top}
        first = min(i for i, (name, _) in enumerate(model.named_children()) if name in owners)
        return model[:first], model[first:]
    whole = deepcopy(model)  # so that no gradient is computed that W does not need
    for name, parameter in whole.named_parameters():
        parameter.requires_grad_(name in top)
    return nn.Sequential(), whole


def _program(upper: nn.Module, task: Task) -> Program:
    """Return the fastest program for the layers with W, for one client."""
    if isinstance(upper, nn.Sequential):
        flat = nn.Sequential(OrderedDict([("flat", nn.Flatten()), *upper.named_children()]))
        if Perceptron.takes(flat) and task.plain:
            return Perceptron(flat, task)
    return Single(upper, task)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return a convolution's weights in the layout in which pooling on a CPU takes half the time.

    Not by ``contiguous``, which leaves those of one channel as they are.
    """
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
