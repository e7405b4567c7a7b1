"""The state of a message's clients, by the scope of the contract's records.

=========  ================================================================================================
scope      how long, and whose
=========  ================================================================================================
``run``    the client's, to the end of the run; a resumed run finds what it was at the round that it goes on
           from (`client_app.memory.state`)
``round``  the client's, from one phase of a round to the next; a later round does not find it, and its file
           is deleted by the first message of one
``start``  the client's, always the newest: what the phases before round 1 fix, which are done again at each
           start of the run
``node``   shared by all clients of a node or pool, always the newest: for caches and keys, which do not
           change what a run computes
=========  ================================================================================================

All of it goes through files, so that any process of a node may answer the next phase.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property

from client_app.data.node import Node
from client_app.memory.state import StateStore, listed
from task.catalogue.entry import Algorithm
from task.catalogue.record import Scope
from task.catalogue.stages import residual_of
from task.config.paths import state_root
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.storage.client_state import SUFFIX, read_header
from task.wire import checks
from task.wire import messages as wire

NODE = "node"  # stands for a client's name in the node's own file


def store_of(node: Node) -> StateStore:
    """Return the state store of a node's clients."""
    return StateStore(state_root(node.config), node.config.run_name, durable=not node.owner.simulation)


class Memory:
    """The state of a message's clients."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        self.node, self.entry, self.order = node, entry, order
        self.scopes: dict[Scope, list[str]] = {}
        for record in entry.keeps:
            self.scopes.setdefault(record.scope, []).append(record.name)

    @cached_property
    def _stores(self) -> dict[Scope, StateStore]:
        store = store_of(self.node)
        return {scope: store if scope == "run" else replace(store, scope=scope) for scope in self.scopes}

    @cached_property
    def _names(self) -> list[str]:
        """The names next to the clients' files: those that killed saves have left do not change."""
        return listed(self._stores["run"].path(NODE, self.order.run).parent)

    def _forget_earlier_rounds(self) -> None:
        folder = self._stores["round"].path(NODE, self.order.run).parent
        for path in folder.glob(f"*{SUFFIX}"):
            with suppress(OSError, ValueError):  # a damaged file is refused when its client needs it
                if read_header(path).round != self.order.round:
                    path.unlink(missing_ok=True)

    @contextmanager
    def locked(self, clients: Sequence[str]) -> Iterator[None]:
        """Keep other processes from training the clients; to be held from `load` to `keep`.

        Raises:
            StateError: Another process holds one, or the folder cannot be written.
        """
        with ExitStack() as stack:
            if "round" in self.scopes:
                self._forget_earlier_rounds()
            for scope in self.scopes:
                for name in [NODE] if scope == "node" else clients:
                    stack.enter_context(self._stores[scope].lock(name, self.order.run))
            yield

    def load(self, clients: Sequence[str], server_round: int) -> list[dict[str, Arrays]]:
        """Return, by client, its state by record; nothing for a new client.

        `server_round` is the round to train; 0 = the newest, for a strategy that does not say which it is.

        Raises:
            StateError: As `StateStore.load`.
        """
        if not self.scopes:
            return [{} for _ in clients]
        alike = not self.node.config.models.levels
        forms = {c: self.node.forms(c).of(self.entry.keeps) for c in (clients[:1] if alike else clients)}
        return [self._load(c, server_round, forms[clients[0] if alike else c]) for c in clients]

    def _load(self, client: str, server_round: int, forms: Mapping[str, Arrays]) -> dict[str, Arrays]:
        name, run, void = self.entry.name, self.order.run, self.order.void
        fields: dict[str, Arrays] = {}
        for scope, names in self.scopes.items():
            like = {n: form for n, form in forms.items() if n in names}
            if scope == "run":
                found = self._stores[scope].load(client, name, run, server_round or None, like, void)
            else:
                key = NODE if scope == "node" else client
                found = self._stores[scope].load(key, name, run, None, like)
                if found and scope == "round" and found.round != server_round:
                    found = None
            fields |= found.fields if found else {}
        return fields

    def keep(
        self, client: str, upload: wire.ClientUpdate, keep: dict[str, Arrays]
    ) -> wire.ClientUpdate | Exception:
        """Save a client's state and return its upload; a client that diverged keeps its former state."""
        entry, order = self.entry, self.order
        try:
            checks.check_scalars(entry, upload.scalars)
            # A code that was decoded had finite numbers, and so has its residual.
            known = {*upload.codes, *(residual_of(r).name for r in entry.up if r.name in upload.codes)}
            for name, arrays in (*upload.arrays.items(), *keep.items()):
                if name not in known:
                    checks.check_arrays(name, arrays, arrays)
        except FieldError as err:
            return err
        for scope, names in self.scopes.items():
            store, mine = self._stores[scope], {n: a for n, a in keep.items() if n in names}
            if scope == "start" and not mine:
                continue  # a later phase, which reads it only
            if scope == "run":
                names = self._names
                store.save(client, entry.name, order.round, mine, order.run, order.oldest, order.void, names)
            else:
                store.save(NODE if scope == "node" else client, entry.name, order.round, mine, order.run)
        return upload
