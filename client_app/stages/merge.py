"""Merge the uploads of a node's clients: check and fold them as they come, and make the reply."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from client_app.data.owner import SIMULATION, Owner
from task.catalogue.entry import Algorithm
from task.errors import FieldError, WireError
from task.numerics.arrays import Arrays
from task.wire import checks
from task.wire import messages as wire
from task.wire.encoding import PLAIN, Encoding
from task.wire.folding import Folding
from task.wire.norms import NormBound


@dataclass
class FoldPlan:
    """How the uploads of a node's clients are checked and folded."""

    contract: Algorithm  # as they are folded
    like: Mapping[str, Arrays]  # by upward field, arrays of the expected names, shapes and dtypes
    # On a client's update; 0 = none.
    bound: NormBound = field(default_factory=lambda: NormBound(0.0, {}, frozenset()))
    named: bool = True  # whether the message names its clients, so that each gets an answer
    encoding: Encoding = PLAIN  # how the records travel
    part: Callable[[str], Arrays] | None = None  # returns the form of a client's part of the model
    alone: bool = False  # whether there is one client, whose upload goes up as it is
    stays: bool = False  # whether the answer stays on this machine, and no feature has to do with it


class Merge:
    """The uploads of a node's clients, checked and folded as they come."""

    def __init__(self, plan: FoldPlan, owner: Owner = SIMULATION) -> None:
        self.entry, self.owner, self.encoding = plan.contract, owner, plan.encoding
        self.folding = Folding(
            plan.contract, plan.like, plan.bound, carries=True, encoding=plan.encoding, part=plan.part
        )
        self.alone, self.stays = plan.alone, plan.stays
        self.clients: list[str] = []
        self.failed: list[wire.RejectedReply] = []
        self.scalars: list[dict[str, float]] = []
        # By record and client, what is forwarded as a code.
        forwarded = [r for r in self.entry.up if r.coded and r.carry == "each"]
        self.forwarded: dict[str, dict[str, Arrays]] = {r.name: {} for r in forwarded}

    def add(self, client: str, upload: wire.ClientUpdate) -> None:
        """Check one client's upload and fold it in."""
        checks.check_scalars(self.entry, upload.scalars)
        fold = self.folding.checked(client, upload.arrays, upload.scalars)
        if self.alone:  # it is sent unfolded
            self.first, self.fold_first = upload, fold
        else:
            fold()
        for r in self.entry.up:
            if r.name in self.forwarded:
                weight = np.array(self.folding.weight(upload.scalars), np.int64)
                self.forwarded[r.name][client] = {**self.encoding.on_wire(r, upload), "": weight}
        self.clients.append(client)
        self.scalars.append(upload.scalars)

    def _fold_first(self) -> None:
        if self.alone and self.clients:
            self.fold_first()

    def fail(self, client: str, server_round: int, err: Exception) -> None:
        """Leave a client out and say why."""
        if isinstance(err, FieldError):
            field, expected, got = err.field, err.expected, err.got
        else:
            field, expected, got = "", "a trained client", self.owner.explain(err)[:400]
        one_line = " ".join(got.split())
        self.failed.append(wire.RejectedReply(client, server_round, field, expected, one_line))

    def reply(self) -> wire.NodeReply:
        """Return the node's answer: plain if it is one client's and the server may read it, else merged."""
        if self.alone and self.clients and not self.encoding.opaque:
            return wire.NodeReply(self.clients, {}, upload=self._on_wire(self.first))
        self._fold_first()
        common = set.intersection(*(set(s) for s in self.scalars)) if self.scalars else set()
        lists = {k: [s[k] for s in self.scalars] for k in sorted(common)}
        sums = self.folding.partials(stays=self.stays, last=True) if self.clients else {}
        partials = {**sums, **self.forwarded} if self.clients else {}
        return wire.NodeReply(self.clients, lists, partials=partials, failed=self.failed)

    def sums(self) -> tuple[dict[str, Any], list[dict[str, float]], list[int]]:
        """Return the partial sums by record, and each client's numbers and weight."""
        self._fold_first()
        weights = [self.folding.weight(row) for row in self.scalars]
        return self.folding.partials(), self.scalars, weights

    def _on_wire(self, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        sent = {r.name: self.encoding.on_wire(r, upload) for r in self.entry.up}
        return replace(upload, arrays={**upload.arrays, **sent})

    def as_one_client(self) -> wire.NodeReply:
        """Return the reduction as one plain upload.

        What the rule works with is averaged as the arrays are, other scalars by examples.

        Raises:
            WireError: There is no client.
        """
        if not self.clients:
            raise WireError(
                "the message names no clients, and this node's share of them is empty: there are "
                "more nodes than clients"
            )
        if self.alone:
            return wire.NodeReply(self.clients, {}, upload=self.first)
        counts = [int(s[wire.NUM_EXAMPLES]) for s in self.scalars]
        names = set.intersection(*(set(s) for s in self.scalars)) - {wire.NUM_EXAMPLES}
        by_client = self.entry.weight == "uniform" and self.entry.work == "train"
        rules = {f.name for f in self.entry.up_scalars} if by_client else set()
        means: dict[str, float] = {}
        for k in sorted(names):
            weights = [1] * len(counts) if k in rules else counts
            total = math.fsum(s[k] * n for s, n in zip(self.scalars, weights, strict=True))
            means[k] = total / sum(weights)
        upload = wire.ClientUpdate(self.folding.results(), {**means, wire.NUM_EXAMPLES: sum(counts)})
        return wire.NodeReply(self.clients, {}, upload=upload)
