"""The registry of online clients: who is drawn, and which node trains which client.

A *node* is a Flower SuperNode with a random id; a *client* is a data owner with a stable name. Each new node
registers its clients (`strategies.engine.registration_phase`). Everything that decides a result goes by
client name; node ids only decide where the work is done.

Nodes of the same *pool* share data and client state (the same disk) and can stand in for each other, so a
cohort is spread evenly over them. When several pools claim clients of a partition, the node whose share a
client is trains it; a node's own data have one owner, see `strategies.membership.client_identity`. A node
whose app cannot register (a ClientApp that is not Bouquet's) counts as one client, named as it was enrolled
or else after its id; where the algorithm needs our client half it is refused, see
`strategies.membership.stock_clients`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strategies.membership.agreement import Agreement
from strategies.membership.client_identity import in_words
from strategies.membership.known_clients import KnownClients
from strategies.membership.membership import Membership
from strategies.membership.stock_clients import why_stock_clients_cannot_join
from task.catalogue.entry import Algorithm
from task.catalogue.selections import cohort_size
from task.config.knobs import Config
from task.datasets.stream import DataStream, stream_of
from task.errors import ConfigError
from task.numerics.arrays import Arrays
from task.population import ClientNames, listed, numbering, some
from task.wire.registration import Data, Registration

Row = dict[str, Any]  # of a node, as ``nodes.json`` has it


@dataclass(frozen=True)
class _Group:
    """Nodes that named the same clients."""

    names: Sequence[str]
    number: Callable[[str], int | None]  # place of a client among them
    nodes: list[int]

    def among(self, cohort: Mapping[str, object]) -> Iterator[tuple[str, int]]:
        """Yield the cohort's clients that are of this group, each with its place."""
        if len(cohort) <= len(self.names):
            for name in cohort:
                if (i := self.number(name)) is not None:
                    yield name, i
        else:
            for i, name in enumerate(self.names):
                if name in cohort:
                    yield name, i


