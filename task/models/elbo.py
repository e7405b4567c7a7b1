"""The evidence lower bound of a variational autoencoder: its loss and two metrics, in nats an example.

Kingma and Welling 2014, arXiv 1312.6114, equations 3 and 10, for a Bernoulli decoder; the tighter bound is
that of Burda, Grosse and Salakhutdinov 2016, arXiv 1509.00519, equation 8. Lower is better in all three.

==============  ========================  ================================================================
symbol          variable                  meaning
==============  ========================  ================================================================
mu, sigma^2     ``mean, log_var.exp()``   of q(z | x), a Gaussian with independent components
z               ``mean + sigma * eps``    eps ~ N(0, I): one sample an example in training
-log p(x | z)   ``_surprise``             binary cross-entropy, summed over the pixels
KL              `kl`                      of q(z | x) from p(z) = N(0, I), in closed form
==============  ========================  ================================================================

Grey pixels are not binary: with x between 0 and 1 the numbers can be compared between runs, but not with
those of binarised images in the literature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from task.errors import ConfigError

SAMPLES = 64  # of z for the tighter bound


class Posterior(NamedTuple):
    """What a variational autoencoder says of B examples."""

    logits: torch.Tensor  # of the pixels [B, p], of one z ~ q(z | x) an example
    mean: torch.Tensor  # mu [B, d]
    log_var: torch.Tensor  # log sigma^2 [B, d]
    noise: torch.Tensor  # eps of a measurement [SAMPLES, B, d], the same in every run; the first one is z's
    decode: Callable[
        [torch.Tensor], torch.Tensor
    ]  # z [B, d] -> logits [B, p], of the module's present values

    def reconstruction(self) -> torch.Tensor:
        """Return the pixels [B, p], from 0 to 1, that the mean of q(z | x) stands for."""
        return torch.sigmoid(self.decode(self.mean))


def neg_elbo(outputs: Any, y: torch.Tensor) -> torch.Tensor:
    """Return -ELBO of each example, [B].

    Raises:
        ConfigError: The outputs are not those of a variational autoencoder.
    """
    found = _posterior(outputs)
    return _surprise(found.logits, y) + kl(found.mean, found.log_var)


def kl(mean: torch.Tensor, log_var: torch.Tensor) -> torch.Tensor:
    """Return KL(N(mu, sigma^2) || N(0, I)) of each row: 1/2 sum (mu^2 + sigma^2 - 1 - log sigma^2)."""
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)


def neg_iwae(outputs: Any, y: torch.Tensor) -> torch.Tensor:
    """Return -log mean_s p(x, z_s) / q(z_s | x) of each example over `SAMPLES` samples, [B].

    Raises:
        ConfigError: As of `neg_elbo`.
    """
    found = _posterior(outputs)
    deviation, weights = (0.5 * found.log_var).exp(), []
    for eps in found.noise:
        z = found.mean + deviation * eps
        # log p(z) - log q(z | x); both have the same constant
        prior = 0.5 * (eps.square() + found.log_var - z.square()).sum(1)
        weights.append(prior - _surprise(found.decode(z), y))
    return math.log(len(weights)) - torch.stack(weights).logsumexp(0)


def _surprise(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return binary_cross_entropy_with_logits(logits, y.flatten(1), reduction="none").sum(1)


def _posterior(outputs: Any) -> Posterior:
    if isinstance(outputs, Posterior):
        return outputs
    raise ConfigError(
        'run-config keys "loss" and "metrics": elbo, neg-elbo and neg-iwae are of a variational autoencoder; '
        f'expected model = "vae", or a model that returns task.models.elbo.Posterior; got outputs of type '
        f"{type(outputs).__name__}"
    )
