"""The clients that a run has known, whether they are online or not.

What a rule divides by, and which clients it lists, must not depend on who happens to be away in a round: a
mean over all clients is one over these. A client is known from the first round on for which it registers. One
that leaves for good stays known, with the examples that it last registered.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from task.numerics.arrays import Arrays, NamedArrays, of_text, text_in
from task.population import ClientNames, numbering

COUNT, NAMES, EXAMPLES = "known/count", "known/names", "known/examples"  # names in a checkpoint


class KnownClients:
    """Names of clients, and the number of examples of those that are away."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()  # sorted
        self._past: dict[Sequence[str], np.ndarray] = {}  # by clients that left together, their examples

    def __len__(self) -> int:
        return len(self.names)

    def add(self, names: Sequence[str]) -> None:
        """Add clients that are online; `names` are sorted."""
        if self.names == names:
            return
        every = {*self.names, *names}
        if len(every) > len(self.names):
            self.names = names if len(every) == len(names) else sorted(every)

    def forget(self, names: Collection[str]) -> None:
        """Remove clients from the run, such as those held out before it begins."""
        self.names = [name for name in self.names if name not in names]

    def left(self, examples: Mapping[Sequence[str], np.ndarray]) -> None:
        """Take note of what clients registered that may be away now, by those that did so together."""
        for names in examples:
            self._past.pop(names, None)  # the last word counts
        self._past |= examples

    def last_examples(self, clients: Iterable[str]) -> dict[str, int]:
        """Return by client the examples that it had when it left; those that did not leave are left out."""
        found, wanted = dict[str, int](), set(clients)
        for names, examples in self._past.items():
            number = numbering(names)
            for name in wanted if len(wanted) <= len(names) else names:
                if name in wanted and (i := number(name)) is not None:
                    found[name] = int(examples[i])
        return found

    def dump(self, examples: Mapping[str, int] | None) -> Arrays:
        """Return the clients for a checkpoint, and the `examples` of each if they are to be in it."""
        if not self.names:
            return {}
        counts = {} if examples is None else {EXAMPLES: np.array([examples[name] for name in self.names])}
        if isinstance(self.names, ClientNames):
            return {COUNT: np.array(len(self.names)), **counts}
        return {NAMES: of_text(json.dumps(list(self.names))), **counts}

    def load(self, arrays: NamedArrays) -> None:
        """Restore what `dump` returned; a checkpoint without it has no known clients."""
        names: Sequence[str] = ()
        if COUNT in arrays:
            names = ClientNames(int(arrays[COUNT]))
        elif NAMES in arrays:
            listed: list[Any] = json.loads(text_in(arrays[NAMES]))
            names = tuple(listed)
        if EXAMPLES in arrays:
            self._past = {names: np.asarray(arrays[EXAMPLES]), **self._past}
        if names:
            self.add(names)
