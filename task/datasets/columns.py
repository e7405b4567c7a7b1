"""Preparation of a table's columns: filling missing values, standardisation.

Both go by the means and deviations of all clients' values, which the server has the clients sum up before
round 1 and sends with every message (`strategies.stages.columns`); nodes keep none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from task.config.sections import TABLES, DataConfig
from task.datasets.header import read_column
from task.errors import ConfigError, DataError
from task.numerics.moments import ColumnMoments
from task.references import is_reference

if TYPE_CHECKING:  # importing torch takes seconds
    import torch

    from task.datasets.base import Dataset, Decoded


def layout_of(
    columns: Sequence[str], d: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], tuple[str, ...]]:
    """Return what the d columns of x are, given `Decoded.columns`.

    Returns:
        Which of them are numbers, not of a category; the first one of each feature; and their names, if any.
    """
    if not columns:
        return np.ones(d, bool), np.arange(d), ()
    features = [read_column(name) for name in columns[:-1]]
    widths = [len(feature.inputs) for feature in features]
    numbers = np.repeat([feature.type != "category" for feature in features], widths)
    names = tuple(name for feature in features for name in feature.inputs)
    return numbers, np.cumsum([0, *widths])[:-1], names


@dataclass(frozen=True, eq=False)
class Preparation:
    """How a run prepares the columns of x [N, d]."""

    numbers: npt.NDArray[np.bool_]  # which of the d columns are numbers, not of a category
    firsts: npt.NDArray[np.int64]  # the first column of each of f features
    missing: str  # how a missing number is filled: ``mean`` or ``zero``; ``refuse`` = there is none
    indicator: bool  # whether a model also reads, by feature, whether it is missing
    standardise: bool
    moments: ColumnMoments | None = None  # by input column; None = not known yet

    @property
    def learns(self) -> bool:
        """Whether it needs the moments."""
        return self.standardise or self.missing == "mean"

    @property
    def numeric(self) -> npt.NDArray[np.bool_]:
        """Which of the columns that a model reads are numbers."""
        return np.concatenate([self.numbers, np.zeros(len(self.firsts) * self.indicator, bool)])

    def with_moments(self, moments: ColumnMoments) -> Preparation:
        """Return the preparation by these moments.

        Raises:
            DataError: They are of numbers in a column that is of a category here.
        """
        odd = np.flatnonzero(~self.numeric & (moments.count > 0)) + 1
        if len(odd):
            raise DataError(
                f"column {odd[0]} of the {len(self.numeric)} that a model reads: expected numbers, as the "
                "other clients have; got a category. Give all nodes' files the same header"
            )
        return replace(self, moments=moments)

    def values(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return x [N, d] as a client sums it up, [N, columns that a model reads]; what is missing is NaN."""
        if not self.indicator:
            return x
        return np.concatenate([x, np.isnan(x[:, self.firsts]).astype(np.float32)], axis=1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, float32 [N, d], as a model reads it, float32.

        Raises:
            ConfigError: The moments are needed and not known.
        """
        import torch

        if self.learns and self.moments is None:
            raise ConfigError(
                'run-config keys "standardise" and "missing": expected the means of all clients from the '
                "server; got none. Drive the run by a strategy of Bouquet's"
            )
        d = x.shape[1]
        gone = torch.isnan(x)
        mean = torch.from_numpy(self.moments.mean[:d]) if self.moments else torch.zeros(d).double()
        fill = mean if self.missing == "mean" else torch.zeros_like(mean)
        # In float64, so that a large offset loses no digits.
        wide = torch.where(gone, fill, x.double())
        if self.standardise and self.moments:
            wide = (wide - mean) / torch.from_numpy(self.moments.std[:d])
            wide = torch.where(gone & ~torch.from_numpy(self.numbers), torch.zeros_like(wide), wide)
        parts = [wide.float(), gone[:, torch.from_numpy(self.firsts)].float()]
        return torch.cat(parts, dim=1) if self.indicator else parts[0]


def prepared(dataset: Dataset, config: DataConfig) -> Dataset:
    """Return a data set whose columns or pixels are prepared as the run says.

    Raises:
        ConfigError: It is no table of columns, or has no pixels, that the run's keys could be about.
    """
    dataset = dataset.with_pixels(config.pixels).with_crop(config.crop)
    if dataset.standardised and config.partition == "columns":
        raise ConfigError(
            'run-config key "pixels": expected another value with partition = "columns", as no party has the '
            'whole images, whose mean and deviation it would need; got "standardised"'
        )
    if config.missing == "refuse" and not config.standardise:
        return dataset
    if dataset.kind != "features" or dataset.x.ndim != 2:
        raise ConfigError(
            'run-config keys "standardise" and "missing": expected a table, examples of shape (columns,); '
            f"got {dataset.kind} of shape {dataset.input_shape}. Leave the keys out."
        )
    preparation = _preparation(dataset, config)
    return replace(dataset, preparation=preparation, input_shape=preparation.numeric.shape)


def _preparation(table: Decoded, config: DataConfig) -> Preparation:
    numbers, firsts, _ = layout_of(table.columns, table.x.shape[1])
    indicator = config.missing_indicator and config.missing != "refuse"
    return Preparation(numbers, firsts, config.missing, indicator, config.standardise)


def with_moments(dataset: Dataset, moments: ColumnMoments) -> Dataset:
    """Return a data set whose columns are prepared by these moments.

    Raises:
        DataError: They do not fit its columns.
    """
    assert dataset.preparation is not None
    return replace(dataset, preparation=dataset.preparation.with_moments(moments))


def readable(dataset: Dataset) -> Dataset:
    """Return a data set that can be read while its moments are not known, as it is; to check shapes alone."""
    preparation = dataset.preparation
    if preparation is None or preparation.moments is not None or not preparation.learns:
        return dataset
    d = len(preparation.numeric)
    return with_moments(dataset, ColumnMoments(np.zeros(d, np.int64), np.zeros(d), np.ones(d)))


def column_names(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the columns that a model reads; () if the data have none."""
    _, firsts, names = layout_of(dataset.columns, dataset.x.shape[1])
    indicator = names and dataset.preparation is not None and dataset.preparation.indicator
    return (*names, *(f"{names[j]} missing" for j in firsts)) if indicator else names


LARGE, UNLIKE = 1e3, 100  # a column whose values are larger, or larger than another's by this factor
_SAMPLE, _NAMED = 20_000, 3
_PICTURE = 16  # fewest pixels of a picture


def unscaled(dataset: Dataset, config: DataConfig) -> str:
    """Return a warning that names columns that are too large to train on as they are; "" if none is.

    Unscaled pixels are named as such. The warning is only for the data's owner: it has names and values of
    columns. With many rows, a sample is checked.
    """
    own = is_reference(config.dataset)  # only its maker could prepare its columns
    if config.doubles:  # of an analysis, whose sums have scales of their own
        return ""
    if config.standardise or dataset.kind != "features" or not (own or config.dataset in TABLES):
        return ""
    x = np.abs(dataset.x[: dataset.num_train : dataset.num_train // _SAMPLE + 1])
    if x.size >= _PICTURE * len(x) > 0 and x.min() == 0 and x.max() == 255 and not (x % 1).any():
        return (
            "x has whole numbers from 0 to 255, as pixels have, which are large to train on as they are. "
            "Divide them by 255, or give pictures [N, H, W] as uint8, which are scaled"
        )
    if dataset.x.ndim > 2:
        return ""
    are_numbers, _, names = layout_of(dataset.columns, x.shape[1])
    numbers = np.flatnonzero(are_numbers)
    # Over the values that exist; a column without values counts as zeros.
    size = np.nan_to_num(x[:, numbers]).max(axis=0, initial=0.0)
    if not (size > 0).any():
        return ""
    small = numbers[np.argmin(np.where(size > 0, size, np.inf))]
    least = size[size > 0].min()
    large = [int(j) for j in np.argsort(-size, kind="stable") if size[j] > min(LARGE, UNLIKE * least)]
    if not large:
        return ""

    def named(j: int) -> str:
        return f'"{names[j]}"' if names else f"{j + 1}"

    most = ", ".join(f"{named(numbers[j])} (up to {size[j]:.4g})" for j in large[:_NAMED])
    more = f" and {len(large) - _NAMED} more" if len(large) > _NAMED else ""
    unlike = size[large[0]] > UNLIKE * least
    beside = f", where {named(small)} is at most {least:.4g}" if unlike else ""
    remedy = "Scale" if own else 'Set the run-config key "standardise" to true, or scale'
    return (
        f"column{'s' * (len(large) > 1)} {most}{more}: large to train on as they are{beside}, so that the "
        f"loss may be huge or NaN. {remedy} the columns"
    )
