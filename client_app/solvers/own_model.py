"""Solvers of clients that have a model of their own from round to round, which the server never replaces."""

from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask


class OwnModelSolver(Solver):
    """SGD that keeps the client's own model; a client that is new has what it starts from in its place."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Return what plain SGD does; keep the client's own model."""
        return self.updates(task, stats, keep={"personal": self.own_models(task)})

    def personalise(self, task: LocalTask) -> None:
        """Take the kept model."""
        starts = task.own or [{}] * task.clients
        task.load([fields.get("personal", start) for fields, start in zip(self.kept, starts, strict=True)])
