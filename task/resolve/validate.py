"""Checks of a run config that span keys or need a registry: names exist and parts fit together."""

from __future__ import annotations

from task.config.knobs import Config
from task.datasets import DATASETS
from task.datasets.partition import PARTITIONS
from task.errors import ConfigError, choose_from
from task.models import MODELS
from task.spec.algorithms import ALGORITHMS
from task.spec.personalised import ALA_FITS
from task.spec.record import MODEL_DOWN
from task.spec.selections import SELECTIONS, candidates_of


def check_names(config: Config) -> None:
    """Refuse a config that names something unknown or combines what cannot go together.

    Raises:
        ConfigError: Naming the key, what was expected and the nearest name.
    """
    for key, got, known in (
        ("algorithm", config.algorithm, ALGORITHMS),
        ("dataset", config.data.dataset, DATASETS),
        ("model", config.model, MODELS),
        ("partition", config.data.partition, PARTITIONS),
        ("selection", config.server.selection, SELECTIONS),
    ):
        if got not in known:
            raise ConfigError(choose_from(f'run-config key "{key}"', got, known))
    if config.server.selection == "power-of-choice" and config.data.num_clients:
        candidates_of(config, config.data.num_clients)
    byzantine = config.robust.byzantine
    if (byzantine >= 1 and byzantine % 1) or 0.5 <= byzantine < 1:
        raise ConfigError(
            'run-config key "robust.byzantine": expected a share >= 0 and < 0.5 of the clients asked, or a '
            f"whole count >= 1 that is less than half of them; got {byzantine!r}"
        )
    entry = ALGORITHMS[config.algorithm]
    one_by_one = entry.phases or entry.individual or any(f.reduce == "collect" for f in entry.up)
    if SELECTIONS[config.server.selection].ring and one_by_one:
        raise ConfigError(
            f'run-config key "selection": {config.server.selection} passes one model from client to client, '
            f"but {config.algorithm} needs the replies of several at once; expected a rule that takes their "
            "mean, such as fedavg"
        )
    if config.server.stragglers > 0 and config.train.local_steps > 0:
        raise ConfigError(
            'run-config key "stragglers": slow clients do fewer epochs, but "local-steps" counts steps; '
            "set one of the two to 0"
        )
    _check_personal(config)
    if config.algorithm == "fsvrg-sparse":
        linear = ("2nn", "logistic", "mlp")
        if config.model not in linear:
            raise ConfigError(
                f'run-config key "model": fsvrg-sparse scales the columns of a first layer that is linear in '
                f"the features; expected one of {', '.join(linear)}; got {config.model!r}"
            )
        if SELECTIONS[config.server.selection].by_examples:
            raise ConfigError(
                'run-config key "selection": fsvrg-sparse counts features with weights n_k; expected a '
                f"policy that does not draw by them, such as uniform; got {config.server.selection!r}"
            )
    if config.server.fraction_evaluate > 0 and config.data.local_test_fraction == 0:
        natural = config.data.partition == "natural"
        if not natural:
            own = ALGORITHMS[config.algorithm].personal or config.train.ala
            raise ConfigError(
                'run-config key "fraction-evaluate": clients have no test data of their own because '
                '"local-test-fraction" is 0; set that above 0'
                + (", since the models are the clients' own" if own else ", or fraction-evaluate to 0")
            )


def _check_personal(config: Config) -> None:
    """Refuse what personalised algorithms cannot do."""
    entry = ALGORITHMS[config.algorithm]
    if config.train.ala and config.algorithm not in ALA_FITS:
        raise ConfigError(
            f'run-config key "ala": adaptive local aggregation stands in front of {", ".join(ALA_FITS)}; got '
            f'algorithm = "{config.algorithm}". Set ala = false.'
        )
    whole = MODEL_DOWN in entry.down and not entry.private
    if SELECTIONS[config.server.selection].looks and not whole:
        raise ConfigError(
            f'run-config key "selection": {config.server.selection} goes by the loss of the received model, '
            f"but {config.algorithm} sends no whole model; expected uniform, proportional or fedcs"
        )
    if config.server.stragglers > 0 and config.personal.epochs > 0:
        raise ConfigError(
            'run-config key "personal.epochs": it is the same for all, but "stragglers" have fewer epochs; '
            "set one of the two to 0"
        )
