"""Distances between two sets of examples, given by features [N, d].

The Frechet distance of two Gaussians with means mu and covariances Sigma (Dowson and Landau 1982)::

    |mu_1 - mu_2|^2 + tr(Sigma_1 + Sigma_2 - 2 (Sigma_1^1/2 Sigma_2 Sigma_1^1/2)^1/2)

Density and coverage (Naeem et al. 2020, arXiv 2002.09797) go by balls B_i around the N real examples X_i that
reach to the k-th nearest other real example::

    density  = 1 / (k M) sum_j sum_i [Y_j in B_i]   of M generated examples Y_j; about 1 if they are alike
    coverage = 1 / N sum_i [some Y_j in B_i]        0 to 1; what is never drawn lowers it
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float64]  # [N, d]
NEIGHBOURS = 5  # k


class Nearness(NamedTuple):
    """Distances between generated and real examples."""

    frechet: float
    density: float
    coverage: float


def nearness(real: Features, generated: Features, k: int = NEIGHBOURS) -> Nearness:
    """Return all three measures; `real` needs more than k rows, and both at least two."""
    return Nearness(frechet(real, generated), *density_and_coverage(real, generated, k))


def frechet(first: Features, second: Features) -> float:
    """Return the Frechet distance of Gaussians with the sets' means and covariances (by N - 1)."""
    shift = first.mean(0) - second.mean(0)
    one, two = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (first, second))
    root = _root(one)
    # The product Sigma_1 Sigma_2 has the eigenvalues of this symmetric matrix.
    shared = np.sqrt(np.linalg.eigvalsh(root @ two @ root).clip(0)).sum()
    return float(max(shift @ shift + np.trace(one) + np.trace(two) - 2 * shared, 0.0))


def _root(covariance: Features) -> Features:
    """Return the symmetric square root of a positive semidefinite matrix."""
    values, vectors = np.linalg.eigh(covariance)
    root: Features = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    return root


def density_and_coverage(real: Features, generated: Features, k: int = NEIGHBOURS) -> tuple[float, float]:
    """Return density and coverage of generated examples among real ones."""
    from sklearn.metrics import pairwise_distances
    from sklearn.neighbors import NearestNeighbors

    # A real example is not its own neighbour.
    radii = NearestNeighbors(n_neighbors=k).fit(real).kneighbors()[0][:, -1]
    within = pairwise_distances(generated, real) <= radii
    return float(within.sum() / (k * len(generated))), float(within.any(0).mean())
