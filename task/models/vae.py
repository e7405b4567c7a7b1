"""A variational autoencoder of two perceptrons (Kingma and Welling 2014, arXiv 1312.6114).

With conditions it is that of Sohn, Lee and Yan 2015 (NeurIPS, "Learning structured output representation"),
whose q(z | x, c) and p(x | z, c) are given a condition c, with p(z) = N(0, I) for all of them.
"""

from functools import partial

import torch
from torch import nn

from task.models.elbo import SAMPLES, Posterior

NOISES = 250  # rows of the noise of a measurement, after which it starts again


class VAE(nn.Module):
    """p - h - (d + d) - h - p with ReLU, for inputs of p numbers from 0 to 1 and a code z of d numbers.

    With `conditions` > 0, each input ends with a one-hot condition c of that length, which the encoder reads
    with the pixels, and the decoder after z. In training z is drawn from torch's generator, which the run
    seeds for each client and round. A measurement takes fixed noise by the row's place in its batch, and so
    draws nothing.
    """

    noise: torch.Tensor

    def __init__(self, inputs: int, hidden: int = 128, latent: int = 8, conditions: int = 0) -> None:
        super().__init__()
        self.inputs, self.latent, self.conditions = inputs, latent, conditions
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs + conditions, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent + conditions, hidden), nn.ReLU(), nn.Linear(hidden, inputs)
        )
        fixed = torch.randn(SAMPLES, NOISES, latent, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", fixed, persistent=False)

    def forward(self, x: torch.Tensor) -> Posterior:
        """Return what the model says of examples [B, ...], or [B, p + C] with C conditions."""
        mean, log_var = self.encoder(x).chunk(2, 1)
        noise = self.noise[:, torch.arange(len(x), device=x.device) % NOISES]
        eps = torch.randn_like(mean) if self.training else noise[0]
        decode = partial(self.decode, condition=x.flatten(1)[:, self.inputs :])
        return Posterior(decode(mean + (0.5 * log_var).exp() * eps), mean, log_var, noise, decode)

    def decode(self, z: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, p] of codes [B, d] under conditions [B, C]."""
        logits: torch.Tensor = self.decoder(torch.cat([z, condition], 1) if self.conditions else z)
        return logits

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0, condition: torch.Tensor | None = None) -> torch.Tensor:
        """Return pixels [count, p], from 0 to 1, of codes z ~ N(0, I); `condition` is [count, C]."""
        drawn = torch.randn(count, self.latent, generator=torch.Generator().manual_seed(seed))
        device = self.noise.device
        given = torch.zeros(count, 0) if condition is None else condition
        return torch.sigmoid(self.decode(drawn.to(device), given.to(device)))
