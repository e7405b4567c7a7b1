"""Differential privacy of rows: nodes add noise to the sums of an analysis.

What else would leave a site unnoised, such as which cells hold few persons, is not asked then.
"""

from __future__ import annotations

import math
from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.privacy import too_little
from task.features.refusals import Setting, refused_by
from task.features.settings import COLLUDING, DP_ROWS
from task.privacy.accounting import gaussian_epsilon
from task.privacy.row_noise import questions_of


def _adds(_: Config, contract: Algorithm) -> Algorithm:
    """Leave the one question whose numbers have a bound on what a row adds."""
    return replace(contract, phases={})


def _refuses(config: Config, entry: Algorithm) -> str:
    if why := too_little(config):
        return why
    dp, asked = config.dp, questions_of(config, entry)
    cost = gaussian_epsilon(math.sqrt(asked) / dp.noise, dp.delta)
    if not 0 < dp.max_epsilon < cost:
        return ""
    what = f"the {asked} questions of the first round cost" if asked > 1 else "the first question costs"
    return (
        f'"dp.max-epsilon": expected at least {cost:.4g}, which {what} with these '
        f'"dp.noise" and "dp.delta"; got {dp.max_epsilon:g}'
    )


FEATURE = Feature(
    "row_privacy",
    place=65,
    active=lambda config, contract: DP_ROWS.on(config) and contract.noised_rows,
    adds=_adds,
    pairs=tuple(
        refused_by(
            Setting("secagg-min-nodes", lambda c: DP_ROWS.on(c) and c.server.secagg),
            (COLLUDING, "the noise of at least one node must stay unknown"),
        )
    ),
    refuses=_refuses,
)
