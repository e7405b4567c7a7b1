"""Checks of a run config that span keys or need a registry: names exist and parts fit together."""

import re
from collections.abc import Iterable

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import SELECTIONS
from task.catalogue.user_algorithm import algorithm_of
from task.config.knobs import Config
from task.config.sections import AUGMENTATIONS, OPTIMIZERS, TRACKERS
from task.datasets import DATASETS, column_types, spec_of
from task.datasets.column_types import read_types
from task.datasets.partition import PARTITIONS
from task.datasets.partitioners import arguments_in
from task.errors import ConfigError, choose_from
from task.features import check_features
from task.features.refusals import OWN
from task.models import MODELS
from task.numerics.graphs import why_not
from task.references import check_reference, is_reference
from task.resolve.analyses import ANALYSES
from task.resolve.cohorts import asked_of, candidates_of
from task.resolve.contract import contract_of, entry_of
from task.tasks import check_goal, check_goal_names

# Run-config keys that take ``package.module:name``, too.
REFERENCES = ("model", "models.levels", "dataset", "public.data", "partition")


def check_names(config: Config) -> None:
    """Refuse a config that names something unknown or combines what cannot go together.

    Raises:
        ConfigError: Naming the key, what was expected and the nearest name.
    """
    contract = algorithm_of(config.algorithm)
    spec_of(config.data.dataset)  # a path in its place is refused
    _check_known(config)
    config.width.by_level()
    if config.server.selection == "power-of-choice" and (clients := _clients(config)):
        candidates_of(config, clients)
    _check_tables(config)
    _check_graph(config)
    _check_edges(config)
    _check_shares(config)
    _check_replies(config)
    _check_byzantine(config)
    check_features(config, entry_of(config), contract_of(config))
    if contract.statistics:
        _check_statistics(config)
    _check_columns(config)
    check_goal_names(config)
    if config.data.task != "auto":
        check_goal(config, config.data.task)
    _check_schedule(config)
    _check_measured(config)
    if contract.traits.by_feature:
        _check_first_layer(config)
    _check_own_tests(config)


def _check_known(config: Config) -> None:
    """Refuse names that mean nothing."""
    named: list[tuple[str, str, Iterable[str]]] = [
        ("dataset", config.data.dataset, DATASETS),
        *([("public.data", config.public.data, DATASETS)] if config.public.data else []),
        ("model", config.model, MODELS),
        *(("models.levels", name, MODELS) for name, _ in config.models.by_level()),
        ("partition", config.data.partition, PARTITIONS),
        ("selection", config.server.selection, SELECTIONS),
    ]
    for key, got, known in named:
        if is_reference(got) and key in REFERENCES:
            check_reference(key, got)
        elif got not in known:
            raise ConfigError(choose_from(f'run-config key "{key}"', got, known))
    arguments_in(config.data.partition_arguments)
    read_types(column_types.RUN, config.data.column_types)
    if not is_reference(config.train.optimizer) and config.train.optimizer not in OPTIMIZERS:
        got = config.train.optimizer
        raise ConfigError(choose_from('run-config key "optimizer"', got, (*OPTIMIZERS, OWN)))
    augment = config.train.augment
    if is_reference(augment):
        check_reference("augment", augment)
    elif augment and augment not in AUGMENTATIONS:
        raise ConfigError(choose_from('run-config key "augment"', augment, (*AUGMENTATIONS, OWN)))
    for name in config.output.trackers:
        if name not in TRACKERS:
            raise ConfigError(choose_from('run-config key "tracker"', name, TRACKERS))


def _check_byzantine(config: Config) -> None:
    byzantine = config.robust.byzantine
    if (byzantine >= 1 and byzantine % 1) or 0.5 <= byzantine < 1:
        raise ConfigError(
            'run-config key "robust.byzantine": expected a share >= 0 and < 0.5 of the clients asked, or a '
            f"whole count >= 1 that is less than half of them; got {byzantine!r}"
        )


def _check_first_layer(config: Config) -> None:
    linear = ("2nn", "logistic", "mlp")
    if config.model not in linear and not is_reference(config.model):
        raise ConfigError(
            f'run-config key "model": {config.algorithm} scales the columns of a first layer that is '
            f"linear in the features; expected one of {', '.join(linear)}; got {config.model!r}"
        )


def _check_own_tests(config: Config) -> None:
    """Refuse an evaluation at clients that have no test data."""
    has_tests = config.data.local_test_fraction > 0 or config.data.partition == "natural"
    if config.server.fraction_evaluate > 0 and not has_tests:
        own = algorithm_of(config.algorithm).personal or config.train.ala
        raise ConfigError(
            'run-config key "fraction-evaluate": clients have no test data of their own because '
            '"local-test-fraction" is 0; set that above 0'
            + (", since the models are the clients' own" if own else ", or fraction-evaluate to 0")
        )


def _check_statistics(config: Config) -> None:
    """Refuse columns of an analysis that are not declared, and data without names of columns."""
    ANALYSES[config.entry.work](config)
    if config.data.dataset != "csv":
        raise ConfigError(
            f'run-config key "dataset": {config.algorithm} reads columns by their names; expected "csv"; got '
            f"{config.data.dataset!r}"
        )


