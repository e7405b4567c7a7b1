"""FedMD, client half. Li and Wang 2019, arXiv 1910.03581, Algorithm 1.

Pretrain: w <- w - eta_t grad CE(x, y), over batches of public examples, before a client's first training
Digest:   w <- w - eta_d grad (1/bC) sum_b sum_c |f(x)_c - f~(x)_c|, over batches of the public examples
Revisit:  w <- w - eta_t grad CE(x, y), E epochs of the client's own examples;  then f_k(x) goes up

========  =======================  ==========================================================  ===============
symbol    variable                 meaning                                                     where
========  =======================  ==========================================================  ===============
x         task.public              public examples [P, ...], which every party has             here
f~        ``consensus``            mean logits of the last round's clients, if there are any   down
f_k       ``logits`` [P, C]        logits of the trained model, in evaluation mode             up
eta_d     ``fedmd.digest-lr``      rate of the digest, which is plain SGD; 0 = eta_t           run config
          ``fedmd.digest-epochs``  passes over the public examples                             run config
y         task.public              labels of them, read by ``fedmd.pretrain-epochs`` passes       here
========  =======================  ==========================================================  ===============

The paper's rounds begin with Communicate, ours end with it, so that a round is one exchange: the order of the
steps is the same from the second round on, and in the first there is no consensus to digest. All clients of
a round take the public examples in one order, and so do all that pretrain. The paper's models converge on the
public labels first; here ``fedmd.pretrain-epochs`` says how far, by plain SGD at the rate of the client's
first round.

A difference that is not above what rounding makes, `ROUNDING`, counts as none: the slope of |.| is as large
for it as for any. So a client that is alone in a round digests its own logits to the bit, and stays.
"""

import numpy as np
import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import CHUNK, LocalTask
from client_app.training.programs import Batch, Tensors, leaves_of
from task.datasets.public import PublicExamples
from task.errors import StateError
from task.numerics import seeds
from task.numerics.arrays import Arrays

ROUNDING = 1e-5  # of 1 + |f~|


class FedMDSolver(Solver, name="fedmd"):
    """SGD towards the consensus on public examples, then on the client's own."""

    def run(self, task: LocalTask) -> list[dict[str, float]]:
        """Pretrain new clients, digest, then revisit; the returned measures are those of the revisit."""
        if self.config.fedmd.pretrain_epochs:
            self._pretrain(task)
        consensus = self.arrays["consensus"]
        if consensus["clients"][0] > 0:
            self._digest(task, torch.from_numpy(consensus["logits"]).to(task.examples.device))
        return super().run(task)

    def _pretrain(self, task: LocalTask) -> None:
        """Train the models of clients that never trained before on the public labels."""
        new = [k for k, fields in enumerate(self.kept) if not fields]
        if not new:
            return
        public, program = _public(task), task.program
        assert public.y is not None
        device = task.examples.device
        x, y, rows_of = public.x.to(device), public.y.to(device), torch.tensor(new, device=device)
        alone = len(new) == task.clients  # a program of one module knows only the tensors in place
        params = task.params if alone else [p[rows_of] for p in task.params]
        rng = seeds.rng_for(self.config.seeds.train, seeds.PUBLIC, 0)
        program.train(True)
        for _ in range(self.config.fedmd.pretrain_epochs):
            order = torch.from_numpy(rng.permutation(len(x))).to(device)
            for rows in torch.split(order, task.config.batch_size or len(x)):
                some, labels = (
                    a[rows].unsqueeze(0).expand(len(new), *[-1] * a.dim()).contiguous() for a in (x, y)
                )
                batch = Batch(some, labels, torch.full((len(new),), 1 / len(rows), device=device))
                program.gradient(params, batch)[1].add_to(params, -task.lr)
        if not alone:
            for p, trained in zip(task.params, params, strict=True):
                p[rows_of] = trained

    def _digest(self, task: LocalTask, consensus: torch.Tensor) -> None:
        """Move the models towards the consensus, all by batches of the same examples."""
        x, program = _public(task).x.to(task.examples.device), task.program
        lr = self.config.fedmd.digest_lr or task.lr
        server_round = self.order.round if self.order else 0
        rng = seeds.rng_for(self.config.seeds.train, seeds.PUBLIC, server_round)
        program.train(True)
        size = task.config.batch_size or len(x)
        for _ in range(self.config.fedmd.digest_epochs):
            order = torch.from_numpy(rng.permutation(len(x))).to(x.device)
            for rows in torch.split(order, size):
                leaves = leaves_of(task.params)
                batch = x[rows].unsqueeze(0).expand(task.clients, -1, *x.shape[1:])
                loss = distance(program.logits(leaves, batch), consensus[rows]).sum()
                gradients = torch.autograd.grad(loss, leaves)
                with torch.no_grad():
                    torch._foreach_add_(task.params, gradients, alpha=-lr)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the trained models' logits of the public examples; the models stay."""
        x, tables = _public(task).x.to(task.examples.device), list[Arrays]()
        task.program.train(False)
        for k in range(task.clients):
            params: Tensors = [p[k : k + 1] for p in task.params]
            with torch.no_grad():
                parts = [task.program.logits(params, some.unsqueeze(0))[0] for some in torch.split(x, CHUNK)]
            logits = torch.cat(parts).float().cpu().numpy()
            tables.append({"logits": logits, "clients": np.ones(1, np.int64)})
        return self.updates(task, stats, up={"logits": tables})


def distance(logits: torch.Tensor, consensus: torch.Tensor) -> torch.Tensor:
    """Return by client the mean of |f - f~| over examples and classes, differentiable, from [K, b, C]."""
    away = (logits - consensus).abs()
    return away.masked_fill(away <= ROUNDING * (1 + consensus.abs()), 0.0).mean((1, 2))


def _public(task: LocalTask) -> PublicExamples:
    if task.public is None:
        raise StateError("FedMD: expected public examples; the task has none")
    return task.public
