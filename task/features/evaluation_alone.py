"""Evaluation alone: no rounds, and the clients test a given model on their data."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.config.read import defaults
from task.config.when import as_toml
from task.features.feature import Feature
from task.features.refusals import Setting, algorithm_is, refused_by
from task.features.settings import DP_CENTRAL, DP_LOCAL, PARTS

_ALONE = Setting("num-server-rounds", lambda c: c.server.num_server_rounds == 0)
_ROUNDS = (
    "arrive.share", "attack.kind", "audit.canaries", "codec.down", "codec.up", "contribution.measure",
    "cross-evaluation", "drift.kind", "enough-replies", "gradient-dissimilarity", "he", "fraction-heldout",
    "max-update-norm", "norms", "plateau-rounds", "selection", "stragglers", "structured.kind",
    "target-accuracy", "transcript",
)  # fmt: skip


def _set(key: str) -> Setting:
    return Setting(key, lambda c: c.value(key) != defaults()[key], as_toml(defaults()[key]))


def _has_no_model(entry: Algorithm) -> bool:
    return entry.personal or entry.vertical or entry.evaluation is not None


def _refuses(config: Config, _: Algorithm) -> str:
    if not config.initial_model:
        return (
            '"num-server-rounds": 0 trains nothing and evaluates "initial-model"; expected that key, too, or '
            "at least 1 round; got neither"
        )
    if not config.server.fraction_evaluate:
        return (
            '"fraction-evaluate": with num-server-rounds = 0 clients only evaluate; expected > 0, such as '
            "1.0, or no value; got 0"
        )
    return ""


FEATURE = Feature(
    "evaluation_alone",
    place=5,
    active=lambda config, _: _ALONE.on(config),
    pairs=tuple(
        refused_by(
            _ALONE,
            (
                replace(algorithm_is(_has_no_model), fits='"fedavg"'),
                "its clients do not share one model that a file could give",
            ),
            ((*map(_set, _ROUNDS), DP_CENTRAL, DP_LOCAL, *PARTS), "nothing is trained"),
        )
    ),
    refuses=_refuses,
)