def _check_tables(config: Config) -> None:
    """Refuse texts where tables are by class or example."""
    up = algorithm_of(config.algorithm).up
    if any(r.weights for r in up) and spec_of(config.data.dataset).targets > 1:
        raise ConfigError(
            f'run-config key "dataset": "{config.algorithm}" needs one class an example; expected another '
            f"data set than a text; got {config.data.dataset!r}"
        )


def _check_graph(config: Config) -> None:
    """Refuse a number of clients that has no graph of the route."""
    knobs, clients = config.d_psgd, _clients(config)
    if not clients or not _rule_reads(config, "d-psgd.route"):
        return
    if why := why_not(knobs.route, clients, knobs.degree):
        raise ConfigError(
            f'run-config key "num-clients": {why}; or choose another "d-psgd.route"; got {clients}'
        )


def _check_edges(config: Config) -> None:
    """Refuse edges that no client could belong to."""
    knobs, clients = config.hierfavg, _clients(config)
    try:
        re.compile(knobs.pattern)
    except re.error as err:
        raise ConfigError(
            f'run-config key "hierfavg.pattern": expected a regular expression; got {knobs.pattern!r}: {err}'
        ) from None
    if _rule_reads(config, "hierfavg.edges") and not knobs.pattern and 0 < clients < knobs.edges:
        raise ConfigError(
            f'run-config key "hierfavg.edges": expected at most the {clients} clients; got {knobs.edges}'
        )


def _rule_reads(config: Config, key: str) -> bool:
    """Return whether a key is one of the rule's own; a rule that a user brings is known to read none."""
    return not is_reference(config.algorithm) and algorithm_of(config.algorithm).owns(key)


def _clients(config: Config) -> int:
    """Return how many clients there are; 0 = that depends on the data or on the nodes."""
    own = spec_of(config.data.dataset).own and not config.data.data_path
    return 0 if own else config.data.num_clients


def _check_shares(config: Config) -> None:
    """Refuse a share of the clients above 0 that rounds to no client."""
    clients, attack = _clients(config), config.attack
    malicious = attack.fraction if attack.kind != "none" else 0.0
    for key, share, most, what in (
        ("attack.fraction", malicious, clients, "malicious"),
        ("arrive.share", config.arrive.share, clients - 1, "late"),  # one at least is there from round 1
    ):
        if clients and share and min(round(share * clients), most) < 1:
            needed = f"above {0.5 / clients:g}, or more clients" if most else "a larger num-clients"
            raise ConfigError(
                f'run-config key "{key}": 0 of {clients} clients would be {what}; expected {needed}; '
                f"got {share:g} with num-clients = {clients}"
            )


def _check_replies(config: Config) -> None:
    """Refuse to wait for more replies than there are clients to ask."""
    server, clients = config.server, _clients(config)
    draws = algorithm_of(config.algorithm).asynchronous or is_reference(config.algorithm)  # itself who trains
    most = clients if draws else asked_of(server, clients)
    if clients and server.min_replies > max(most, 1):
        raise ConfigError(
            f'run-config key "min-replies": expected at most {most}, as a round asks no more clients with '
            f"num-clients = {clients} and fraction-train = {server.fraction_train:g}; "
            f"got {server.min_replies}"
        )


def _check_columns(config: Config) -> None:
    """Refuse columns dealt to clients of another kind than parties, and parties that hold other rows."""
    partition, vertical = config.data.partition, algorithm_of(config.algorithm).vertical
    if vertical and partition != "columns":
        raise ConfigError(
            f'run-config key "partition": the clients of "{config.algorithm}" have the same rows and other '
            f'columns; expected "columns", or the key left out; got "{partition}"'
        )
    if partition == "columns" and not vertical:
        fits = [name for name, entry in ALGORITHMS.items() if entry.vertical]
        raise ConfigError(
            f'run-config key "partition": "columns" gives clients the same rows and other columns, which '
            f'"{config.algorithm}" cannot train on; expected another partition, or algorithm = '
            f"{', '.join(fits)}"
        )


def _check_schedule(config: Config) -> None:
    """Refuse a schedule of the learning rate that does nothing, or never begins."""
    train, rounds = config.train, config.server.num_server_rounds
    if train.lr_schedule == "step" and train.lr_decay == 1:
        raise ConfigError(
            'run-config key "lr-schedule": "step" multiplies the learning rate by "lr-decay", expected below '
            "1, such as 0.1; got 1"
        )
    if 0 < rounds <= train.lr_warmup:
        raise ConfigError(
            f'run-config key "lr-warmup": expected fewer rounds than "num-server-rounds" = {rounds}, after '
            f"which nothing is left to train at the full rate; got {train.lr_warmup}"
        )


def _check_measured(config: Config) -> None:
    """Refuse to stop by an accuracy, or to name metrics, if neither server nor clients measure them."""
    server, data = config.server, config.data
    own = algorithm_of(config.algorithm).personal or config.train.ala
    held = not data.pool_test and (bool(data.data_path) or not spec_of(data.dataset).own)
    central = bool(server.evaluate_every) and held and not own
    if central or server.fraction_evaluate:
        return
    for key, set_, wanted in (
        ("target-accuracy", server.target_accuracy, "an accuracy to go by"),
        ("plateau-rounds", server.plateau_rounds, "an accuracy to go by"),
        ("metrics", config.metrics and not server.fraction_heldout, "a model that is measured"),
    ):
        if set_:
            raise ConfigError(
                f'run-config key "{key}": expected {wanted}, but the server measures none; '
                'set "fraction-evaluate" above 0'
            )
