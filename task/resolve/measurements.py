"""What goes with ``contribution.measure`` and ``gradient-dissimilarity``, which look at single clients.

Both change no model and need what single clients send in clear; the first needs their models, the second the
gradients of one global model.
"""

from collections.abc import Iterator

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP
from task.catalogue.selections import SELECTIONS
from task.config.knobs import Config
from task.errors import ConfigError

CONTRIBUTION, DISSIMILARITY = "contribution.measure", "gradient-dissimilarity"

Excluded = tuple[str, str, bool, str]  # a key, its value, whether it is set, and why it does not go with this


def check_measurements(config: Config, entry: Algorithm) -> None:
    """Refuse what leaves nothing to measure, or what a measurement would give away.

    Raises:
        ConfigError: Naming the key that does not go with it, and why.
    """
    if config.contribution.measure != "none":
        models = any(r.name == MODEL_UP.name and r.base == MODEL_DOWN.name for r in entry.up)
        if entry.personal or entry.repeats or entry.individual or not models:
            raise ConfigError(
                f'run-config key "{CONTRIBUTION}": expected an algorithm whose clients send models of one '
                f'global model, such as fedavg; got algorithm = "{entry.name}". Choose another'
            )
        _refuse(CONTRIBUTION, config.contribution.measure, "none", _no_models(config))
    if config.server.gradient_dissimilarity:
        _refuse(DISSIMILARITY, "true", "false", _no_gradients(config, entry))
        if entry.personal or entry.individual or entry.vertical or MODEL_DOWN not in entry.down:
            raise ConfigError(
                f'run-config key "{DISSIMILARITY}": expected an algorithm with one global model, such as '
                f'fedavg; got algorithm = "{entry.name}". Choose another, or leave the key out'
            )


def _refuse(key: str, got: str, off: str, excluded: Iterator[Excluded]) -> None:
    for other, value, on, why in excluded:
        if on:
            raise ConfigError(
                f'run-config key "{key}": expected none with {other} = {value}, as {why}; got {got}. Set it '
                f'to {off}, or choose another "{other}"'
            )


def _in_clear(config: Config) -> Iterator[Excluded]:
    """Yield what both refuse."""
    server = config.server
    yield "secagg", "true", server.secagg, "the server learns sums only"
    yield "he", "true", server.he, "the server cannot open what single clients send"
    yield "dp.noise", f"{config.dp.noise:g}", config.dp.central, "values of single clients are not protected"
    yield config.part_key, config.part_levels, config.parted, "clients have parts of the model"
    yield (
        "transcript", server.transcript, server.transcript != "none",
        "it is measured on data that a transcript does not hold",
    )  # fmt: skip
    yield "evaluate-every", "0", server.evaluate_every == 0, "it is measured when the server evaluates"


def _no_models(config: Config) -> Iterator[Excluded]:
    yield from _in_clear(config)
    unverified = "it was not verified together"
    yield "codec.up", config.codec.up, config.codec.up != "none", unverified
    yield "structured.kind", config.structured.kind, config.structured.kind != "none", unverified
    ring = SELECTIONS[config.server.selection].ring
    yield "selection", config.server.selection, ring, "each client's model replaces the last one's"


def _no_gradients(config: Config, entry: Algorithm) -> Iterator[Excluded]:
    yield from _in_clear(config)
    yield "dp.unit", '"example"', config.dp.local, "full gradients are not protected"
    yield "algorithm", f'"{entry.name}"', entry.asynchronous, "its clients are never all at one model"
