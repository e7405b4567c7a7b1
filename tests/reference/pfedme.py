"""pFedMe: Dinh et al., NeurIPS 2020, arXiv 2006.08848, Algorithm 1.

Client: w_i <- w^t, theta <- w^t. For each of E epochs, for each batch B:
        theta ~ argmin h(theta) = f(theta; B) + lambda/2 |theta - w_i|^2: K steps from the last theta,
                theta <- theta - inner_lr (grad f(theta; B) + lambda (theta - w_i))
        w_i <- w_i - eta lambda (w_i - theta)
Server: w^{t+1} = (1 - beta) w^t + beta mean of the w_i; the paper's mean is uniform
"""

from dataclasses import dataclass

from tests.reference.driver import Reference, Round
from tests.reference.mlp import Client, Params, gradient, plus

KNOBS = {"pfedme__lambda": 4.0, "pfedme__inner_lr": 0.1, "pfedme__steps": 3, "learning_rate": 0.1}


@dataclass
class PFedMe(Reference):
    """steps = K; a client without a theta is evaluated with w^t."""

    algorithm, model = "pfedme", "mlp"
    active = {"pfedme.lambda": 2.0, "pfedme.inner-lr": 0.1}
    cases = {
        "in a stack": KNOBS | {"num_server_rounds": 4},
        "alone": KNOBS | {"stack": 1, "nodes": 2},
        "half a step of the server": KNOBS | {"pfedme__beta": 0.5},
        "beyond the mean, stragglers": KNOBS | {"pfedme__beta": 1.4, "stragglers": 0.7},
        "one batch": KNOBS | {"batch_size": 0, "pfedme__steps": 1},
    }
    keys = {"lam": "pfedme.lambda"}

    lam: float = 15.0
    steps: int = 5
    inner_lr: float = 0.01
    beta: float = 1.0
    uniform: bool = True

    def begin(self) -> None:
        self.theta: dict[Client, Params] = {}

    def round(self, r: Round) -> None:
        trained = {}
        for k in r.cohort:
            x, y = r.data[k]
            w_i, theta = self.w, self.w
            for rows in r.steps(k):
                for _ in range(self.steps):
                    g = plus(gradient(theta, x[rows], y[rows]), plus(theta, w_i, -1.0), self.lam)
                    theta = plus(theta, g, -self.inner_lr)
                w_i = plus(w_i, plus(w_i, theta, -1.0), -r.eta * self.lam)
            self.theta[k], trained[k] = theta, w_i
        mean = r.mean(trained, plain=self.uniform)
        self.w = plus(self.w, plus(mean, self.w, -1.0), self.beta)

    def personal(self, k: Client) -> Params:
        return self.theta.get(k, self.w)

    def kept(self) -> dict[str, dict[Client, Params]]:
        return {"personal": self.theta}
