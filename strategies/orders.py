"""Write the messages of a round: one for each node, with the clients that it is to work for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, Message

from strategies.plan import RoundPlan
from strategies.recovery import LastGood
from strategies.roster import Roster
from strategies.state import ServerState
from task import wire
from task.arrays import Arrays
from task.entry import MODEL_DOWN, Algorithm
from task.knobs import Config

Extra = dict[str, wire.Scalar]
Gifts = Mapping[str, Mapping[str, Mapping[str, Arrays]]]


class Writer:
    """The half of a `strategies.base.Strategy` that writes messages."""

    config: Config
    roster: Roster
    state: ServerState | None
    timeout_s: float
    _packed: ArrayRecord | None  # the state's arrays as sent; packed once a round
    _packed_fields: dict[str, ArrayRecord]
    _plan: RoundPlan
    _lr: float
    _run_id: str
    _bytes: int
    last_good: LastGood

    def down_scalars(self, state: Any) -> dict[str, float]:
        """Return the entry's downward scalars for this round."""
        return {}

    def down_record(self, state: Any, name: str) -> Arrays:
        """Return a record that goes down to all alike beside the model; the state's field of that name."""
        arrays: Arrays = getattr(state, name.replace("-", "_"))
        return arrays

    def gifts(self, state: Any, clients: Sequence[str], names: Sequence[str]) -> Gifts:
        """Return what differs by client of the fields that go down: by field, client and name.

        Args:
            state: The server's state.
            clients: Who will get something, sorted.
            names: All clients that are online, sorted.
        """
        return {}

    def gifts_each(self, state: Any) -> int:
        """Return how many records a client gets, about, of a field that differs by client."""
        return 1

    def _orders(self, entry: Algorithm, kind: str, server_round: int, extra: Extra) -> list[Message]:
        """Return one message per node for the plan's clients; each record is packed once."""
        state = self.state
        assert state is not None
        common = [f.name for f in entry.down if f.reduce != "stack"]
        for name in common:
            if name != wire.ARRAYS and name not in self._packed_fields:
                self._packed_fields[name] = wire.pack_arrays(self.down_record(state, name))
        packed = self._packed_fields | {wire.ARRAYS: self.record()}
        records = {name: packed[name] for name in common}
        scalars = {"lr": self._lr, **self.down_scalars(state)}
        requests = self._messages(entry, kind, self._plan, records, scalars, extra)
        self._bytes += sum(wire.payload_bytes(m.content) for m in requests)
        return requests

    def _messages(
        self,
        entry: Algorithm,
        kind: str,
        plan: RoundPlan,
        records: Mapping[str, ArrayRecord],
        scalars: Mapping[str, float],
        extra: Extra,
    ) -> list[Message]:
        """Return one message per node for the clients of a plan; what is for one goes to its node alone."""
        by_node = plan.by_node(self.roster, self.config.train.local_epochs)
        names = self._names(entry)
        void = self.last_good.void if entry.keeps else ()
        gifts = self._packed_gifts(entry, sorted(c for cs in by_node.values() for c in cs), names)
        requests = []
        for node, clients in by_node.items():
            epochs = plan.epochs_of(clients)
            order = wire.TrainOrder(
                plan.round, {}, scalars, tuple(clients), epochs, self._run_id, population=names, void=void,
                whole=self.roster.presence.claims[node].told.whole,
            )  # fmt: skip
            theirs = {f: {c: given[c] for c in clients if c in given} for f, given in gifts.items()}
            content = wire.train_content(order, records, extra, theirs)
            requests.append(wire.message(content, node, kind, plan.round, self.timeout_s))
        return requests

    def _packed_gifts(
        self, entry: Algorithm, clients: Sequence[str], names: Sequence[str]
    ) -> dict[str, dict[str, dict[str, ArrayRecord]]]:
        """Return what differs by client as records; what several get is packed once."""
        if not any(f.reduce == "stack" for f in entry.down):
            return {}
        assert self.state is not None
        packed: dict[int, ArrayRecord] = {}

        def pack(arrays: Arrays) -> ArrayRecord:
            if id(arrays) not in packed:
                packed[id(arrays)] = wire.pack_arrays(arrays)
            return packed[id(arrays)]

        gifts = self.gifts(self.state, clients, names)  # keeps the arrays alive, so that an id is one array's
        return {
            f: {c: {n: pack(a) for n, a in given.items()} for c, given in by_client.items()}
            for f, by_client in gifts.items()
        }

    def _questions(
        self,
        entry: Algorithm,
        server_round: int,
        asked: Sequence[str],
        kind: str,
        extra: Extra,
        arrays: ArrayRecord | None = None,
    ) -> list[Message]:
        """Return one message per node that sends clients what they need to measure a model, and no more."""
        plan = RoundPlan(server_round, tuple(asked), {}, ())
        records = {wire.ARRAYS: arrays or self.record()} if MODEL_DOWN in entry.down else {}
        return self._messages(entry, kind, plan, records, {}, extra)

    def _names(self, entry: Algorithm) -> tuple[str, ...]:
        """Return the names of all clients that are online, if the contract needs them."""
        return tuple(sorted(self.roster.names)) if entry.individual else ()

    def record(self) -> ArrayRecord:
        """Return the model as sent."""
        assert self._packed is not None
        return self._packed
