"""The variational autoencoder: KL and bounds by hand and by sampling, its gradient, its noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from task.errors import ConfigError
from task.models import build_model
from task.models.elbo import SAMPLES, Posterior, kl, neg_elbo, neg_iwae
from task.models.vae import VAE
from task.resolve.read import read_config
from task.tasks import task_of
from task.tasks.evaluate import measure
from task.tasks.kinds import make_task
from task.tasks.metrics import Measures, added

KEYS = {"model": "vae", "task": "reconstruction"}


def posterior(mean: Any, log_var: Any, logits: Any, decode: Any = None) -> Posterior:
    noise = torch.zeros(SAMPLES, len(mean), len(mean[0]))
    return Posterior(torch.tensor(logits), torch.tensor(mean), torch.tensor(log_var), noise, decode)


def test_kl_of_two_gaussians_by_hand() -> None:
    # (mu^2 + s^2 - 1 - ln s^2) / 2: (1 + 4 - 1 - ln 4) / 2, and 0 of the prior itself
    found = kl(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[math.log(4), 0.0], [0.0, 0.0]]))
    assert found.tolist() == pytest.approx([2 - math.log(2), 0.0])


def test_kl_is_the_mean_of_log_q_minus_log_p_over_samples() -> None:
    mean, log_var = torch.tensor([[0.7, -1.2]]), torch.tensor([[-0.5, 0.3]])
    q = torch.distributions.Normal(mean, (0.5 * log_var).exp())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        z = q.sample((200_000,))
    sampled = (q.log_prob(z) - torch.distributions.Normal(0.0, 1.0).log_prob(z)).sum(2).mean()
    assert float(kl(mean, log_var)) == pytest.approx(float(sampled), abs=0.02)


def test_bounds_by_hand() -> None:
    """Two pixels of probability 1/2 whatever z is: log p(x | z) = -2 ln 2."""
    found = posterior([[1.0]], [[0.0]], [[0.0, 0.0]], lambda z: torch.zeros(len(z), 2))
    x = torch.tensor([[[[1.0, 0.0]]]])
    assert neg_elbo(found, x).tolist() == pytest.approx([2 * math.log(2) + 0.5])
    # every eps is 0, so z = 1: log p(z) - log q(z | x) = -1/2
    assert neg_iwae(found, x).tolist() == pytest.approx([2 * math.log(2) + 0.5])


def test_the_tighter_bound_comes_near_to_the_marginal_likelihood() -> None:
    """p(x) of one pixel with logit z is 1/2 by symmetry; q = N(1, 1) is far from the true posterior."""
    noise = torch.randn(4000, 1, 1, generator=torch.Generator().manual_seed(3))
    found = Posterior(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1), noise, lambda z: z)
    assert float(neg_iwae(found, torch.ones(1, 1))) == pytest.approx(math.log(2), abs=0.02)


def test_the_loss_has_the_gradient_of_finite_differences() -> None:
    model = VAE(6, 5, 2).double().eval()
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = list(model.parameters())
    task = make_task("reconstruction", "elbo")
    gradient = torch.autograd.grad(task.total(model(x), x), parameters)
    for p, g in zip(parameters, gradient, strict=True):
        at, h = p.detach().view(-1), 1e-6
        value = float(at[0])
        sides = []
        for step in (h, -h):
            at[0] = value + step
            sides.append(float(task.total(model(x), x).detach()))
        at[0] = value
        assert float(g.view(-1)[0]) == pytest.approx((sides[0] - sides[1]) / (2 * h), rel=1e-5, abs=1e-6)


def test_the_model_has_the_parameters_of_its_description_and_keeps_its_noise_to_itself() -> None:
    model = build_model("vae", (1, 8, 8), 10, seed=1)
    assert sum(p.numel() for p in model.parameters()) == 19_792
    assert [n.split(".")[0] for n in model.state_dict()] == ["encoder"] * 4 + ["decoder"] * 4


def test_a_measurement_draws_nothing_and_its_sums_merge_exactly() -> None:
    model = build_model("vae", (1, 8, 8), 10, seed=1)
    x = torch.rand(500, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    task = task_of(read_config(KEYS), "classification", 10)
    before = torch.random.get_rng_state()
    found, sums = measure(model, x, x, task=task)
    assert torch.equal(torch.random.get_rng_state(), before)
    parts = [measure(model, x[i : i + 250], x[i : i + 250], task=task)[1] for i in (250, 0)]
    assert all(np.array_equal(added(parts)[name], sums[name]) for name in sums)
    values = task.measures.values(sums)
    assert values["neg-elbo"] == pytest.approx(found["loss"], rel=1e-6)
    assert isinstance(values["neg-iwae"], float)
    assert values["neg-iwae"] < found["loss"]
    assert measure(model, x, x, threads=2, task=task)[0] == found


def test_reconstruction_error_is_that_of_the_codes_mean() -> None:
    model = build_model("vae", (1, 2, 2), 10, seed=1).eval()
    x = torch.rand(3, 1, 2, 2)
    measures = Measures("reconstruction", ("mse",))
    mean = model.encoder(x)[:, : model.latent]
    with torch.no_grad():
        by_hand = (torch.sigmoid(model.decoder(mean)) - x.flatten(1)).square().mean()
        found = measures.values(measures.sums(model(x), x, 3))["mse"]
    assert found == pytest.approx(float(by_hand), rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "vae"}, 'expected "reconstruction"; got "classification"'),
        ({"model": "vae", "algorithm": "moon", "task": "reconstruction"}, "MOON"),
    ],
)
def test_a_run_that_cannot_train_it_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_of(read_config(keys), "classification", 10)


@pytest.mark.parametrize(("loss", "metrics"), [("elbo", ()), ("mse", ("neg-iwae",))])
def test_bounds_of_another_model_are_refused(loss: str, metrics: tuple[str, ...]) -> None:
    x = torch.rand(2, 4)
    task = make_task("reconstruction", loss, measures=Measures("reconstruction", metrics))
    with pytest.raises(ConfigError, match='expected model = "vae"'):
        task.check(nn.Linear(4, 4), x, x, 4)
