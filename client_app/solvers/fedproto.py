"""FedProto, client half. Tan et al., AAAI 2022, arXiv 2105.00243, Algorithm 1.

l = CE(x, y) + lambda (1/f) |h(x) - C^(y)|^2, its mean over b;  after training C_i^(j) = mean h(x) over y = j

=========  ========================  =====================================================  ==================
symbol     variable                  meaning                                                where
=========  ========================  =====================================================  ==================
h(x)       features [K, b, f]        what the last linear layer reads                       here
C^(j)      ``prototypes``            global prototype of class j, if it has one             down
w_i C_i    sums over the examples    the client's prototypes by its weights, see the rule   up ``prototypes``
lambda     ``fedproto.lambda``       weight of the second term; 0 = local training alone    run config
=========  ========================  =====================================================  ==================

The distance is a mean over the f features, as in the authors' code, so that lambda does not depend on f; an
example whose class has no global prototype yet has no second term. Prototypes are of the trained model, in
evaluation mode, over all the client's training examples. Of a class with less than ``fedproto.least`` of them
nothing is sent.

``fedproto.predict = "prototype"`` measures with the nearest global prototype in place of the head; loss stays
the head's. Where there is no prototype yet, the head predicts.
"""

import torch

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import CHUNK, LocalTask
from client_app.training.programs import (
    Batch,
    LossAndGradient,
    Single,
    differentiated,
    leaves_of,
    losses_of,
)
from task.numerics.arrays import Arrays
from task.numerics.prototypes import COUNTS, FEATURES
from task.tasks.base import Task
from task.tasks.evaluate import BATCH
from task.wire import messages as wire

ABSENT = -1e9  # score of a class without a prototype


class FedProtoSolver(Solver, name="fedproto"):
    """SGD on the supervised loss and the distance to the global prototypes."""

    def begin(self, task: LocalTask) -> None:
        """Take the global prototypes."""
        table, device = self.arrays["prototypes"], task.examples.device
        self._global = torch.from_numpy(table[FEATURES]).to(device)
        self._has = torch.from_numpy(table[COUNTS] > 0).to(device)
        self._pulls = bool(self.config.fedproto.lambda_ and self._has.any())

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return losses and gradient of l; without a prototype they are those of plain SGD, to the bit."""
        if not self._pulls:
            return super().gradient(task, batch)
        program, leaves = task.program, leaves_of(task.params)
        h, logits = program.features(leaves, batch.x)
        each = losses_of(program.task, logits, batch)
        y = batch.y.clamp(min=0)  # padding
        away = (h - self._global[y]).square().mean(2)
        away = away.masked_fill(~self._has[y] | (batch.y < 0), 0.0)
        return differentiated((each + self.config.fedproto.lambda_ * away).sum(1) * batch.scale, leaves)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return the prototypes of the trained models, which stay."""
        return self.updates(task, stats, up={"prototypes": self._tables(task)})

    def _tables(self, task: LocalTask) -> list[Arrays]:
        """Return each client's table; one client after the other, so that none depends on another."""
        task.program.train(False)
        classes, width = self._global.shape
        tables: list[Arrays] = []
        for k in range(task.clients):
            rows = slice(int(task.examples.offsets[k]), int(task.examples.offsets[k + 1]))
            x, y = task.examples.x[rows], task.examples.y[rows]
            params = [p[k : k + 1] for p in task.params]
            sums = torch.zeros(classes, width, dtype=torch.float64, device=x.device)
            with torch.no_grad():
                for some, of in zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True):
                    h = task.program.features(params, some.unsqueeze(0))[0][0].double()
                    for j in sorted(set(of.tolist())):
                        sums[j] += h[of == j].sum(0)
            counts = torch.bincount(y, minlength=classes)
            counts[counts < self.config.fedproto.least] = 0
            sums[counts == 0] = 0.0
            if self.config.fedproto.weights == "clients":
                sums /= counts.clamp(min=1)[:, None]
                counts = (counts > 0).long()
            tables.append({FEATURES: sums.float().cpu().numpy(), COUNTS: counts.cpu().numpy()})
        return tables

    def measure(
        self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, task: Task
    ) -> tuple[dict[str, float], Arrays]:
        """Return what the head makes of test data, or where the run says so the nearest prototype."""
        found, sums = super().measure(model, x, y, task)
        table = self.arrays["prototypes"]
        if self.config.fedproto.predict == "head" or not table[COUNTS].any():
            return found, sums
        scores = nearest(model, table, x)
        count = int(found[wire.NUM_EXAMPLES])
        found["accuracy"] = float((scores.argmax(1) == y).sum()) / max(count, 1)
        return found, task.measures.sums(scores, y, count)


def nearest(model: torch.nn.Module, table: Arrays, x: torch.Tensor) -> torch.Tensor:
    """Return -|h(x) - C^(j)|^2 / f by class [N, C], float64; a class without a prototype is far away."""
    program = Single(model)
    params = [p.detach().unsqueeze(0) for p in model.parameters() if p.requires_grad]
    program.train(False)
    prototypes = torch.from_numpy(table[FEATURES]).to(x.device).double()
    with torch.no_grad():
        parts = [program.features(params, some.unsqueeze(0))[0][0] for some in torch.split(x, BATCH)]
    scores = -(torch.cat(parts).double()[:, None] - prototypes).square().mean(2)
    scores[:, torch.from_numpy(table[COUNTS] == 0).to(x.device)] = ABSENT
    return scores
