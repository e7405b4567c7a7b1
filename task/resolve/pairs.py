"""Keys that do not go together, whatever the algorithm. `task.resolve.composition` has what depends on it."""

from task import codecs
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import SELECTIONS
from task.config.attack_section import INFORMED
from task.config.knobs import Config
from task.errors import ConfigError
from task.secagg.fixed_point import EXACT


def check_pairs(config: Config) -> None:
    """Refuse two keys of which one makes the other impossible or useless.

    Raises:
        ConfigError: Naming both, the reason, and what would go.
    """
    _refuse(
        config.sam.rho > 0 and config.dp.local, ("sam.rho", f"{config.sam.rho:g}", "0"), "dp.unit", "example",
        "the noise is for one gradient of an example in a step, and the ascent takes another",
    )  # fmt: skip
    if config.parted:
        _check_parts(config)
    if config.server.secagg:
        _check_secure(config)
    if config.server.he:
        _check_encrypted(config)
    if config.server.transcript != "none":
        _check_transcript(config)


def _check_secure(config: Config) -> None:
    """Refuse keys that need single clients' numbers, or that masks would make useless."""
    server, selection = config.server, SELECTIONS[config.server.selection]
    whole = "a masked sum has every number whole, so that a code saves nothing"
    for key, value, on, why in (
        ("selection", selection.name, selection.needs_losses, "the policy goes by single clients' losses"),
        ("selection", selection.name, selection.ring, "the server sees each client's model on its way"),
        ("codec.up", config.codec.up, config.codec.up != "none", whole),
        ("structured.kind", config.structured.kind, config.structured.kind != "none", whole),
        (config.part_key, config.part_levels, config.parted,
         "which numbers a client sends would show which part it trained"),
        ("heldout-clients", f"{server.heldout_clients:g}", server.heldout_clients > 0,
         "they are measured one by one"),
        ("dp.unit", config.dp.unit, config.dp.local,
         "the server adds up the private steps of each client, which masks would hide"),
        ("enough-replies", f"{server.enough_replies}", server.enough_replies > 0,
         "a sum is opened once all nodes have answered or the time is up"),
    ):  # fmt: skip
        _refuse(on, ("secagg", "true", "false"), key, value, why)
    bits = f"{server.secagg_bits}"
    if server.secagg_bits < EXACT and not (server.max_update_norm or config.dp.central):
        raise ConfigError(
            f'run-config key "secagg-bits": expected {EXACT} with max-update-norm = 0, as without a bound on '
            f"updates a sum of {bits} bits could wrap; got {bits}. Set max-update-norm: what is larger "
            "is refused"
        )


def _check_encrypted(config: Config) -> None:
    """Refuse keys that need single clients' models, or the model in clear, at the server."""
    server, dp = config.server, config.dp
    coded = "a ciphertext has every number whole, so that a code saves nothing"
    columns = "the sums of each client's columns go up in clear"
    for key, value, on, why in (
        ("secagg", "true", server.secagg, "either hides single nodes' sums; masks cost less"),
        ("dp.noise", f"{dp.noise:g}", dp.central, "the server adds noise to integers, and has ciphertexts"),
        ("dp.unit", dp.unit, dp.local, "it was not verified together"),
        ("codec.up", config.codec.up, config.codec.up != "none", coded),
        ("codec.down", config.codec.down, config.codec.down != "none", "the server knows no model to code"),
        ("structured.kind", config.structured.kind, config.structured.kind != "none", coded),
        (config.part_key, config.part_levels, config.parted,
         "the server cannot cut parts out of a ciphertext"),
        ("standardise", "true", config.data.standardise, columns),
        ("missing", "mean", config.data.missing == "mean", columns),
    ):  # fmt: skip
        _refuse(on, ("he", "true", "false"), key, value, why)


def _check_transcript(config: Config) -> None:
    """Refuse keys under which a round cannot be computed again from what a transcript holds."""
    server, entry = config.server, ALGORITHMS.get(config.algorithm)
    if server.transcript == "full" and config.dp.central:
        raise ConfigError(
            'run-config key "transcript": expected "sums" or "none" with dp.noise, as uploads, and sums of '
            'masked ones, are without noise; got "full"'
        )
    noisy = config.dp.central and config.dp.noise_by == "nodes"
    for key, value, on, why in (
        ("algorithm", config.algorithm, entry is not None and entry.vertical,
         "each party's part of the model stays with it"),
        ("algorithm", config.algorithm, entry is not None and entry.asynchronous,
         "a transcript does not say who was at work since when"),
        ("algorithm", config.algorithm, bool(entry and entry.distils), "it does not hold public examples"),
        ("he", "true", server.he, "the models that the rule computes are ciphertexts"),
        ("secagg-bits", f"{server.secagg_bits}", server.secagg and server.secagg_bits < EXACT,
         "the sums of a coarser grid are not published"),
        ("dp.noise-by", "nodes", noisy, "the sums that nodes noise are not published"),
    ):  # fmt: skip
        _refuse(on, ("transcript", server.transcript, "none"), key, value, why)


def _check_parts(config: Config) -> None:
    """Refuse keys that do not go with clients that train a part of the model each."""
    selection, codec = config.server.selection, codecs.CODECS.get(config.codec.up)
    for key, value, on, why in (
        ("ala", "true", config.train.ala, "clients keep arrays of the whole model from round to round"),
        ("selection", selection, SELECTIONS[selection].needs_losses,
         "the policy goes by the loss of the received model, and no whole model is sent"),
        ("codec.up", config.codec.up, codec is not None and codec.biased,
         "clients keep what their codes leave out of the whole model"),
        ("structured.kind", config.structured.kind, config.structured.kind != "none",
         "a restriction is of the whole model"),
        ("codec.down", config.codec.down, config.codec.down != "none", "no whole model is sent"),
        ("codec.up", config.codec.up, codec is not None and config.by_kind, "it was not verified together"),
        ("heldout-clients", "above 0", config.by_kind and config.server.heldout_clients > 0,
         "a client held out has no kind of model of its own yet"),
        ("transcript", config.server.transcript, config.server.transcript != "none",
         "a transcript's sums are of whole models"),
        ("attack.kind", config.attack.kind, config.attack.kind in INFORMED,
         "malicious clients compare coordinates of models that do not have the same ones"),
    ):  # fmt: skip
        _refuse(on, (config.part_key, config.part_levels, config.part_whole), key, value, why)


def _refuse(on: bool, wanted: tuple[str, str, str], key: str, value: str, why: str) -> None:
    """Refuse a key for the value of another; `wanted` are its name, its value, and the one that would go."""
    if on:
        name, got, fits = wanted
        raise ConfigError(
            f'run-config key "{name}": expected {fits} with {key} = {value}, as {why}; got {got}. '
            f'Set it to {fits}, or choose another "{key}"'
        )
