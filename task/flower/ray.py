"""Flower's own simulation, whose workers are Ray's."""

import sys
from typing import Any


def in_simulation() -> bool:
    """Return whether this process is a process of Flower's own simulation."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
