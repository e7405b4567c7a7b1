"""FedPHP, client half. Li, Zhan, Shao, Li and Song, ECML PKDD 2021, doi 10.1007/978-3-030-86486-6_36.

w_k <- w_k - eta grad ((1 - lambda) CE(w_k; b) + lambda R(w_k, p_k; b)) from w^t on, for each batch b;  then
p_k <- mu_k p_k + (1 - mu_k) w_k,  mu_k = mu min(1, a_k / max(1, floor(C T)));  a_k <- a_k + 1

R = KD:   - sum_c q_c log softmax(w(x))_c,  q = softmax(p_k(x) / tau),  mean over the batch
R = MMD:  mean_{x,x'} [K(z, z') + K(y, y') - K(z, y') - K(y, z')],  z = f_w(x), y = f_{p_k}(x) the features,
          K(u, v) = sum_{i=0..4} exp(-|u - v|^2 / (b 2^i / 4)),  b the mean of |u - v|^2 over all pairs

=========  =========================  ==================================================  ==========
symbol     variable                   meaning                                             where
=========  =========================  ==================================================  ==========
w_k        task.params                global model after local training                   down, up
p_k        kept ``personal``          the inherited model, the client's own               kept
a_k        kept ``rounds``            rounds that the client took part in                 kept
lambda     ``fedphp.lambda``          weight of R; 0 = FedAvg                             run config
tau        ``fedphp.temperature``     of the teacher alone                                run config
mu         ``fedphp.mu``              largest share that p_k keeps; 0 = p_k is w_k        run config
C T        fraction-train, rounds     rounds that a client takes part in, about           run config
=========  =========================  ==================================================  ==========

b and p_k get no gradient. p_k is in evaluation mode, so that its outputs or features are computed once,
before the first step. Buffers are averaged into p_k like parameters; integers are rounded. A client's own
model is p_k.
A client that is new, or lost its state, begins with p_k = w^t (in the authors' code with the run's initial
model, an untrained teacher); one that is not selected keeps p_k, and a_k counts its own rounds only.
"""

from itertools import pairwise

import numpy as np
import torch

from client_app.solvers.fedfomo import mixture
from client_app.solvers.sgd import Finished, OwnModelSolver
from client_app.training.loop import CHUNK, LocalTask
from client_app.training.programs import Batch, LossAndGradient, differentiated, leaves_of, losses_of
from task.numerics.arrays import Arrays

WIDTHS = [0.25, 0.5, 1.0, 2.0, 4.0]  # of the kernels, in units of b


class FedPHPSolver(OwnModelSolver, name="fedphp"):
    """SGD on the supervised loss and on what the inherited model teaches."""

    def begin(self, task: LocalTask) -> None:
        """Compute what the inherited models make of the clients' examples."""
        starts = task.own or [{}] * task.clients
        pairs = zip(self.kept, starts, strict=True)
        self._inherited = [task.received | fields.get("personal", start) for fields, start in pairs]
        self._rounds = [float(fields.get("rounds", {"one": [0.0]})["one"][0]) for fields in self.kept]
        if self.config.fedphp.lambda_:
            self._lessons = self._teach(task)

    def _teach(self, task: LocalTask) -> torch.Tensor:
        """Return q, or the features of p_k, of all examples."""
        knobs, program, found = self.config.fedphp, task.program, []
        program.train(False)
        with torch.no_grad():
            for (first, end), p in zip(
                pairwise(task.examples.offsets.tolist()), self._inherited, strict=True
            ):
                params = program.load(p, 1)
                for x in torch.split(task.examples.x[first:end], CHUNK):
                    if knobs.transfer == "kd":
                        logits = program.logits(params, x.unsqueeze(0))[0]
                        found.append(torch.softmax(logits / knobs.temperature, 1))
                    else:
                        found.append(program.features(params, x.unsqueeze(0))[0][0])
        task.load(task.own)
        return torch.cat(found)

    def gradient(self, task: LocalTask, batch: Batch) -> LossAndGradient:
        """Return the loss and its gradient."""
        weight, program = self.config.fedphp.lambda_, task.program
        if not weight:
            return program.gradient(task.params, batch)
        assert batch.rows is not None
        chosen = self._lessons.index_select(0, batch.rows.flatten())
        lessons = chosen.view(*batch.rows.shape, *chosen.shape[1:])
        leaves = leaves_of(task.params)
        if self.config.fedphp.transfer == "kd":
            logits = program.logits(leaves, batch.x)
            each = -(lessons * torch.log_softmax(logits, 2)).sum(2)
            taught = each.masked_fill(batch.y < 0, 0.0).flatten(1).sum(1) * batch.scale
        else:
            z, logits = program.features(leaves, batch.x)
            taught = mmd(z, lessons, batch.counting())
        own = losses_of(program.task, logits, batch)
        return differentiated((1.0 - weight) * own.sum(1) * batch.scale + weight * taught, leaves)

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return w_k; keep p_k and a_k."""
        server = self.config.server
        most = max(1, int(server.fraction_train * server.num_server_rounds + 1e-9))
        shares = [self.config.fedphp.mu * min(1.0, a / most) for a in self._rounds]
        trained = zip(task.states(), self._inherited, shares, strict=True)
        self._inherited = [mixture(w, {"p": p}, {"p": mu}) for w, p, mu in trained]
        rounds = [{"one": np.array([a + 1.0], np.float32)} for a in self._rounds]
        return self.updates(task, stats, keep={"personal": self._inherited, "rounds": rounds})

    def own_models(self, task: LocalTask) -> list[Arrays]:
        """Return the p_k, with the present round in them."""
        return self._inherited


def mmd(z: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return each client's squared maximum mean discrepancy [K] of features z and y [K, b, d].

    `rows` [K, b] says which of them count. The estimate is the biased one.
    """
    both = torch.cat([z, y], 1)
    apart = (both.unsqueeze(2) - both.unsqueeze(1)).square().sum(3)  # [K, 2b, 2b]
    n = rows.sum(1).to(z.dtype)
    mask = torch.cat([rows, rows], 1).to(z.dtype)
    pairs = mask.unsqueeze(2) * mask.unsqueeze(1)
    with torch.no_grad():
        width = (apart * pairs).sum((1, 2)) / (2 * n * (2 * n - 1)).clamp(min=1)
        width = torch.where(width > 0, width, torch.ones_like(width)).view(-1, 1, 1)
    kernel = torch.stack([torch.exp(-apart / (width * w)) for w in WIDTHS]).sum(0)
    sign = torch.cat([mask.new_ones(z.shape[1]), -mask.new_ones(y.shape[1])])
    return (kernel * pairs * sign.view(1, -1, 1) * sign).sum((1, 2)) / n.square().clamp(min=1)
