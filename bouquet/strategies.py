"""The strategies, for your own Flower app: ``from bouquet.strategies import FedProx``.

Some work with any Flower ClientApp, such as FedProx and Krum, the rest with Bouquet's: the stub of
`strategies` says at each which, and ``docs/howto/extend.md`` lists the first. They can be imported next to a
user's own ``task.py``; see `bouquet.packages`.
"""

from bouquet.packages import claim

claim("task", "strategies")

import strategies  # noqa: E402 - ours, which has just been claimed

__all__ = list(strategies.__all__)
globals().update({name: getattr(strategies, name) for name in __all__})
