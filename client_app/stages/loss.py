"""The loss of the received model, sent up with every training: what Oort selects clients by."""

from collections.abc import Sequence

from client_app.measure import losses, received_model
from client_app.solvers.sgd import Finished
from client_app.stages.stage import Stage
from task.spec.stages import LOSS_RMS


class Loss(Stage):
    """Adds ``loss-rms`` over each client's own training examples to its upload."""

    def finish(self, cohort: Sequence[str], finished: Finished) -> Finished:
        """Measure the received model; nothing is drawn, and the uploads are otherwise as they were."""
        model = received_model(self.node, self.order)
        for client, (upload, _) in zip(cohort, finished, strict=True):
            upload.scalars[LOSS_RMS.name] = losses(model, *self.node.data(client, "train"))[LOSS_RMS.name]
        return finished
