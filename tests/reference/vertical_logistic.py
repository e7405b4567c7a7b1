"""Vertical logistic regression, from the paper alone: its Taylor loss on the columns together, in float64.

Hardy et al. 2017, arXiv 1711.10677, equations 4 and 5: with theta the weights of all columns and y = -1 or 1,

    loss(theta) = 1/n sum_i ( log 2 - y_i theta^T x_i / 2 + (theta^T x_i)^2 / 8 )
    gradient    = 1/n sum_i ( theta^T x_i / 4 - y_i / 2 ) x_i
"""

from collections.abc import Sequence

import numpy as np


def loss(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Return the Taylor loss; x [n, p] and y [n] of -1 and 1."""
    total = 0.0
    for row, label in zip(x, y, strict=True):
        u = float(row @ theta)
        total += np.log(2.0) - label * u / 2 + u * u / 8
    return total / len(x)


def gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return its gradient [p]."""
    total = np.zeros_like(theta)
    for row, label in zip(x, y, strict=True):
        total += (float(row @ theta) / 4 - label / 2) * row
    return total / len(x)


def train(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray, batches: Sequence[np.ndarray], lr: float,
    momentum: float = 0.0, decay: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """Return the weights after a step for each batch, an array of row numbers."""
    velocity = np.zeros_like(theta)
    for rows in batches:
        velocity = momentum * velocity + gradient(theta, x[rows], y[rows]) + decay * theta
        theta = theta - lr * velocity
    return theta


def least_squares(x: np.ndarray, y: np.ndarray, decay: float = 0.0) -> np.ndarray:
    """Return the minimum in closed form: as y^2 = 1 the loss is (u - 2 y)^2 / 8 and a constant.

    (X^T X / 4 n + decay) theta = X^T y / 2 n
    """
    n, p = x.shape
    return np.linalg.solve(x.T @ x / (4 * n) + decay * np.eye(p), x.T @ y / (2 * n))
