"""A variational autoencoder of two perceptrons (Kingma and Welling 2014, arXiv 1312.6114)."""

import torch
from torch import nn

from task.tasks.elbo import SAMPLES, Posterior

NOISES = 250  # rows of the noise of a measurement, after which it starts again


class VAE(nn.Module):
    """p - h - (d + d) - h - p with ReLU, for inputs of p numbers from 0 to 1 and a code z of d numbers.

    In training z is drawn from torch's generator, which the run seeds for each client and round. A
    measurement takes fixed noise by the row's place in its batch, and so draws nothing.
    """

    noise: torch.Tensor

    def __init__(self, inputs: int, hidden: int = 128, latent: int = 8) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent)
        )
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, inputs))
        fixed = torch.randn(SAMPLES, NOISES, latent, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", fixed, persistent=False)

    def forward(self, x: torch.Tensor) -> Posterior:
        """Return what the model says of examples [B, ...]."""
        mean, log_var = self.encoder(x).chunk(2, 1)
        noise = self.noise[:, torch.arange(len(x), device=x.device) % NOISES]
        eps = torch.randn_like(mean) if self.training else noise[0]
        logits = self.decoder(mean + (0.5 * log_var).exp() * eps)
        return Posterior(logits, mean, log_var, noise, self.decoder)

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> torch.Tensor:
        """Return the pixels [count, p], from 0 to 1, of codes z ~ N(0, I)."""
        drawn = torch.randn(count, self.latent, generator=torch.Generator().manual_seed(seed))
        pixels: torch.Tensor = torch.sigmoid(self.decoder(drawn.to(self.noise.device)))
        return pixels
