"""What clients kept in a run that was played, and how they lose it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message

from client_app.memory.state import KeptState, StateStore
from task.numerics.arrays import Arrays
from task.resolve.read import read_config
from task.storage.client_state import SUFFIX, read_header, safe_name
from tests.support.federation import Played
from tests.support.grid import LocalGrid


class OnlyRun(StateStore):
    """The store of a run that is the only one of its name, whatever its id is."""

    def path(self, client: str, run: str = "") -> Path:
        """Return the file of a client; one that is not there if it keeps nothing."""
        name = f"{safe_name(client)}{SUFFIX}"
        found = [*(self.root / safe_name(self.run_name)).glob(f"*/{name}")]
        assert len(found) <= 1, found
        return found[0] if found else self.root / name

    def load(self, client: str, algorithm: str, run: str = "", *more: Any, **named: Any) -> KeptState | None:
        """Return what a client kept in that run."""
        path = self.path(client)
        run = read_header(path).run if path.exists() else ""
        return super().load(client, algorithm, run, *more, **named)


def store_of(keys: dict[str, Any]) -> StateStore:
    """Return the store of the only run of a config that sets ``state-dir``."""
    config = read_config(keys)
    return OnlyRun(Path(config.output.state_dir), config.run_name)


def kept_by(keys: dict[str, Any], played: Played, field: str) -> dict[str, Arrays]:
    """Return what each client kept after the last round; clients that kept nothing are left out."""
    store, name = store_of(keys), read_config(keys).algorithm
    found = {c: store.load(c, name) for c in played.names}
    return {
        c: state.fields[field] for c, state in found.items() if state is not None and field in state.fields
    }


def losing(act: Callable[[int], object]) -> type[LocalGrid]:
    """Return a grid that calls `act(t)` just before it sends the training messages of round t."""

    class Losing(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            given = list(messages)
            rounds = {int(m.metadata.group_id) for m in given if m.metadata.message_type == "train"}
            for t in rounds:
                act(t)
            return super().push_messages(given)

    return Losing
