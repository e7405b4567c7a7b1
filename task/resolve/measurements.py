"""What goes with ``contribution.measure`` and ``gradient-dissimilarity``, which look at single clients.

Both change no model and need what single clients send in clear; the first needs their models, the second the
gradients of one global model.
"""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP
from task.config.knobs import Config
from task.errors import ConfigError
from task.resolve.refusals import (
    CODEC_UP,
    DP_CENTRAL,
    DP_LOCAL,
    ENCRYPTED,
    PARTS,
    QUOTED,
    SECURE,
    STRUCTURED,
    TRANSCRIPT,
    Setting,
    algorithm_is,
    pairs,
    policy_is,
    refuse,
)

CONTRIBUTION = Setting("contribution.measure", lambda c: c.contribution.measure != "none", "none")
DISSIMILARITY = Setting("gradient-dissimilarity", lambda c: c.server.gradient_dissimilarity, "false")

_UNVERIFIED = "the combination is untested"
_IN_CLEAR = (
    (SECURE, "the server learns sums only"),
    (ENCRYPTED, "the server cannot decrypt single clients' uploads"),
    (DP_CENTRAL, "values of single clients are not protected"),
    (PARTS, "clients have parts of the model"),
    (TRANSCRIPT, "it is measured on data that a transcript does not hold"),
    (
        Setting("evaluate-every", lambda c: c.server.evaluate_every == 0),
        "it is measured when the server evaluates",
    ),
)
OF_MODELS = tuple(
    pairs(
        CONTRIBUTION,
        *_IN_CLEAR,
        (CODEC_UP, _UNVERIFIED),
        (STRUCTURED, _UNVERIFIED),
        (policy_is(lambda policy: policy.ring), "each client's model replaces the previous one's"),
    )
)
OF_GRADIENTS = tuple(
    pairs(
        DISSIMILARITY,
        *_IN_CLEAR,
        (replace(DP_LOCAL, got=QUOTED), "full gradients are not protected"),
        (algorithm_is(lambda entry: entry.asynchronous), "its clients never all have the same model"),
    )
)


def check_measurements(config: Config, entry: Algorithm) -> None:
    """Refuse what leaves nothing to measure, or what a measurement would give away.

    Raises:
        ConfigError: Naming the key that does not go with it, and why.
    """
    if CONTRIBUTION.on(config):
        models = any(r.name == MODEL_UP.name and r.base == MODEL_DOWN.name for r in entry.up)
        if entry.personal or entry.repeats or entry.individual or not models:
            raise ConfigError(
                f'run-config key "{CONTRIBUTION.key}": expected an algorithm whose clients send models of '
                f'one global model, such as fedavg; got algorithm = "{entry.name}". Choose another'
            )
    refuse(config, OF_MODELS)
    refuse(config, OF_GRADIENTS)
    one = MODEL_DOWN in entry.down and not (entry.personal or entry.individual or entry.vertical)
    if DISSIMILARITY.on(config) and not one:
        raise ConfigError(
            f'run-config key "{DISSIMILARITY.key}": expected an algorithm with one global model, such as '
            f'fedavg; got algorithm = "{entry.name}". Choose another, or leave the key out'
        )
