"""kNN-Per, client half. Marfoq, Neglia, Vidal and Kameni, ICML 2022, arXiv 2111.09360, section 3.

Training is FedAvg's. A client's own model keeps (z_i, y_i), z_i = f(x_i), of its training examples, and says

p(c | x) = lambda p_knn(c | x) + (1 - lambda) p_w(c | x),  p_w the softmax of the global model's logits
p_knn(c | x) = sum_{i in N_k(x), y_i = c} K_i / sum_{i in N_k(x)} K_i,  K_i = exp(-|f(x) - z_i|^2 / (d sigma))

=========  =========================  ====================================================  ==========
symbol     variable                   meaning                                               where
=========  =========================  ====================================================  ==========
f          features of the model      inputs of the last linear layer, d numbers            down
N_k(x)     ``knn-per.neighbours``     the k nearest training examples, Euclidean            run config
lambda     ``knn-per.lambda``         weight of their vote; 0 = the global model            run config
sigma      ``knn-per.scale``          of the kernel                                         run config
=========  =========================  ====================================================  ==========

Of equal distances the earlier example comes first; a client with fewer examples than k takes all. Nothing is
kept between rounds and nothing of it is sent: features are computed again by each model that is measured.
(The authors choose lambda by the accuracy on test data; here it is a key.)
"""

import torch
from torch import nn

from client_app.solvers.sgd import Solver
from client_app.training.loop import CHUNK, LocalTask
from task.config.personal_sections import KNNPerConfig
from task.models.layer_split import features_of


class KNNPerSolver(Solver, name="knn-per", adapts=True):
    """Plain SGD; the client's neighbours vote when a model is used."""

    def predictor(self, model: nn.Module, task: LocalTask, k: int) -> nn.Module:
        """Return the model with its neighbours' vote; without weight the model itself."""
        first, end = task.examples.offsets[k : k + 2].tolist()
        knobs = self.config.knn_per
        if not knobs.lambda_:
            return model
        return Neighbours(model, task.examples.x[first:end], task.examples.y[first:end], knobs)


class Neighbours(nn.Module):
    """A classifier that votes with the nearest of some examples; its outputs are log p(c | x) [N, C]."""

    def __init__(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, knobs: KNNPerConfig) -> None:
        super().__init__()
        self.model, self.knobs, self.y = model, knobs, y
        model.eval()
        with torch.no_grad():
            self.z = torch.cat([features_of(model, part, "kNN-Per")[0] for part in torch.split(x, CHUNK)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log p(c | x), float32."""
        z, logits = features_of(self.model, x, "kNN-Per")
        vote = votes(z, self.z, self.y, logits.shape[1], self.knobs.neighbours, self.knobs.scale)
        weight = self.knobs.lambda_
        p = weight * vote + (1.0 - weight) * torch.softmax(logits.double(), 1)
        return p.clamp(min=torch.finfo(torch.float32).tiny).log().float()


def votes(
    z: torch.Tensor, stored: torch.Tensor, y: torch.Tensor, classes: int, k: int, scale: float
) -> torch.Tensor:
    """Return p_knn [N, C] in float64, of features z [N, d] among stored ones [n, d] with labels y [n]."""
    a, b = z.double(), stored.double()
    apart = (a.square().sum(1, keepdim=True) + b.square().sum(1) - 2.0 * a @ b.T).clamp(min=0.0)
    near, who = apart.sort(dim=1, stable=True)
    near, who = near[:, :k], who[:, :k]
    weights = torch.softmax(-near / (z.shape[1] * scale), 1)
    return a.new_zeros(len(z), classes).scatter_add_(1, y[who], weights)
