"""Who is there: nodes, the clients that they host, who is drawn, and which node trains whom.

A *node* is a Flower SuperNode with a random id; a *client* is a data owner with a stable name. The roll
call asks each new node for its clients. Everything that decides a result goes by client name; node ids
only decide where the work is done.

Nodes of the same *pool* share data and client state (they lie on the same disk) and can stand in for
each other, so a cohort is spread evenly over them. When clients of one name are claimed by several
pools, the node whose share of the partition it is trains it. A node that does not answer the roll call
(somebody else's ClientApp) counts as one client named after its id.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from strategies.exchange import stream_replies
from task import wire
from task.errors import ConfigError, WireError
from task.names import ClientNames, numbering
from task.selections import cohort_size

logger = logging.getLogger("bouquet")


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


class Roster:
    """The nodes and clients that are online.

    Args:
        timeout_s: How long to wait for the first nodes, and for answers to the roll call.
        min_nodes: Nodes that must be there before the first round.
    """

    def __init__(self, timeout_s: float, min_nodes: int) -> None:
        self.timeout_s = timeout_s
        self.min_nodes = min_nodes
        self.names: Sequence[str] = []  # sorted
        self._answers: dict[int, wire.RollCall] = {}
        self._asked: set[int] = set()
        self._pools: dict[str, list[int]] = {}  # nodes
        self._groups: list[_Group] = []

    def refresh(self, grid: Grid, server_round: int) -> None:
        """Call the roll of the nodes that are new and forget those that left.

        Raises:
            ConfigError: A node says, before the first round, that it cannot take part, and why.
            WireError: Fewer than `min_nodes` nodes came before the time ran out.
        """
        nodes = set(grid.get_node_ids())
        deadline = time.monotonic() + self.timeout_s
        # Once the run has begun it goes on with whoever is there.
        needed = 1 if self._answers else self.min_nodes
        while len(nodes) < needed:
            if time.monotonic() > deadline:
                raise WireError(
                    f"expected at least {needed} nodes within {self.timeout_s:g} s (run-config keys "
                    f'"min-nodes", "roll-call-timeout"); got {len(nodes)}. Start more SuperNodes.'
                )
            time.sleep(0.05)
            nodes = set(grid.get_node_ids())
        new = nodes - self._asked
        left = self._answers.keys() - nodes
        for node in left:
            del self._answers[node]
        # A node that left and comes back has a new id or is asked anew.
        self._asked &= nodes
        if new:
            self._call(grid, sorted(new), server_round)
            # Who was silent is called again in the next round, if it is still there.
            self._asked |= new & self._answers.keys()
        if new or left:
            self._index()

    def _call(self, grid: Grid, nodes: list[int], server_round: int) -> None:
        """Ask nodes for their clients."""
        messages = [
            wire.message(RecordDict(), n, f"query.{wire.ROLL_CALL}", server_round, self.timeout_s)
            for n in nodes
        ]
        for reply in stream_replies(grid, messages, self.timeout_s):
            # By request, not by sender: an error may come from the SuperLink in the node's place.
            asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
            node = asked[reply.metadata.reply_to_message_id]
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason or "no reason given")
                self._answers[node] = wire.read_roll_call(reply.content)
            except ConfigError as err:
                # Before the first round somebody is there to mend it; later the others go on without.
                if server_round <= 1:
                    raise ConfigError(f"node {node} cannot take part: {err}") from None
                logger.warning("node %s cannot take part: %s", node, err)
                self._answers[node] = wire.RollCall((), np.zeros(0, np.int64), pool=f"node-{node}")
            except (WireError, KeyError, TypeError, ValueError) as err:
                # Flower's own apps have no roll call: such a node is one client.
                logger.debug("node %s does not answer the roll call: %s", node, err)
                name = f"node-{node}"
                self._answers[node] = wire.RollCall((name,), np.array([1]), pool=name)
        silent = [n for n in nodes if n not in self._answers]
        if silent:
            logger.warning("no answer to the roll call within %g s from nodes %s", self.timeout_s, silent)

    def _index(self) -> None:
        """List the clients anew from the nodes' answers.

        The names of a partition stay a pattern, so that no memory is needed for each of a million.
        """
        self._pools = {}
        groups: dict[Sequence[str], list[int]] = {}
        for node in sorted(self._answers):
            answer = self._answers[node]
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

    def shape_of_data(self) -> tuple[tuple[int, ...], int]:
        """Return the shape of an example and the number of classes that all nodes' data have.

        Raises:
            ConfigError: No node told, or two nodes differ.
        """
        told = {(a.shape, a.classes): n for n, a in self._answers.items() if a.classes}
        if len(told) != 1:
            got = "; ".join(
                f"{self._answers[n].clients[0]}: shape {list(shape)}, {classes} classes"
                for (shape, classes), n in told.items()
            )
            raise ConfigError(
                f"the nodes' own data: expected one example shape and number of classes; "
                f"got {got or 'none'}. "
                'Mend the files, or set "num-classes".'
            )
        return next(iter(told))

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
