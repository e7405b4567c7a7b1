"""Keys that do not go together, whatever the algorithm. `task.resolve.composition` has what depends on it."""

from dataclasses import replace

from task.codecs import CODECS
from task.config.knobs import Config
from task.resolve.refusals import (
    ALA,
    ATTACK_INFORMED,
    COARSE,
    CODEC_DOWN,
    CODEC_UP,
    DP_CENTRAL,
    DP_LOCAL,
    ENCRYPTED,
    ENOUGH,
    HELD_OUT,
    KINDS,
    MEANS_FILLED,
    PARTS,
    SECURE,
    SHARP,
    STANDARDISED,
    STRAGGLERS,
    STRUCTURED,
    TRANSCRIPT,
    Setting,
    algorithm_is,
    pairs,
    policy_is,
    refuse,
)


def _codec(config: Config, *, biased: bool = False) -> bool:
    codec = CODECS.get(config.codec.up)
    return codec is not None and (codec.biased or not biased)


_LOSSES = policy_is(lambda policy: policy.needs_losses)
_UNBOUNDED = Setting("max-update-norm", lambda c: not (c.server.max_update_norm or c.dp.central))
_PORTABLE = Setting("portable", lambda c: c.train.portable)
_NOISY_NODES = Setting("dp.noise-by", lambda c: c.dp.distributed)
_WHOLE = "a masked sum has every number in full, so a code saves nothing"
_CODED = "a ciphertext has every number in full, so a code saves nothing"
_COLUMNS = "the sums of each client's columns go up in clear"

PAIRS = (
    *pairs(
        SHARP,
        (
            DP_LOCAL,
            "the noise covers one gradient of an example in a step, and the ascent takes a second one",
        ),
    ),
    *pairs(
        Setting("threads", lambda c: c.train.threads != 1, "1"),
        (_PORTABLE, "sums must be split alike on all machines"),
    ),
    *pairs(
        Setting("device", lambda c: c.train.device == "cuda", '"cpu" or "auto"'),
        (_PORTABLE, "clients train on processors"),
    ),
    *pairs(
        Setting("personal.epochs", lambda c: c.personal.epochs > 0, "0"),
        (STRAGGLERS, "it is the same for all clients, but slow ones do fewer epochs"),
    ),
    *pairs(
        Setting("initial-model", lambda c: c.initial_model, '""'),
        (ALA, "clients mix the received model with the model drawn from the seed"),
    ),
    *pairs(
        STRUCTURED,
        (ALA, "uploads are relative to the received model, but clients start from a mixture with it"),
    ),
    *pairs(CODEC_UP, (STRUCTURED, "that already decides what is sent")),
    *pairs(
        Setting("optimizer", lambda c: c.train.optimizer != "sgd", '"sgd"'),
        (STRUCTURED, "a restricted step goes along a restricted gradient"),
    ),
    *pairs(
        PARTS,
        (ALA, "clients keep arrays of the whole model from round to round"),
        (_LOSSES, "the policy uses the loss of the received model, and no whole model is sent"),
        (
            replace(CODEC_UP, on=lambda c: _codec(c, biased=True)),
            "clients keep the residuals of their codes for the whole model",
        ),
        (STRUCTURED, "a restriction applies to the whole model"),
        (CODEC_DOWN, "no whole model is sent"),
    ),
    *pairs(
        KINDS,
        (replace(CODEC_UP, on=_codec), "the combination is untested"),
        (HELD_OUT, "a held-out client has no kind of model of its own yet"),
    ),
    *pairs(
        PARTS,
        (TRANSCRIPT, "a transcript has sums of whole models"),
        (ATTACK_INFORMED, "malicious clients compare coordinates of models that do not have the same ones"),
    ),
    *pairs(
        SECURE,
        (_LOSSES, "the policy uses single clients' losses"),
        (policy_is(lambda policy: policy.ring), "the server sees each client's model on its way"),
        (CODEC_UP, _WHOLE),
        (STRUCTURED, _WHOLE),
        (PARTS, "which numbers a client sends would show which part it trained"),
        (HELD_OUT, "they are measured one by one"),
        (DP_LOCAL, "the server adds up the private steps of each client, which masks would hide"),
        (ENOUGH, "a sum is opened once all nodes have answered or the time is up"),
    ),
    *pairs(
        COARSE,
        (_UNBOUNDED, "without a bound on updates a sum of so few bits could wrap"),
    ),
    *pairs(
        ENCRYPTED,
        (SECURE, "both hide single nodes' sums; masks cost less"),
        (DP_CENTRAL, "the server adds noise to integers, but has only ciphertexts"),
        (DP_LOCAL, "the combination is untested"),
        (CODEC_UP, _CODED),
        (CODEC_DOWN, "the server has no model to encode"),
        (STRUCTURED, _CODED),
        (PARTS, "the server cannot cut parts out of a ciphertext"),
        (STANDARDISED, _COLUMNS),
        (MEANS_FILLED, _COLUMNS),
    ),
    *pairs(
        Setting("transcript", lambda c: c.server.transcript == "full", '"sums" or "none"'),
        (DP_CENTRAL, "uploads, and sums of masked uploads, have no noise"),
    ),
    *pairs(
        TRANSCRIPT,
        (algorithm_is(lambda entry: entry.vertical), "each party's part of the model stays with it"),
        (
            algorithm_is(lambda entry: entry.asynchronous),
            "a transcript does not say which client began when",
        ),
        (algorithm_is(lambda entry: entry.distils), "it does not hold public examples"),
        (ENCRYPTED, "the models that the rule computes are ciphertexts"),
        (COARSE, "the sums of a coarser grid are not published"),
        (_NOISY_NODES, "the sums that nodes noise are not published"),
    ),
)


def check_pairs(config: Config) -> None:
    """Refuse two keys of which one makes the other impossible or useless.

    Raises:
        ConfigError: Naming both, the reason, and what would go.
    """
    refuse(config, PAIRS)
