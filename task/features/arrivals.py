"""Asynchronous runs in the order in which updates really arrive."""

from task.features.feature import Feature
from task.features.refusals import Setting

_REAL = Setting("order-of-arrival", lambda c: c.server.order_of_arrival == "real")

FEATURE = Feature(
    "arrivals",
    place=120,
    active=lambda config, contract: contract.asynchronous and _REAL.on(config),
    stock_loops=(((_REAL,), 'by "order-of-arrival" its orders outlive their round'),),
)
