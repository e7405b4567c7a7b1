"""Solvers of clients that have a model of their own from round to round, which the server never replaces."""

from __future__ import annotations

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask


class OwnModelSolver(Solver):
    """SGD from the model that the client kept; a client that has none begins with the run's initial model."""

    def begin(self, task: LocalTask) -> None:
        """Start from the kept model."""
        task.start_from([fields.get("personal", {}) for fields in self.kept])

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return what plain SGD does; keep the client's own model."""
        plain = super().finish(task, stats)
        return [(up, {"personal": own}) for (up, _), own in zip(plain, self.own_models(task), strict=True)]

    def personalise(self, task: LocalTask) -> None:
        """Take the kept model."""
        task.load([fields.get("personal", {}) for fields in self.kept])
