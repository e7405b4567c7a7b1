"""Defences of a party against leakage by embeddings and gradients (docs/howto/vertical.md says against whom).

Max-norm: each row's gradient g_i becomes g_i (1 + sigma_i xi), xi ~ N(0, 1), with sigma_i =
sqrt(|g_max|^2 / |g_i|^2 - 1), so that all rows of a batch have an expected square norm of |g_max|^2 and their
norms no longer tell the classes apart; their directions still do.

Gaussian: noise of a total deviation of ``vertical.noise`` |g_max| on each row.

NoPeek (Vepakomma et al. 2020, arXiv 2008.09161): alpha dCor(X, A) in the party's loss makes its embeddings
depend less on its inputs.

What protects is never drawn from a run's seed.
"""

import secrets

import torch

from task.config.algorithm_sections import VerticalConfig


def defended(gradients: torch.Tensor, config: VerticalConfig) -> torch.Tensor:
    """Return the gradients [b, c] of a batch's rows as they leave the party with the labels."""
    if config.defence == "none" or not gradients.numel():
        return gradients
    generator = torch.Generator(device=gradients.device)
    generator.manual_seed(secrets.randbits(63))
    norms = gradients.norm(dim=1, keepdim=True)
    largest = norms.max()
    if config.defence == "gaussian":
        deviation: torch.Tensor = config.noise * largest / gradients.shape[1] ** 0.5
        noise: torch.Tensor = torch.empty_like(gradients).normal_(generator=generator)
        return gradients + deviation * noise
    ratio = torch.where(norms > 0, largest / norms, torch.ones_like(norms))
    sigma = (ratio.square() - 1).clamp_min(0).sqrt()
    drawn: torch.Tensor = torch.empty_like(norms).normal_(generator=generator)
    return gradients * (1 + sigma * drawn)


def dcor(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return the distance correlation of samples x [b, p] and a [b, c], from 0 to 1."""

    def centred(values: torch.Tensor) -> torch.Tensor:
        # The root of zero, of a row from itself, has no gradient.
        distances = (values[:, None] - values[None]).square().sum(-1).clamp_min(1e-12).sqrt()
        rows = distances.mean(0)
        return distances - rows[:, None] - rows[None] + distances.mean()

    one, two = centred(x), centred(a)
    both, own, other = (one * two).mean(), one.square().mean(), two.square().mean()
    found: torch.Tensor = (both.clamp_min(0) / (own * other).sqrt().clamp_min(1e-12)).clamp_min(1e-12).sqrt()
    return found
