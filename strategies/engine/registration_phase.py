"""The registration phase: new nodes say which clients they host, before a round draws its cohort.

Its query goes to nodes, not to clients, has no content (`task.wire.registration`) and is part of every
exchange, so that a node that joins while another phase waits is in the next round. Before a round, this phase
waits:

* before the first for ``min-nodes`` nodes, then for silent ones as long as others keep answering, and
  `timing.SILENT_NODES_S` more once most have; a run begins without nodes that decline or whose partition or
  data differ, as long as more take part;
* before a later one for new nodes, `timing.NEW_NODE_S` each;
* before each for ``min-replies`` clients, and for those that the rule needs by name.
"""

import time
from collections.abc import Sequence
from contextlib import closing

from flwr.serverapp import Grid

from strategies.engine.exchange import Exchange, Terms
from strategies.membership.client_registry import ClientRegistry
from task import timing
from task.errors import AbsentError, BouquetError
from task.population import some
from task.text import logger
from task.wire.messages import message
from task.wire.registration import LEFT_OUT, notice_content


class RegistrationPhase:
    """One run of the phase.

    `clients` is the number that must be online to continue.
    """

    def __init__(self, registry: ClientRegistry, server_round: int, clients: int = 0) -> None:
        self.registry, self.membership = registry, registry.membership
        self.round, self.clients = server_round, clients
        self.first = not registry.started
        self.nodes = registry.min_nodes if self.first else 1  # a run that has begun goes on with those left
        self.began = time.monotonic()

    def run(self, grid: Grid) -> None:
        """Register nodes that are new, forget those that left, and wait until the round can begin.

        Raises:
            ConfigError: Before the first round: as many nodes cannot take part as can, with their reasons, or
                two nodes bring data of one client.
            AbsentError: Fewer nodes or clients than needed came within the registry's ``timeout_s``.
        """
        try:
            self._gather(grid)
        except BouquetError:
            self._notify(grid, undecided=self.round <= 1)  # before the run ends
            raise
        self.membership.confirm()
        self._notify(grid)

    def _gather(self, grid: Grid) -> None:
        """Ask nodes to register until the round can begin; the exceptions are those of `run`."""
        pause: float = timing.REGISTRATION_FIRST_S
        warned = False
        with closing(Exchange(grid, (), self.registry.timeout_s, self._terms())) as exchange:
            while True:
                exchange.look()
                self._collect(exchange)
                self.registry.refresh()
                if self._complete():
                    break
                now = time.monotonic()
                if now > exchange.deadline:
                    raise self._too_few()
                if not warned and now - self.began > timing.NEW_NODE_S:
                    warned = True
                    logger.warning("%s", self._waits())
                time.sleep(pause)
                pause = min(2 * pause, timing.REGISTRATION_LATER_S)
        if warned:
            logger.warning("round %d continues with %d clients", self.round, len(self.registry.names))

    def _terms(self) -> Terms:
        return Terms(self.membership, self.round, most_bytes=0, once=True)

    def _notify(self, grid: Grid, *, undecided: bool = False) -> None:
        """Tell the nodes that are left out why, and wait a moment until they know.

        With `undecided` tell all of them if they keep the run from beginning.
        """
        notices = [
            message(notice_content(why), node, f"query.{LEFT_OUT}", self.round, self.registry.timeout_s)
            for node, why in self.membership.notices(undecided=undecided).items()
        ]
        if notices:
            list(Exchange(grid, notices, timing.NOTICE_S, self._terms()))

    def _collect(self, exchange: Exchange) -> None:
        """Take answers for as long as they come or are waited for."""
        while self.membership.queries:
            if exchange.due():
                exchange.look()  # asks again if an answer was lost
            wait = min(exchange.deadline - time.monotonic(), 0.25) if self._awaits() else 0.0
            if not exchange.fetch(max(wait, 0.01)) and wait <= 0:
                break
        if silent := self._silent():
            self.membership.log_once(f"no registration yet from {', '.join(silent)}")

    def _silent(self) -> list[str]:
        return [str(self.membership.nodes[n]) for n in self.membership.silent()]

    def _awaits(self) -> bool:
        """Return whether to wait for the nodes that were asked and are silent."""
        if not self.first:
            return bool(self.membership.silent(timing.NEW_NODE_S))
        answered, last = self.membership.num_answered(), self.membership.last_answer_at
        if answered < self.nodes or answered <= len(self.membership.silent()):
            return True
        return time.monotonic() < last + max(timing.SILENT_NODES_S, last - self.began)

    def _complete(self) -> bool:
        answered = self.membership.num_answered() if self.first else len(self.membership.present())
        if answered < self.nodes:
            return False
        if self.round <= 1:
            self.registry.check()
        return len(self.registry.names) >= self.clients and not self.registry.missing()

    def _waits(self) -> str:
        names, online = self.registry.names, len(self.membership.nodes)
        if missing := self.registry.missing():
            return (
                f"round {self.round} waits up to {self.registry.timeout_s:g} s for {some(missing)}, which "
                f'it needs (run-config key "roll-call-timeout"); online: {_listed(names)}'
            )
        return (
            f"round {self.round} waits up to {self.registry.timeout_s:g} s: {online} of at least "
            f"{self.nodes} nodes "
            f"are online, with {len(names)} of at least {self.clients} clients "
            f'(run-config keys "roll-call-timeout", "min-nodes", "min-replies"): {_listed(names)}'
        )

    def _too_few(self) -> AbsentError:
        names, online = self.registry.names, len(self.membership.nodes)
        within, answered = f"within {self.registry.timeout_s:g} s", self.membership.num_answered()
        if answered < self.nodes:
            registered = "" if online == answered else f", {answered} of them registered"
            only = self.membership.only
            nodes = f"of the nodes {some(only)}" if only else "nodes"
            silent = self._silent()
            what = "Start more nodes."
            if online >= self.nodes and silent:
                what = f"Read the logs of {some(silent)}, or increase roll-call-timeout."
            return AbsentError(
                f'expected at least {self.nodes} {nodes} {within} (run-config keys "min-nodes", '
                f'"roll-call-timeout"); got {online}{registered}. {what}'
            )
        if missing := self.registry.missing():
            return AbsentError(
                f"round {self.round}: expected {some(missing)} online {within}, which it "
                f'needs (run-config key "roll-call-timeout"); got {_listed(names)}. Start the nodes of '
                f"{some(missing)} and resume the run."
            )
        return AbsentError(
            f"round {self.round}: expected at least {self.clients} clients online {within} (run-config keys "
            f'"min-replies", "roll-call-timeout"); got {len(names)} on {online} nodes: {_listed(names)}. '
            "Start the others and resume the run."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:9]) or "none"
