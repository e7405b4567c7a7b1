"""The server's half of a secure round: who is in it at each stage, and the sum without its masks."""

import hmac
from collections.abc import Mapping

from task.errors import SecureAggregationError
from task.secagg import shamir
from task.secagg.primitives import agree, public_of
from task.secagg.protocol import PublicKeys, Roster, Rules, Session, own_mask, pair_mask
from task.secagg.vector import Vector


class Aggregation:
    """One session, stage by stage.

    A node that does not answer a stage is not in the next one. Each method raises `SecureAggregationError` if
    too few are left: the sum stays unknown then.
    """

    def __init__(self, session: Session, rules: Rules) -> None:
        self.session, self.rules = session, rules
        self.roster = Roster()  # who sent keys
        self.senders: tuple[str, ...] = ()  # who sent shares, sorted
        self.alive: tuple[str, ...] = ()  # whose numbers are in the sum, sorted
        self._sealed: Mapping[str, Mapping[str, bytes]] = {}
        self._sum: Vector | None = None

    def take_keys(self, keys: Mapping[str, PublicKeys]) -> Roster:
        """Take the public keys by node; return the roster of the round."""
        self.roster = Roster(dict(keys))
        self.roster.check()
        self._left(len(keys), "sent keys", len(keys))
        return self.roster

    def take_shares(self, sealed: Mapping[str, Mapping[str, bytes]]) -> tuple[str, ...]:
        """Take the encrypted shares by sender and receiver; return who sent some for each other node."""
        self._sealed = {u: sent for u, sent in sealed.items() if sent.keys() == self.roster.keys.keys() - {u}}
        self.senders = tuple(sorted(self._sealed))
        self._left(len(self.senders), "sent shares")
        return self.senders

    def shares_for(self, name: str) -> dict[str, bytes]:
        """Return the encrypted shares for a node, by sender."""
        return {u: self._sealed[u][name] for u in self.senders if u != name}

    def add(self, name: str, vector: Vector) -> None:
        """Add a node's masked vector to the sum.

        Raises:
            SecureAggregationError: It sent no shares, sent a vector already, or one of another form.
        """
        if name not in self.senders or name in self.alive:
            raise SecureAggregationError(f"node {name}: expected one vector of a node that sent shares")
        if self._sum is None:
            self._sum = Vector.zeros(*vector.form)
        self._sum.add(vector)
        self.alive = tuple(sorted((*self.alive, name)))

    def check_alive(self) -> None:
        """Refuse to go on to the last stage with too few."""
        self._left(len(self.alive), "sent numbers")

    def take_unmask(self, shares: Mapping[str, Mapping[str, int]]) -> Vector:
        """Take the shares by node and whose they are; return the sum.

        Raises:
            SecureAggregationError: They are too few, or do not give the keys that they are said to.
        """
        want = set(self.senders)
        good = {u: sent for u, sent in shares.items() if u in self.alive and sent.keys() == want}
        self._left(len(good), "sent shares of the masks")
        assert self._sum is not None
        t, made = self.rules.t(len(self.roster.names)), self._sum
        masks = []
        for v in self.senders:
            of_v = {self.roster.number(u): sent[v] for u, sent in good.items()}
            secret = shamir.combine(of_v, t)
            if v in self.alive:
                masks.append(own_mask(made, self.session, secret, undo=True))
                continue
            if not hmac.compare_digest(public_of(secret), self.roster.keys[v].masking):
                raise SecureAggregationError(f"node {v}: expected shares of its masking key; got others")
            for u in self.alive:
                agreed = agree(secret, self.roster.keys[u].masking)
                masks.append(pair_mask(made, self.session, self.roster, u, v, agreed, undo=True))
        made.mask(masks)
        self._sum = None
        return made

    def _left(self, found: int, what: str, n: int = 0) -> None:
        least = (
            self.rules.least(n or len(self.roster.names)) if n or self.roster.names else self.rules.min_nodes
        )
        if found < least:
            raise SecureAggregationError(
                f'expected at least {least} nodes that {what} (run-config keys "secagg-min-nodes", '
                f'"secagg-threshold"); got {found}'
            )
