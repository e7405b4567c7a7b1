"""A model's figures by groups of people, from exact counts that come with evaluations: ``groups``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from task.catalogue.entry import Algorithm
from task.catalogue.record import Layout, Record
from task.config.knobs import Config
from task.errors import ConfigError
from task.fairness.groups import KEY, comparisons_of, with_levels
from task.features.feature import Feature
from task.features.refusals import Setting, algorithm_is, pairs
from task.features.settings import DP_CENTRAL, DP_LOCAL, ENCRYPTED, TRANSCRIPT, VERTICAL

if TYPE_CHECKING:
    from task.datasets.base import Dataset

NAME, COUNTS = "groups", "group-counts"  # of the feature and its record
_COLLECTED = Record(
    COUNTS,
    Layout("rows", "int64"),
    "counts of right and wrong predictions by group of people, own test data",
    reduce="collect",
)
_GROUPS = Setting(KEY, lambda c: c.groups, '""')
_NOISELESS = "exact counts of few people are not protected by noise"


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    counts = replace(_COLLECTED, reduce="sum", carry="partial") if config.server.secagg else _COLLECTED
    return replace(contract, measured=(*contract.measured, counts), stages=(*contract.stages, NAME))


def _refuses(config: Config, _: Algorithm) -> str:
    comparisons_of(config.groups)
    if config.data.task in ("auto", "classification"):
        return ""
    return (
        f'"{KEY}": rates are of one class an example; expected task = "classification"; got '
        f'"{config.data.task}"'
    )


def _reads(config: Config, data: Dataset) -> Config:
    if data.task != "classification":
        raise ConfigError(
            f'run-config key "{KEY}": rates are of one class an example; expected data with classes; got '
            f'those of task = "{data.task}"'
        )
    return replace(config, groups=with_levels(config.groups, data))


FEATURE = Feature(
    NAME,
    place=145,
    active=lambda config, _: config.groups,
    adds=_adds,
    pairs=tuple(
        pairs(
            _GROUPS,
            (VERTICAL, "none of its clients has all that the model reads"),
            (algorithm_is(lambda entry: entry.statistics), "no model is trained"),
            ((DP_CENTRAL, DP_LOCAL), _NOISELESS),
            (ENCRYPTED, "the combination is untested"),
            (TRANSCRIPT, "it is measured on data that a transcript does not hold"),
        )
    ),
    refuses=_refuses,
    reads=_reads,
    stock_clients=(((_GROUPS,), "cannot count by groups of people"),),
    stock_loops=(((_GROUPS,), "the counts are made into rates by Bouquet's loop"),),
)
