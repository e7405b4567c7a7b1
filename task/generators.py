"""The global random generators of Python, NumPy and torch, which only user code seeds or draws from."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

State = dict[str, Any]  # of each generator, by the module that has it
_SEED = 67280421310721  # the same in every process: torch's own at its start


def state_of_all() -> State:
    """Return the states of those generators whose modules are imported."""
    found: State = {"random": random.getstate(), "numpy": np.random.get_state()}
    if torch := sys.modules.get("torch"):
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_all(state: State) -> None:
    """Set the generators to states that `state_of_all` returned."""
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch = sys.modules.get("torch")
    if torch and "torch" in state:
        torch.set_rng_state(state["torch"])
    if torch and "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def kept(start: State | int = _SEED) -> Iterator[None]:
    """Begin with these states, or with a seed, and put the generators back at the end."""
    before = state_of_all()
    if isinstance(start, int):
        random.seed(start)
        np.random.seed(start % 2**32)
        if torch := sys.modules.get("torch"):
            torch.default_generator.manual_seed(start)
    else:
        set_all(start)
    try:
        yield
    finally:
        set_all(before)
