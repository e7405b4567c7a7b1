"""What goes together with data that change from round to round; see ``docs/changing-data.md``."""

from dataclasses import replace

from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.refusals import (
    CANARIES,
    DP_LOCAL,
    MEANS_FILLED,
    QUOTED,
    STANDARDISED,
    Setting,
    algorithm_is,
    pairs,
    refuse,
)

STREAM = (
    Setting("stream.start", lambda c: c.stream.on and c.stream.start < 1),
    Setting("stream.window", lambda c: c.stream.on and not c.stream.start < 1),
)
LATE = Setting("arrive.share", lambda c: c.arrive.share > 0)
DRIFT = Setting("drift.kind", lambda c: c.drift.kind != "none")
OWN_DATA = Setting("stream.own-data", lambda c: c.stream.own_data)
_NEW = Setting("drift.examples", lambda c: c.drift.examples == "new")
_VALIDATES = algorithm_is(lambda entry: any(record.of == "validation" for record in entry.up))
_FROM_POOL = Setting("public.data", lambda c: c.entry.public and not c.public.data, got=QUOTED)
_COLUMNS = "the sums of columns cover all examples, even those that have not arrived"
_CLAIMED = "canaries claim examples, which never arrive"

CHANGING = (
    *pairs(
        (*STREAM, LATE, DRIFT, OWN_DATA),
        (algorithm_is(lambda entry: entry.vertical), "parties have the same rows, matched before round 1"),
    ),
    *pairs(
        (*STREAM, OWN_DATA),
        (
            _VALIDATES,
            "its validation examples are redrawn as others arrive, so it would have trained on some of them",
        ),
        (
            replace(DP_LOCAL, got=QUOTED),
            "its ledger has one sampling rate, for a fixed number of examples",
        ),
    ),
    *pairs(
        _NEW,
        (
            _FROM_POOL,
            "public examples are taken from it, which changes when the others arrive",
        ),
    ),
    *pairs(STREAM, (STANDARDISED, _COLUMNS), (replace(MEANS_FILLED, got=QUOTED), _COLUMNS)),
    *pairs((*STREAM, LATE), (CANARIES, _CLAIMED)),
)


def check_changing(config: Config) -> None:
    """Refuse data that change where what is computed from them would not follow.

    Raises:
        ConfigError: Naming both keys and the reason.
    """
    refuse(config, CHANGING)
    if _NEW.on(config) and config.stream.start == 1:
        raise ConfigError(
            'run-config key "drift.examples": "new" changes the examples that arrive from drift.round on; '
            "expected a stream, stream.start < 1 with stream.per-round > 0; got stream.start = 1, with which "
            "all are there in round 1"
        )


def check_own_data(config: Config) -> None:
    """Refuse, on a node that brings its own data, to hold some back or to change them.

    Raises:
        ConfigError: Naming the key.
    """
    arrive = "they arrive as its file grows: stream.own-data = true"
    for setting, instead in (
        *((setting, arrive) for setting in STREAM),
        (DRIFT, "they drift by themselves"),
        (LATE, "a node that registers later joins then"),
    ):
        if setting.on(config):
            raise ConfigError(
                f'run-config key "{setting.key}": a node brings its own data, which are used as they are: '
                f"{instead}; expected the key left out"
            )
