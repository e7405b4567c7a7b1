"""What goes together with data that change from round to round; see ``docs/changing-data.md``."""

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.errors import ConfigError


def check_changing(config: Config, entry: Algorithm) -> None:
    """Refuse data that change where what is computed from them would not follow.

    Raises:
        ConfigError: Naming both keys and the reason.
    """
    stream, drift, arrive = config.stream, config.drift, config.arrive
    columns = "the sums of columns are of all examples, also of those that have not arrived"
    moves = "its validation examples are redrawn as others arrive, so some would have been trained on"
    rates = "the sampling rate of its ledger is that of one number of examples"
    claimed = "canaries say that they have examples, which never arrive"
    parties = "parties have the same rows, matched before round 1"
    taken = "public examples are taken out of it, and which of the others arrive when changes with that"
    chosen = any(record.of == "validation" for record in entry.up)
    arriving = (_stream(config), stream.on)
    late, drifting = ("arrive.share", arrive.share > 0), ("drift.kind", drift.kind != "none")
    own, named = ("stream.own-data", stream.own_data), f'algorithm = "{entry.name}"'
    for (key, on), other, applies, why in (
        *((case, named, entry.vertical, parties) for case in (arriving, late, drifting, own)),
        *((case, named, chosen, moves) for case in (arriving, own)),
        *((case, 'dp.unit = "example"', config.dp.local, rates) for case in (arriving, own)),
        (("drift.examples", drift.examples == "new"), 'public.data = ""',
         entry.public and not config.public.data, taken),
        (arriving, "standardise = true", config.data.standardise, columns),
        (arriving, 'missing = "mean"', config.data.missing == "mean", columns),
        *((case, "audit.canaries", config.audit.canaries > 0, claimed) for case in (arriving, late)),
    ):  # fmt: skip
        if on and applies:
            raise ConfigError(
                f'run-config key "{key}": it does not go with {other}, as {why}. Leave one of the two out'
            )
    if drift.examples == "new" and stream.start == 1:
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
    for key, on, instead in (
        (_stream(config), config.stream.on, "they arrive as its file grows: stream.own-data = true"),
        ("drift.kind", config.drift.kind != "none", "they drift by themselves"),
        ("arrive.share", config.arrive.share > 0, "a node that registers later joins then"),
    ):
        if on:
            raise ConfigError(
                f'run-config key "{key}": a node brings its own data, which are used as they are: {instead}; '
                "expected the key left out"
            )


def _stream(config: Config) -> str:
    return "stream.start" if config.stream.start < 1 else "stream.window"