class ClientRegistry:
    """The nodes and clients that are online.

    It waits up to `timeout_s` for `min_nodes` to answer before the first round, and for registrations.
    """

    def __init__(self, timeout_s: float, min_nodes: int) -> None:
        self.timeout_s = timeout_s
        self.min_nodes = min_nodes
        self.membership = Membership(timeout_s)
        self.names: Sequence[str] = []  # sorted, without those held out
        self.known = KnownClients()  # also those that were online before; it grows between phases only
        self.held_out: frozenset[str] | None = None  # clients that never train; None = not drawn yet
        self.away: frozenset[str] = frozenset()  # clients that neither train nor evaluate, though online
        self.needed: tuple[str, ...] = ()  # clients without which no round begins, sorted
        self.stream: DataStream | None = None  # who joins when, with how many examples; None = all are there
        self.own_data = False  # whether nodes' own data may change, so that they are registered every round
        self.late: frozenset[str] = frozenset()  # clients that join in a later round than the first
        self.round = 1
        # As of the last refresh; a node that left since is still in it.
        self._answers: dict[int, Registration] = {}
        self._pools: dict[str, list[int]] = {}  # nodes
        self._groups: list[_Group] = []
        self._shares: dict[int, tuple[int, int]] = {}  # as `_counted` returns them; empty = to be counted
        self._widths: dict[str, float] = {}
        self._models: dict[str, str] = {}

    @property
    def started(self) -> bool:
        """Whether nodes took part at the last refresh."""
        return bool(self._answers)

    def refresh(self) -> None:
        """Take over which nodes take part."""
        admitted = self.membership.admitted()
        if admitted != self._answers:
            before = {g.names: self._answers[g.nodes[0]].num_examples for g in self._groups}
            self._answers = admitted
            self._index()
            there = {g.names for g in self._groups}
            self.known.left({names: n for names, n in before.items() if names not in there})

    def follow(self, config: Config) -> None:
        """Set the clients and their examples to those of the round."""
        self.stream, self.own_data = stream_of(config), config.stream.own_data

    def at(self, server_round: int) -> None:
        """Count only the clients that have joined by a round, with the examples that have arrived by then."""
        if self.own_data and self.started and server_round > self.round:
            self.membership.ask_again()
        self.round = max(server_round, 1)
        if self.late:
            self._index()

    def missing(self) -> list[str]:
        """Return the clients without which no round begins and that are not online, sorted."""
        return [name for name in self.needed if name not in self.names]

    def check(self) -> None:
        """Refuse to begin if it is not clear which nodes take part, or most of them cannot.

        Raises:
            ConfigError: With the nodes and their reasons.
            NodesError: The same, where enough of the reasons may pass.
        """
        if error := self.membership.undecided() or self.membership.outvoted():
            raise error

    def _index(self) -> None:
        """List the clients from the nodes' answers.

        The names of a partition stay a pattern, so that no memory is needed for each of a million.
        """
        self._pools = {}
        self._widths = {a.clients[0]: a.width for a in self._answers.values() if a.width}
        self._models = {a.clients[0]: a.model for a in self._answers.values() if a.model}
        groups: dict[Sequence[str], list[int]] = {}
        for node, answer in sorted(self._answers.items()):
            self._pools.setdefault(answer.pool, []).append(node)
            if len(answer.clients):
                groups.setdefault(answer.clients, []).append(node)
        self._groups = [_Group(names, numbering(names), nodes) for names, nodes in groups.items()]
        self._shares = {}
        if len(groups) == 1 and isinstance(only := next(iter(groups)), ClientNames):
            self.names = only
        else:
            self.names = sorted({name for names in groups for name in names})
        self.late = self.stream.late(self.names) if self.stream else frozenset()
        if self.held_out:
            self.names = [name for name in self.names if name not in self.held_out]
        if self.away:
            self.names = [name for name in self.names if name not in self.away]
        if self.stream and self.late and self.stream.age(True, self.round) < 1:
            self.names = [name for name in self.names if name not in self.late]

    def hold_out(self, share: float, rng: np.random.Generator) -> None:
        """Draw the clients that never train, once, among those that are online; who joins later trains.

        Raises:
            ConfigError: None would be left to train.
        """
        if self.held_out is not None:
            return
        size = max(round(share * len(self.names)), 1)
        if size >= len(self.names):
            raise ConfigError(
                f'run-config key "fraction-heldout": {share:g} of {len(self.names)} clients are {size}; '
                "expected at least one client left to train"
            )
        picked = rng.choice(len(self.names), size=size, replace=False)
        self.held_out = frozenset(self.names[i] for i in picked.tolist())
        self.known.forget(self.held_out)
        self._index()

    def put_away(self, names: frozenset[str]) -> None:
        """Count these clients, and no others, as away though their nodes are online."""
        if names != self.away:
            self.away = names
            self._index()

    def let_in(self) -> list[str]:
        """Let those held out in, as clients that are new; return the ones that are online, sorted."""
        held, self.held_out = self.held_out or frozenset(), frozenset()
        self._index()
        self.known.add(self.names)
        return [name for name in self.names if name in held]

    def dump(self, *, examples: bool) -> Arrays:
        """Return the clients that the run has known, for a checkpoint, with their examples if they count."""
        return self.known.dump(self.num_examples(self.known.names) if examples else None)

    def _claims(self, cohort: Iterable[str]) -> dict[str, list[int]]:
        """Return by client the nodes that said that they can train it, ascending."""
        claims: dict[str, list[int]] = {name: [] for name in cohort}
        for group in self._groups:
            for name, _ in group.among(claims):
                claims[name] += group.nodes
        return {name: sorted(nodes) for name, nodes in claims.items()}

    def _hosts(self, name: str, claims: list[int]) -> list[int]:
        """Return a client's nodes of one pool: of several that claim it, the one whose share it is."""
        by_pool: dict[str, list[int]] = {}
        for node in claims:
            by_pool.setdefault(self._answers[node].pool, []).append(node)
        if len(by_pool) == 1:
            return claims
        # Its place among the clients that the node named: others that join do not move it.
        places = {node: group.number(name) for group in self._groups for node in group.nodes}
        for pool in sorted(by_pool):
            for node in self._pools[pool]:
                part, parts = self._answers[node].share
                if (i := places.get(node)) is not None and i % max(parts, 1) == part:
                    return by_pool[pool]
        return by_pool[min(by_pool)]

    def _present(self, name: str, registered: int) -> int:
        """Return how many of its registered examples a client trains on in this round."""
        stream = self.stream
        return (
            registered
            if stream is None
            else stream.count(registered, stream.age(name in self.late, self.round))
        )

    def num_examples(self, cohort: Iterable[str]) -> dict[str, int]:
        """Return by client its registered training examples, those that it has in this round.

        Of one that is away they are those that it had, and 0 of one that the run does not know.
        """
        counts = dict.fromkeys(cohort, 0)
        if self.known.names:
            counts |= {name: self._present(name, n) for name, n in self.known.last_examples(counts).items()}
        for group in self._groups:
            registered = self._answers[group.nodes[0]].num_examples
            for name, i in group.among(counts):
                counts[name] = self._present(name, int(registered[i]))
        return counts

    def width(self, client: str) -> float:
        """Return the width of its model that a client's node registered; 0 = it did not say."""
        return self._widths.get(client, 0.0)

    def model(self, client: str) -> str | None:
        """Return the name of the model that a client's node registered; None = it did not say."""
        return self._models.get(client)

    def most_examples(self, cohort: Iterable[str]) -> dict[str, int]:
        """Return, by client, the largest registered number of examples, as of this round.

        A client that no node registered is left out.
        """
        counts, wanted = dict[str, int](), dict.fromkeys(cohort)
        for group in self._groups:
            nodes = [a.num_examples for n in group.nodes if not (a := self._answers[n]).stock]
            for name, i in group.among(wanted):
                most = (self._present(name, int(of_node[i])) for of_node in nodes)
                counts[name] = max([counts.get(name, 0), *most])
        return {name: n for name, n in counts.items() if n > 0}

    def participants(self) -> list[Row]:
        """Return the nodes that take part, by id, with their enrolled name and their share of the clients."""
        names = {node: claim.node.name for node, claim in self.membership.claims.items()}
        shares = self._shares = self._shares or self._counted()  # of a million clients it takes 10 ms
        return [
            {"node": str(n), "name": names.get(n, ""), "clients": shares[n][0], "examples": shares[n][1]}
            | {"version": a.version}
            for n, a in sorted(self._answers.items())
        ]

    def _counted(self) -> dict[int, tuple[int, int]]:
        """Return by node how many clients it trains, and their registered examples.

        Which node of a pool trains which client depends on the cohort: each counts for an equal part.
        """
        shares = dict.fromkeys(self._answers, (0, 0))
        for group in self._groups:
            counts = np.asarray(self._answers[group.nodes[0]].num_examples)
            places = np.arange(len(group.names))
            by_pool: dict[str, list[int]] = {}
            for node in sorted(group.nodes):
                by_pool.setdefault(self._answers[node].pool, []).append(node)
            of = np.zeros(len(group.names), int)  # which pool trains each client, as in `_hosts`
            for i, pool in reversed(list(enumerate(sorted(by_pool)))):
                for part, parts in (self._answers[node].share for node in self._pools[pool]):
                    of[places % max(parts, 1) == part] = i
            for i, pool in enumerate(sorted(by_pool)):
                for k, node in enumerate(by_pool[pool]):
                    own = np.flatnonzero(of == i)[k :: len(by_pool[pool])]
                    shares[node] = len(own), int(counts[own].sum())
        return shares

    def left_out(self) -> list[Row]:
        """Return the nodes that are online and take no part, by id, with their enrolled name and why."""
        left = self.membership.left_out().items()
        return [{"node": str(node.id), "name": node.name, "reason": why} for node, why in left]

    def shape_of_data(self) -> Data:
        """Return the shape of an example and the number of classes that most nodes' data have.

        From now on the others are refused, by name.

        Raises:
            ConfigError: No node said, or none of several shapes is that of more than half of the nodes.
        """
        sides: dict[Data, list[str]] = {}
        for answer in self._answers.values():
            if answer.data:
                sides.setdefault(answer.data, []).append(answer.clients[0])
        data = max(sides, key=lambda side: len(sides[side]), default=None)
        if data is None or 2 * len(sides[data]) <= sum(map(len, sides.values())):
            got = "; ".join(f"{some(names)}: {in_words(side)}" for side, names in sides.items())
            raise ConfigError(
                "the nodes' own data: expected most nodes to have the same shape and number of classes; "
                f'got {got or "none"}. Correct the files, or set "num-classes".'
            )
        self.membership.expect_data(data)
        self.refresh()
        self.check()
        self.membership.confirm()
        return data

    def draw(self, fraction: float, rng: np.random.Generator) -> list[str]:
        """Draw max(floor(C K), 1) clients uniformly without replacement; sorted names.

        The draw costs O(cohort), not O(population).
        """
        population = len(self.names)
        size = cohort_size(fraction, population)
        if size == population:
            return list(self.names)
        picked = rng.choice(population, size=size, replace=False, shuffle=False)
        return [self.names[i] for i in sorted(picked.tolist())]

    def assign(
        self, clients: Iterable[str], cost: Mapping[str, float], served: Mapping[str, int] | None = None
    ) -> dict[int, list[str]]:
        """Spread clients over the nodes that host them, the costliest first to the least loaded node.

        Returns client names by node id, each list sorted. `cost` is expected work by client; a client stays
        with the node of `served`, if that still hosts it.
        """
        load: dict[int, float] = {}
        plan: dict[int, list[str]] = {}
        claims = self._claims(clients)
        for name in sorted(claims, key=lambda c: (-cost[c], c)):
            hosts = self._hosts(name, claims[name])
            same = (served or {}).get(name)
            node = same if same in hosts else min(hosts, key=lambda n: (load.get(n, 0.0), n))
            load[node] = load.get(node, 0.0) + cost[name]
            plan.setdefault(node, []).append(name)
        return {node: sorted(names) for node, names in plan.items()}

    def assign_each(self, clients: Iterable[str], busy: Iterable[int]) -> dict[str, int]:
        """Return for each client that node of its own with the fewest orders; `busy` has a node per order."""
        orders, plan = Counter(busy), dict[str, int]()
        for name, claims in sorted(self._claims(clients).items()):
            plan[name] = min(self._hosts(name, claims), key=lambda n: (orders[n], n))
            orders[plan[name]] += 1
        return plan


def registry_of(config: Config, entry: Algorithm) -> ClientRegistry:
    """Return the registry of a run's clients, which decides who is admitted."""
    server = config.server
    registry = ClientRegistry(server.roll_call_timeout, server.min_nodes)
    registry.follow(config)
    registry.membership.only = listed(server.node_names)
    registry.membership.agreement = Agreement(apart=entry.vertical)
    registry.membership.why_no_stock_clients = why_stock_clients_cannot_join(entry, config)
    return registry
