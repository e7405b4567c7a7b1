"""Principal components over sites by exact sums.

Pearson 1901. One question, in round 1: n, the sums of the columns and of the products of every two. From them
follow the means and the covariance matrix in rationals (`task.classical.moments`), and from this its
eigenvalues and eigenvectors, by a method with the same bits on any machine (`task.numerics.jacobi`).

Every site must answer (`strategies.rules.exact_sums`).

The rows (0, 0) and (1, 1) have one component with all of the variance, 1/2 + 1/2:

>>> config = read_config({"algorithm": "pca", "dataset": "csv", "pca.columns": "x(0..1), y(0..1)"})
>>> totals = [int(t * 2**51) for t in (2, 0, 0, 2, 2, 2)]  # of the columns as -1 to 1
>>> result_of(components_of(config), moments_in(totals, 2, squares=False))["variances"].round(12).tolist()
[1.0, 0.0]
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

from strategies.engine.rule import TRAIN, Round, RoundContext
from strategies.engine.state import AggregatedReplies, ServerState, Updated
from strategies.rules.exact_sums import ExactSums, hashed, no_sums, totals_in
from task.catalogue.multivariate import PRODUCTS
from task.classical.components import Components, components_of, nothing, result_of
from task.classical.moments import moments_in
from task.config.knobs import Config
from task.numerics.arrays import Arrays


def server_update(state: ServerState, reduced: AggregatedReplies, config: Config) -> Updated[ServerState]:
    """Find the components."""
    asked, totals = components_of(config), totals_in(reduced, PRODUCTS)
    moments = moments_in(totals, asked.p, squares=False)
    arrays = {**hashed(state.arrays, totals), **result_of(asked, moments)}
    return replace(state, arrays=arrays), {"rows": moments.n}


class PCA(ExactSums, algorithm="pca", update=server_update):
    """Principal components by exact sums; see `strategies.rules.pca`."""

    @cached_property
    def model(self) -> Components:
        """What is asked for; a strategy may be made before its columns are declared."""
        return components_of(self.config)

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; no model of the run's is used."""
        return ServerState({**nothing(self.model.count, self.model.p), **no_sums()})

    def round(self, state: Any, context: RoundContext) -> Round:
        """Ask for the sums."""
        replies = yield from self.ask(TRAIN, context, self.model.size)
        return type(self).update(state, replies, self.config)

    def finished(self, state: Any) -> bool:
        """Return whether the components are there."""
        return bool(state.arrays["figures"].any())
