"""How unlike the clients' gradients are."""

from task.features.feature import Feature

FEATURE = Feature("dissimilarity", lambda config, _contract: config.server.gradient_dissimilarity)
