"""A grid whose nodes have data of their own, one client each, and come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp

from tests.support.federation import Data
from tests.support.grid import LocalGrid


def joining(folder: Path, data: Data, online: Callable[[str, int], bool]) -> type[LocalGrid]:
    """Return a grid of one node for each owner.

    Args:
        folder: Takes the owners' files.
        data: Each owner's rows.
        online: Whether an owner's node is there for the training of a round, and from the evaluation of the
            round before on.
    """
    for name, (x, y) in data.items():
        np.savez(folder / f"{name}.npz", x=x, y=y)

    class Joining(LocalGrid):
        def __init__(
            self, app: ClientApp, node_configs: Any, run_config: Mapping[str, Any] | None = None, **more: Any
        ) -> None:
            own = [{"client-name": n, "data-path": str(folder / f"{n}.npz")} for n in sorted(data)]
            super().__init__(app, own, run_config, **more)

        def get_node_ids(self) -> Iterable[int]:
            trained = [m.metadata.group_id for m in self.sent if m.metadata.message_type == "train"]
            now = max((int(t) for t in trained), default=0) + 1
            return [n for n, i in self.index.items() if online(sorted(data)[i], now)]

    return Joining
