"""Measures the privacy of a run with canaries, in their own run and against a second one of the same keys.

Two runs are made: in the second, the canaries send that dropped out in the first. The results are compared
with the run's promises:

==============  ==========================================================================  =================
check           what it is                                                                  catches
==============  ==========================================================================  =================
``released``    epsilon from cos(w_T - w_0, u_i), of an attacker who reads the last model   too little noise,
                                                                                            no clipping, n_k
``repeated``    the same of w_T - w'_T: the attacker also repeats the run, with all its     noise or coins
                public keys and the data of all others                                      from a public seed
``one-run``     epsilon from a fifth of the canaries, guessed to be in                      as ``released``
``weight``      what a canary adds to the sum of the releases, in units of C / M            n_k, survivors'
                                                                                            denominator
``noise``       standard deviation of what the two runs do not share, in units of C         all of the above
                                                                                            but weights
``cohorts``     whether as many clients are asked in every round of both runs               public coins
==============  ==========================================================================  =================

The last model is the statistic of Andrew et al. 2023 for attackers who see that alone. They also take the
largest cosine over the rounds' releases; of canaries that may join any round, as clients here do, the sum
over the rounds says more, which w_T - w_0 is under FedAvg. ``weight`` and ``noise`` need a model that is that
sum, and are left out under other rules.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from server_app.extras.audit.statistics import LEVEL, lower_bound, one_run_bound, two_gaussians
from server_app.results.folder import MODEL, RunFolder
from server_app.run.initial_model import initial_model
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.read import read_checked
from task.errors import ConfigError
from task.numerics.arrays import Arrays, NamedArrays, only, squared_norm, state_of, ties_of
from task.privacy.canaries import canary_names, direction, is_in
from task.resolve.model_card import read_model
from task.resolve.run_model import model_of, parts_of
from task.wire.messages import ARRAYS

LEAST_NUMBERS, LEAST_CANARIES = 1000, 50
TOLERANCE = 0.02  # of weight and noise, in addition to four standard errors
ENOUGH_ROUNDS = 5  # to distinguish cohorts by their sizes

Row = dict[str, Any]


def initial_of(folder: RunFolder) -> Arrays:
    """Return what clients shared of the model that a run began with."""
    config = read_checked(folder.config()["run"])
    card, _ = read_model(folder.path / MODEL)
    model = model_of(config, card.input_shape, card.num_classes)
    parts = parts_of(model, config)
    known = {n: a for n, a in state_of(model).items() if n not in parts.private}
    if config.initial_model:
        known, _ = initial_model(config, known, parts.private, ties=ties_of(model))
    return only(known, parts.shared)


def check_audited(config: Config) -> None:
    """Refuse a run whose canaries could show nothing.

    Raises:
        ConfigError: Naming the key and what was expected.
    """
    if not config.dp.central:
        raise ConfigError(
            'run-config key "dp.noise": expected above 0, with dp.unit = "client", as canaries are '
            "clients; got a run without it"
        )
    if config.audit.canaries < LEAST_CANARIES:
        raise ConfigError(
            f"--canaries: expected at least {LEAST_CANARIES}, or the bounds are empty; got "
            f"{config.audit.canaries}"
        )


def audit(first: Path, second: Path) -> Row:
    """Return what two finished runs show, the second with ``audit.swap``; see `judge`."""
    folders = RunFolder(first), RunFolder(second)
    config = read_checked(folders[0].config()["run"])
    ends = [read_model(f.path / MODEL)[1] for f in folders]
    return judge(config, initial_of(folders[0]), ends, [f.rounds() for f in folders])


def judge(
    config: Config, begin: NamedArrays, ends: Sequence[NamedArrays], rounds: Sequence[Sequence[Row]]
) -> Row:
    """Return what two runs of the same keys but ``audit.swap`` show.

    Args:
        config: The first run.
        begin: The shared part of the model that both began with.
        ends: The last model of each.
        rounds: The lines of ``rounds.jsonl`` of each.

    Raises:
        ConfigError: The model is too small.
    """
    rows = [[row for row in lines if row["round"]] for lines in rounds]
    dp, names = config.dp, canary_names(config)
    inside = np.array([is_in(config, name) for name in names])
    moved, apart = _minus(ends[0], begin), _minus(ends[0], ends[1])
    size = sum(a.size for a in begin.values())
    if size < LEAST_NUMBERS:
        raise ConfigError(
            f'run-config key "model": expected one of at least {LEAST_NUMBERS} numbers, where random '
            f"directions are nearly orthogonal; got {size}"
        )
    along = _along(config, names, begin, [moved, apart])
    scores = [
        math.sqrt(size) * found / math.sqrt(squared_norm(change))
        for found, change in zip(along, (moved, apart), strict=True)
    ]
    promised = float(rows[0][-1]["epsilon"])
    # Those that are out are in the second run, which is subtracted.
    seen = {"released": scores[0][inside], "repeated": np.where(inside, scores[1], -scores[1])}
    checks: dict[str, Row] = {}
    for name, found in seen.items():
        mean, std = float(found.mean()), float(found.std(ddof=1))
        bound = lower_bound(found, dp.delta, LEVEL / len(seen))
        estimate = two_gaussians(mean, std, dp.delta)
        checks[name] = {"at_least": bound, "estimate": estimate, "mean": mean, "std": std}
    checks["one-run"] = one_run_bound(scores[0], inside.tolist(), dp.delta)
    for check in checks.values():
        check |= {"promised": promised, "holds": check["at_least"] <= promised}
    entry = algorithm_of(config.algorithm)
    if entry.takes_mean and entry.traits.plain and not entry.personal:  # w_T is w_0 plus all releases
        checks |= _parameters(config, rows[0], along[0][inside], math.sqrt(squared_norm(apart)), size)
    if config.server.fraction_train < 1 and len(rows[0]) >= ENOUGH_ROUNDS:
        same = [row["asked"] for row in rows[0]] == [row["asked"] for row in rows[1]]
        checks["cohorts"] = {"same": same, "holds": not same}
    return {
        "epsilon": promised,
        "delta": dp.delta,
        "rounds": len(rows[0]),
        "numbers": size,
        "canaries": {"in": int(inside.sum()), "out": int((~inside).sum())},
        "confidence": 1 - LEVEL,
        "checks": checks,
        "holds": all(check["holds"] for check in checks.values()),
    }


def _parameters(
    config: Config, rows: Sequence[Row], along: np.ndarray, apart: float, size: int
) -> dict[str, Row]:
    """Return the measured weight of a client and the noise, with the promised values of both."""
    clips = np.array([row["dp_clip"] for row in rows])
    joins = config.server.fraction_train
    expected = joins * rows[-1]["population"]  # M
    unit = joins * float(clips.sum()) / expected
    weight, error = float(along.mean()) / unit, float(along.std(ddof=1)) / math.sqrt(len(along)) / unit
    noise = apart / math.sqrt(2 * size) * expected / math.sqrt(float((clips**2).sum()))
    least = config.dp.noise * (1 - TOLERANCE - 4 / math.sqrt(4 * size))
    return {
        "weight": {
            "measured": weight,
            "error": error,
            "promised": 1.0,
            "holds": weight <= 1 + TOLERANCE + 4 * error,
        },
        "noise": {"measured": noise, "promised": config.dp.noise, "holds": noise >= least},
    }


def _minus(after: NamedArrays, before: NamedArrays) -> Arrays:
    return {n: np.subtract(after[n], a, dtype=np.float64) for n, a in before.items()}


def _along(
    config: Config, names: Sequence[str], like: NamedArrays, changes: Sequence[NamedArrays]
) -> list[np.ndarray]:
    """Return the inner products of each change with each canary's direction in the model, float64 [N]."""
    found = np.empty((len(changes), len(names)))
    for i, name in enumerate(names):
        drawn = direction(config, name, {ARRAYS: like})[ARRAYS]
        for j, change in enumerate(changes):
            found[j, i] = math.fsum(float(np.vdot(a, drawn[n])) for n, a in change.items())
    return list(found)
