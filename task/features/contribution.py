"""The value of each client's update, measured by the server."""

from task.features.feature import Feature

FEATURE = Feature("contribution", lambda config, _contract: config.contribution.measure != "none")
