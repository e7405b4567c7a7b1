"""Differential privacy: the grid that updates are clipped to, noise from a secret, and the accounting."""
