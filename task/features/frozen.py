"""The frozen part of the model, which does not travel with it.

Whether a model has one, its code says (``requires_grad = False``) or the run-config key ``trainable``.
"""

from task.features.feature import Feature
from task.references import is_reference

FEATURE = Feature(
    "frozen",
    place=5,
    active=lambda config, _: bool(config.trainable) or is_reference(config.model),
)
