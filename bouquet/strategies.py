"""The strategies of `strategies`, for any Flower app: ``from bouquet.strategies import FedProx``.

They can be imported next to a user's own ``task.py``; see `bouquet.packages`.
"""

from bouquet.packages import claim

claim("task", "strategies")

import strategies  # noqa: E402 - ours, which has just been claimed

__all__ = list(strategies.__all__)
globals().update({name: getattr(strategies, name) for name in __all__})
