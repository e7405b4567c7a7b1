"""Homomorphic encryption of sums."""

from task.catalogue.encryption import with_encryption
from task.features.feature import Feature

FEATURE = Feature(
    "encryption",
    place=100,
    active=lambda config, _: config.server.he,
    adds=lambda _, contract: with_encryption(contract),
)
