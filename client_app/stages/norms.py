"""Measure the norm of each client's update."""

from collections.abc import Iterable

from client_app.stages.stage import Outcome, Stage, changed
from task.catalogue.record import MODEL_UP
from task.features.norms import NORM
from task.numerics.arrays import squared_norm
from task.wire import messages as wire


class Norms(Stage):
    """Adds ``update-norm`` to what each client sends."""

    names = ("norms",)

    def send(self, outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
        """Measure the updates as they go up."""
        return changed(outcomes, self._measured)

    def _measured(self, client: str, upload: wire.ClientUpdate) -> wire.ClientUpdate:
        moved = self.changes(client, upload, (r for r in self.entry.up if r.name == MODEL_UP.name))
        trained = {n: a for n, a in moved[MODEL_UP.name].items() if n in self.node.parts().trainable}
        upload.scalars[NORM.name] = squared_norm(trained) ** 0.5
        return upload
