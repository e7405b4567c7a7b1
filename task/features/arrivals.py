"""Asynchronous runs in the order in which updates really arrive."""

from task.features.feature import Feature

FEATURE = Feature(
    "arrivals",
    place=120,
    active=lambda config, contract: contract.asynchronous and config.server.order_of_arrival == "real",
)
