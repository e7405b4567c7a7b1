"""Asynchronous runs in the order in which updates really arrive."""

from task.features.feature import Feature

FEATURE = Feature(
    "arrivals",
    place=120,
    active=lambda config, contract: contract.asynchronous and config.server.order_of_arrival == "real",
    unsimulated=lambda config: (
        '"order-of-arrival": expected "virtual" in a simulation, where only simulated devices have arrival '
        'times; got "real". Run it on a link (bouquet run --link KIT, bouquet federation); "bouquet replay '
        'RUN" then repeats it in the simulation'
    ),
)
