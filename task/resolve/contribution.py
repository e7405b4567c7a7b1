"""What goes with ``contribution.measure``: runs whose server has single clients' models in clear."""

from task.config.knobs import Config
from task.errors import ConfigError
from task.spec.entry import Algorithm
from task.spec.record import MODEL_DOWN, MODEL_UP
from task.spec.selections import SELECTIONS


def check_contribution(config: Config, entry: Algorithm) -> None:
    """Refuse what leaves no mean of single clients' models to measure.

    Raises:
        ConfigError: Naming the key that does not go with it, and why.
    """
    models = any(r.name == MODEL_UP.name and r.base == MODEL_DOWN.name for r in entry.up)
    if entry.personal or entry.repeats or entry.individual or not models:
        raise ConfigError(
            'run-config key "contribution.measure": expected an algorithm whose clients send models of one '
            f'global model, such as fedavg; got algorithm = "{entry.name}". Choose another'
        )
    server = config.server
    for key, value, on, why in (
        ("secagg", "true", server.secagg, "the server learns sums only"),
        ("he", "true", server.he, "the server cannot open single models"),
        ("dp.noise", f"{config.dp.noise:g}", config.dp.central, "values of single clients are not protected"),
        ("codec.up", config.codec.up, config.codec.up != "none", "it was not verified together"),
        ("structured.kind", config.structured.kind, config.structured.kind != "none",
         "it was not verified together"),
        (config.part_key, config.part_levels, config.parted, "clients send parts of the model"),
        ("selection", server.selection, SELECTIONS[server.selection].ring,
         "each client's model replaces the last one's"),
        ("transcript", server.transcript, server.transcript != "none",
         "values are measured on data that a transcript does not hold"),
        ("evaluate-every", "0", server.evaluate_every == 0, "values are measured when the server evaluates"),
    ):  # fmt: skip
        if on:
            raise ConfigError(
                f'run-config key "contribution.measure": expected none with {key} = {value}, as {why}; got '
                f'{config.contribution.measure}. Set it to none, or choose another "{key}"'
            )
