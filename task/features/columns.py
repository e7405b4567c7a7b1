"""Means and deviations of the clients' columns, learnt before round 1."""

from dataclasses import replace

from task.catalogue.columns import COLUMNS, columns_phase
from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.config.sections import TABLES
from task.features.feature import Feature
from task.features.refusals import Setting
from task.features.settings import STANDARDISED

_FILLED = Setting("missing", lambda c: c.data.missing != "refuse")


def _adds(config: Config, contract: Algorithm) -> Algorithm:
    phase = columns_phase(squares=config.data.standardise)
    return replace(contract, phases={**contract.phases, COLUMNS: phase})


def _against_divergence(config: Config) -> str:
    data = config.data
    if data.standardise or data.dataset not in TABLES or config.entry.vertical or config.entry.statistics:
        return ""
    return (
        'The likely cause in a table: its columns are read as they are; set the run-config key "standardise" '
        "to true."
    )


FEATURE = Feature(
    "columns",
    place=50,
    # Parties learn those of their own columns.
    active=lambda config, contract: config.data.learns_columns and not contract.vertical,
    adds=_adds,
    against_divergence=_against_divergence,
    stock_clients=(((STANDARDISED, _FILLED), "cannot fill and standardise columns as the run requires"),),
)
