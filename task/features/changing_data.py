"""Data that change from round to round: streams, drift, late clients (``docs/howto/changing-data.md``)."""

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.errors import ConfigError
from task.features.feature import Feature
from task.features.refusals import Setting, algorithm_is, pairs
from task.features.settings import CANARIES, DP_LOCAL, MEANS_FILLED, STANDARDISED, VERTICAL

STREAM = (
    Setting("stream.start", lambda c: c.stream.on and c.stream.start < 1),
    Setting("stream.window", lambda c: c.stream.on and not c.stream.start < 1),
)
LATE = Setting("arrive.share", lambda c: c.arrive.share > 0)
DRIFT = Setting("drift.kind", lambda c: c.drift.kind != "none")
OWN_DATA = Setting("stream.own-data", lambda c: c.stream.own_data)
ALL = (*STREAM, LATE, DRIFT, OWN_DATA)
_NEW = Setting("drift.examples", lambda c: c.drift.examples == "new")
_VALIDATES = algorithm_is(lambda entry: any(record.of == "validation" for record in entry.up))
_FROM_POOL = Setting("public.data", lambda c: c.entry.public and not c.public.data)
_COLUMNS = "the sums of columns cover all examples, even those that have not arrived"
_CLAIMED = "canaries claim examples, which never arrive"
_REDRAWN = "its validation examples are redrawn as others arrive, so it would have trained on some of them"
_TAKEN_OUT = "public examples are taken from it, which changes when the others arrive"


def _refuses(config: Config, _: Algorithm) -> str:
    if _NEW.on(config) and config.stream.start == 1:
        return (
            '"drift.examples": "new" changes the examples that arrive from drift.round on; expected a '
            "stream, stream.start < 1 with stream.per-round > 0; got stream.start = 1, with which all are "
            "there in round 1"
        )
    return ""


FEATURE = Feature(
    "changing_data",
    place=48,
    active=lambda config, _: any(setting.on(config) for setting in ALL),
    pairs=(
        *pairs(ALL, (VERTICAL, "parties have the same rows, matched before round 1")),
        *pairs(
            (*STREAM, OWN_DATA),
            (_VALIDATES, _REDRAWN),
            (DP_LOCAL, "its ledger has one sampling rate, for a fixed number of examples"),
        ),
        *pairs(_NEW, (_FROM_POOL, _TAKEN_OUT)),
        *pairs(STREAM, (STANDARDISED, _COLUMNS), (MEANS_FILLED, _COLUMNS)),
        *pairs((*STREAM, LATE), (CANARIES, _CLAIMED)),
    ),
    refuses=_refuses,
    stock_clients=(((*STREAM, LATE, DRIFT), "has no changing data (stream.*, drift.*, arrive.*)"),),
    stock_loops=(((*STREAM, LATE), "each client of a node has its own examples and rounds, by stream.*"),),
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
