"""Canaries of an audit: clients without data that send what `task.privacy.canaries` draws for them."""

from collections.abc import Iterable, Iterator
from functools import cached_property

from client_app.stages.stage import Outcome, Stage
from task.catalogue.stages import UNCLIPPED
from task.errors import FieldError
from task.numerics.arrays import Arrays
from task.privacy.bounded_integers import CLIP
from task.privacy.canaries import CLAIMED, direction, is_canary, is_in, length
from task.wire import messages as wire
from task.wire.layouts import base_of


class Canaries(Stage):
    """Adds the canaries' uploads to those of the clients that trained; what follows treats all alike."""

    names = ("canary",)

    def makes(self, client: str) -> bool:
        """Return whether a client is a canary."""
        return is_canary(self.node.config, client)

    def send(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Pass on the clients' uploads, then those of the canaries that are in; the others drop out."""
        yield from outcomes
        for client in filter(self.makes, self.order.clients):
            if is_in(self.node.config, client):
                yield client, self._upload(client)
            else:
                yield client, FieldError("", "a client that answers", "a canary that drops out")

    @cached_property
    def _like(self) -> dict[str, Arrays]:
        """By record, arrays of the form that goes up."""
        forms = self.node.forms()
        return {r.name: forms.like(r.layout) for r in self.entry.up if r != UNCLIPPED}

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        return self.node.parts().trainable

    def _upload(self, client: str) -> wire.ClientUpdate:
        config, received, like = self.node.config, self.order.received(client), self._like
        size = float(self.order.scalars[CLIP]) * length(config, client)
        drawn, sent = direction(config, client, like), dict[str, Arrays]()
        for r in (r for r in self.entry.up if r.name in like):
            base = base_of(r, received, self._parameters) or {}
            sent[r.name] = {
                n: (base.get(n, 0.0) + size * drawn[r.name][n]).astype(a.dtype)
                for n, a in like[r.name].items()
            }
        return wire.ClientUpdate(sent, {wire.NUM_EXAMPLES: CLAIMED})
