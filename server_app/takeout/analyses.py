"""What an analysis says of new rows: means of a regression, clusters, scores."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from server_app.takeout.declared_rows import Floats, OfRows, Reader
from server_app.takeout.taken import Columns, no_trees
from task.classical.clusters import clustering_of, nearest
from task.classical.components import components_of
from task.classical.fit import model_of, offset_of
from task.classical.table import covariance, ended, quantile
from task.errors import ConfigError, DataError
from task.numerics.arrays import NamedArrays
from task.resolve.model_card import ModelCard

_INVERSE: Mapping[str, Callable[[Floats], Floats]] = {
    "gaussian": lambda eta: eta,
    "binomial": lambda eta: 1.0 / (1.0 + np.exp(-eta)),
    "poisson": np.exp,
    "gamma": np.exp,
}


class Analysis(OfRows):
    """A table whose numbers say something of rows."""

    def says(self, read: Reader) -> Columns:
        """Return what the analysis says of each row.

        Raises:
            ConfigError: Its iteration has not ended.
        """
        if not ended(self.file.arrays):
            raise ConfigError(
                f"{self.file.path}: expected a run that has ended; the iteration of this one has not. Raise "
                "num-server-rounds, and continue the run with --resume"
            )
        return _SAYS[self.file.entry.work](self.file.card, self.file.arrays, read)

    def export(self, form: str, out: Path | None, data: Path | None, *, int8: bool) -> list[str]:
        """Refuse it, as a table is no model.

        Raises:
            ConfigError: Naming what there is.
        """
        raise no_trees(form) if form == "xgboost" else self.file.no_model()


def _means(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    """Return the mean of each row, and its 95 % interval by the model's errors: that of the link's scale."""
    model = model_of(card.config)
    design = model.design
    shifts = [v for name, v in design.others.items() if name in ("offset", "exposure")]
    table = read([*design.variables, *shifts])
    x = np.stack(design.columns(table), axis=1)
    eta = x @ arrays["coefficients"] + offset_of(model, table)
    if not np.isfinite(eta).all():
        raise DataError('run-config key "regression.exposure": expected numbers above 0 in its column')
    inverse = _reciprocal if model.inverse else _INVERSE[model.family]
    found: Columns = [("mean", inverse(eta).tolist())]
    if model.penalty:
        return found
    half = quantile(model, arrays) * np.sqrt(np.einsum("ni,ij,nj->n", x, covariance(model, arrays), x))
    ends = np.sort(np.stack([inverse(eta - half), inverse(eta + half)]), axis=0)
    return [*found, ("low", ends[0].tolist()), ("high", ends[1].tolist())]


def _reciprocal(eta: Floats) -> Floats:
    """Return 1 / eta; infinity where an interval reaches 0."""
    return np.divide(1.0, eta, out=np.full_like(eta, np.inf), where=eta > 0)


def _nearest(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    """Return the cluster of each row, and the distance to its centre."""
    asked = clustering_of(card.config)
    table = read(asked.variables)
    columns = [table.of(v) for v in asked.variables]
    which, square = nearest(columns, arrays["centres"], arrays["weights"].tolist())
    return [("cluster", which.tolist()), ("distance", np.sqrt(square).tolist())]


def _scores(card: ModelCard, arrays: NamedArrays, read: Reader) -> Columns:
    """Return the scores of each row."""
    asked = components_of(card.config)
    table = read(asked.variables)
    x = np.stack([table.of(v) for v in asked.variables], axis=1)
    scores = (x - arrays["mean"]) / arrays["scale"] @ arrays["components"].T
    return [(f"component_{k}", column.tolist()) for k, column in enumerate(scores.T, 1)]


_SAYS: Mapping[str, Callable[[ModelCard, NamedArrays, Reader], Columns]] = {
    "regression": _means,
    "clusters": _nearest,
    "components": _scores,
}


TAKES = dict.fromkeys(_SAYS, Analysis)
