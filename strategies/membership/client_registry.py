"""Who is there: nodes, the clients that they host, who is drawn, and which node trains whom.

A *node* is a Flower SuperNode with a random id; a *client* is a data owner with a stable name. The roll
call asks each new node for its clients. Everything that decides a result goes by client name; node ids
only decide where the work is done.

Nodes of the same *pool* share data and client state (they lie on the same disk) and can stand in for
each other, so a cohort is spread evenly over them. When clients of a partition are claimed by several
pools, the node whose share it is trains it; data of one's own have one owner, see
`strategies.membership.client_identity`. A node whose app has no roll call (a ClientApp that is not Bouquet's)
counts as one client, named as it was enrolled or else after its id; where the algorithm needs our client half
it is refused, see `strategies.membership.foreign`.

A run begins without the nodes that say that they cannot take part, or whose partition or data differ, as long
as those that do take part are more. A node that is silent is waited for as long as nodes keep answering and
`GRACE_S` more, once most have; it takes part when it answers.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.serverapp import Grid

from strategies.engine.exchange import LOOK_S, ROLL_BYTES
from strategies.membership.client_identity import Data, in_words
from strategies.membership.membership import Membership
from strategies.transport.pull import Puller, puller
from task.errors import ConfigError, NodesError
from task.population import ClientNames, numbering, some
from task.spec.selections import cohort_size
from task.wire import registration

logger = logging.getLogger("flwr")  # in another Flower app these lines stand among Flower's own

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0  # between looks for nodes
GRACE_S = 15.0  # without an answer, after which the first round begins without the few that are silent
NEW_NODE_S = 5.0  # that a round waits for the answer of a node that is new; it is taken later too


@dataclass(frozen=True)
class Participant:
    """What a node said in the roll call: how many clients and training examples it has, and its app."""

    node: int
    clients: int
    examples: int
    version: str


@dataclass(frozen=True)
class LeftOut:
    """A node that is online and takes no part: its id, the name that it was enrolled under, and why."""

    node: int
    name: str
    reason: str


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

    Args:
        timeout_s: How long to wait for the first nodes, and for answers to the roll call.
        min_nodes: Nodes that must have answered before the first round.
    """

    def __init__(self, timeout_s: float, min_nodes: int) -> None:
        self.timeout_s = timeout_s
        self.min_nodes = min_nodes
        self.membership = Membership(timeout_s)
        self.names: Sequence[str] = []  # sorted
        # As of the last refresh; a node that left since is still in it.
        self._answers: dict[int, registration.Registration] = {}
        self._pools: dict[str, list[int]] = {}  # nodes
        self._groups: list[_Group] = []

    def refresh(self, grid: Grid, server_round: int, clients: int = 0) -> None:
        """Call the roll of the nodes that are new and forget those that left.

        Args:
            grid: Where they are.
            server_round: Round t.
            clients: Clients that must be online to go on; fewer are waited for.

        Raises:
            ConfigError: Before the first round: as many nodes cannot take part as can, with their reasons, or
                two nodes bring data of one client.
            NodesError: Fewer than `min_nodes` nodes, or than `clients`, came before the time ran out.
        """
        began = time.monotonic()
        deadline, pause, paused = began + self.timeout_s, FIRST_PAUSE_S, False
        # Once the run has begun it goes on with whoever is there.
        first = not self._answers
        needed = 1 if self._answers else self.min_nodes
        fetch = puller(grid, deadline, ROLL_BYTES)
        try:
            while True:
                self.membership.look(grid, server_round)
                if self.membership.queries:
                    self._call(grid, fetch, server_round, partial(self._awaits, first, began), deadline)
                self._admit()
                there = self.membership.num_answered() if first else len(self.membership.present())
                if there >= needed:
                    if server_round <= 1:
                        self._check()
                    if len(self.names) >= clients:
                        break
                now = time.monotonic()
                if now > deadline:
                    raise self._too_few(server_round, needed, clients)
                if not paused and now - began > NEW_NODE_S:
                    paused = True
                    logger.warning("%s", self._waits(server_round, needed, clients))
                time.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE_S)
        finally:
            fetch.close()
        self.membership.confirm()
        if paused:
            logger.warning("round %d goes on with %d clients", server_round, len(self.names))

    def _admit(self) -> None:
        """Take over who takes part."""
        admitted = self.membership.admitted()
        same = admitted.keys() == self._answers.keys()
        if not same or any(admitted[n] is not self._answers[n] for n in admitted):
            self._answers = admitted
            self._index()

    def _check(self) -> None:
        """Refuse to begin if it is not clear who takes part, or most nodes cannot.

        Raises:
            ConfigError: With the nodes and their reasons.
        """
        why = self.membership.admission.ambiguous or self.membership.outvoted()
        if why:
            raise ConfigError(why)

    def _awaits(self, first: bool, began: float) -> bool:
        """Return whether to wait for the nodes that were asked and are silent."""
        if not first:
            return self.membership.awaited(NEW_NODE_S)
        told, heard = self.membership.num_answered(), self.membership.last_answer_at
        if told < self.min_nodes or told <= len(self.membership.silent()):
            return True
        return time.monotonic() < heard + max(GRACE_S, heard - began)

    def _call(
        self, grid: Grid, fetch: Puller, server_round: int, awaits: Callable[[], bool], deadline: float
    ) -> None:
        """Take the answers of nodes that were asked for their clients, and wait for those asked lately."""
        fetch.add(self.membership.queries)
        looked = time.monotonic()
        while self.membership.queries:
            if time.monotonic() - looked > LOOK_S:  # if an answer was lost, it asks again
                self.membership.look(grid, server_round)
                fetch.add(self.membership.queries)
                looked = time.monotonic()
            left = deadline - time.monotonic()
            wait = min(left, 0.25) if awaits() else 0.0
            found = fetch.get(max(wait, 0.01))
            for message_id, what in found:
                if message_id in self.membership.queries:
                    self.membership.take(message_id, what)
            if not found and (wait <= 0 or left <= 0):
                break
        silent = [str(self.membership.nodes[n]) for n in self.membership.silent()]
        if silent:
            self.membership.log_once(f"no answer to the roll call yet from {', '.join(silent)}")

    def _waits(self, server_round: int, needed: int, clients: int) -> str:
        return (
            f"round {server_round} waits up to {self.timeout_s:g} s: {len(self.membership.nodes)} nodes are "
            f"online, of {needed} or more, with {len(self.names)} clients, of {clients} or more (run-config "
            f'keys "roll-call-timeout", "min-nodes", "min-replies"): {", ".join(self.names[:9]) or "none"}'
        )

    def _too_few(self, server_round: int, needed: int, clients: int) -> NodesError:
        there, told = len(self.membership.nodes), self.membership.num_answered()
        if told < needed:
            got = f"{there}" if there == told else f"{there}, of which {told} answered the roll call"
            return NodesError(
                f"expected at least {needed} nodes within {self.timeout_s:g} s (run-config keys "
                f'"min-nodes", "roll-call-timeout"); got {got}. Start more SuperNodes.'
            )
        return NodesError(
            f"round {server_round}: expected at least {clients} clients online within {self.timeout_s:g} s "
            f'(run-config keys "min-replies", "roll-call-timeout"); got {len(self.names)} on {there} nodes: '
            f"{', '.join(self.names[:9]) or 'none'}. Start the others and resume the run."
        )

    def _index(self) -> None:
        """List the clients anew from the nodes' answers.

        The names of a partition stay a pattern, so that no memory is needed for each of a million.
        """
        self._pools = {}
        groups: dict[Sequence[str], list[int]] = {}
        for node, answer in sorted(self._answers.items()):
            self._pools.setdefault(answer.pool, []).append(node)
            if len(answer.clients):
                groups.setdefault(answer.clients, []).append(node)
        self._groups = [_Group(names, numbering(names), nodes) for names, nodes in groups.items()]
        if len(groups) == 1 and isinstance(only := next(iter(groups)), ClientNames):
            self.names = only
        else:
            self.names = sorted({name for names in groups for name in names})

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
        i = bisect_left(self.names, name)
        for pool in sorted(by_pool):
            for node in self._pools[pool]:
                part, parts = self._answers[node].share
                if i % max(parts, 1) == part:
                    return by_pool[pool]
        return by_pool[min(by_pool)]

    def num_examples(self, cohort: Iterable[str]) -> dict[str, int]:
        """Return by client its training examples, as a node told."""
        counts = dict.fromkeys(cohort, 0)
        for group in self._groups:
            told = self._answers[group.nodes[0]].num_examples
            for name, i in group.among(counts):
                counts[name] = int(told[i])
        return counts

    def most_examples(self, cohort: Iterable[str]) -> dict[str, int]:
        """Return by client the most training examples that a node registered for it; none if no node did."""
        counts, wanted = dict[str, int](), dict.fromkeys(cohort)
        for group in self._groups:
            told = [a.num_examples for n in group.nodes if not (a := self._answers[n]).foreign]
            for name, i in group.among(wanted):
                counts[name] = max([counts.get(name, 0), *(int(of_node[i]) for of_node in told)])
        return {name: n for name, n in counts.items() if n > 0}

    def participants(self) -> list[Participant]:
        """Return the nodes that are there, by id."""
        return [
            Participant(node, len(told.clients), int(np.sum(told.num_examples)), told.version)
            for node, told in sorted(self._answers.items())
        ]

    def left_out(self) -> list[LeftOut]:
        """Return the nodes that are online and take no part, by id."""
        return [LeftOut(node.id, node.name, why) for node, why in self.membership.left_out().items()]

    def shape_of_data(self) -> tuple[tuple[int, ...], int]:
        """Return the shape of an example and the number of classes that most nodes' data have.

        From now on the others are refused, by name.

        Raises:
            ConfigError: No node told, or none of several shapes is that of more than half of the nodes.
        """
        sides: dict[Data, list[str]] = {}
        for answer in self._answers.values():
            if answer.classes and len(answer.clients):
                sides.setdefault((answer.shape, answer.classes), []).append(answer.clients[0])
        data = max(sides, key=lambda side: len(sides[side]), default=None)
        if data is None or 2 * len(sides[data]) <= sum(map(len, sides.values())):
            got = "; ".join(f"{some(names)}: {in_words(side)}" for side, names in sides.items())
            raise ConfigError(
                "the nodes' own data: expected a shape and a number of classes that most nodes have; "
                f'got {got or "none"}. Correct the files, or set "num-classes".'
            )
        self.membership.expect_data(data)
        self._admit()
        self._check()
        self.membership.confirm()
        return data

    def draw(self, fraction: float, rng: np.random.Generator) -> list[str]:
        """Draw max(floor(C K), 1) clients uniformly without replacement; sorted names.

        The draw costs O(cohort), not O(population).
        """
        population = len(self.names)
        if population == 0:
            return []
        size = cohort_size(fraction, population)
        if size == population:
            return list(self.names)
        picked = rng.choice(population, size=size, replace=False, shuffle=False)
        return [self.names[i] for i in sorted(picked.tolist())]

    def assign(self, clients: Iterable[str], cost: Mapping[str, float]) -> dict[int, list[str]]:
        """Spread clients over the nodes that host them, the costliest first to the least loaded node.

        Returns:
            Client names by node id, each list sorted.
        """
        load: dict[int, float] = {}
        plan: dict[int, list[str]] = {}
        claims = self._claims(clients)
        for name in sorted(claims, key=lambda c: (-cost[c], c)):
            node = min(self._hosts(name, claims[name]), key=lambda n: (load.get(n, 0.0), n))
            load[node] = load.get(node, 0.0) + cost[name]
            plan.setdefault(node, []).append(name)
        return {node: sorted(names) for node, names in plan.items()}
