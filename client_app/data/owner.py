"""Rules of a node's owner, which no run can change: paths, error texts, fewest examples and steps.

The owner says it in the node config (``flower-supernode --node-config``), which ``bouquet node`` fills from
``[policy]`` of its kit:

================  ==============================================================================  =========
key               meaning                                                                         default
================  ==============================================================================  =========
``run-paths``     whether a run's config may name ``data-path``, ``data-dir``, ``cache-dir`` and  false
                  ``state-dir`` on this machine
``data-dir``,     this node's own; without them ``$BOUQUET_DATA``, ``$BOUQUET_CACHE`` or the      none
``cache-dir``,    home folder
``state-dir``
``min-examples``  fewest distinct training examples that a record of an upload is computed from,  0
                  and fewest test examples that measures which leave the node are of
``min-steps``     fewest local steps that it is computed in, unless each step takes all examples  0
``column-types``  what the owner declares of the columns of its csv file, as its header could    none
                  (`task.datasets.column_types`)
``packages``      packages and modules that a run may name as ``package.module:name``, "net,data",  none
                  and data sets of Hugging Face, "hf:OWNER/NAME"
``he-key``        file of the key that nodes encrypt with (run-config key ``he``)                 none
``initial-model`` file with the frozen part of models, which then does not travel to this node     none
``he-required``   whether it takes part in runs under ``he`` only                                 false
``max-epsilon``,  largest epsilon that what leaves may cost, all runs together, and the delta at  0, none
``delta``         which it is counted (`task.privacy.noise_ledger`)
``max-questions``  most questions for exact sums that are answered, all runs together; 0 = any number  0
``keep-models``   folder in which the newest global model of each run is kept                     none
``names``         whether names of columns, categories and classes go to the server               false
``own-model``     whether the node's own model goes to the server and to other nodes              false
``missing-counts``  whether counts of missing values may leave, however small                      false
``pooled-counts``  whether counts of few persons may leave in masked sums of enough persons        false
================  ==============================================================================  =========

In a simulation the run and the clients are one user's on one machine, so that the run chooses freely and
hears everything. A simulation sets this explicitly; every other process is a node.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from client_app.training.loop import steps_of
from task import trust
from task.catalogue.entry import Algorithm
from task.catalogue.record import FREE, Record
from task.config.knobs import Config
from task.config.paths import own_state_root
from task.config.read import flatten, read_checked
from task.config.sections import TrainConfig
from task.datasets import column_types
from task.encryption.ckks import NODE_KEY, REQUIRED
from task.errors import BouquetError, ConfigError, RefusedError, public, with_kind
from task.population import listed
from task.privacy.noise_ledger import MAX_EPSILON, NoiseLedger
from task.privacy.query_ledger import QueryLedger
from task.privacy.shares import multiplier
from task.references import is_hub, package_of, place, references_in
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.text import logger
from task.vertical.proofs import Prover

FOLDERS = ("data-dir", "cache-dir", "state-dir")
DATA = "data-path"
PACKAGES, KEEP_MODELS, NAMES, OWN_MODEL = "packages", "keep-models", "names", "own-model"
INITIAL_MODEL, MISSING_COUNTS, POOLED_COUNTS = "initial-model", "missing-counts", "pooled-counts"
TRAIN_LOSS = Record("train-loss", FREE, "mean loss over the examples as they were trained on")


@dataclass(frozen=True)
class Owner:
    """The rules of a node's owner."""

    simulation: bool = True  # whether there is none, as the run and the node are one user's
    min_examples: int = 0  # fewest distinct examples behind anything that leaves the node; 0 = any number
    min_steps: int = 0  # fewest local steps that it is computed in; 0 = any number
    key: str = ""  # file of the key that nodes encrypt with; "" = none
    encrypted: bool = False  # whether it takes part in encrypted runs only
    keep_models: str = ""  # folder of the newest global models, see `client_app.stages.kept_model`; "" = none
    names: bool = False  # whether names of columns, categories and classes go to the server
    initial_model: str = ""  # file of the frozen part of models; "" = none, see `client_app.data.frozen`
    own_model: bool = False  # whether its own model goes to others (run-config key ``cross-evaluation``)
    missing_counts: bool = False  # whether counts of fewer missing values than `min_examples` leave the node
    pooled_counts: bool = False  # whether small counts do, in masked sums (`task.classical.pooled`)

    ledger: NoiseLedger | None = dataclasses.field(default=None, compare=False)  # None = no limit
    queries: QueryLedger | None = dataclasses.field(default=None, compare=False)  # None = no account

    # Signs what its node sends to other parties, and checks what they send.
    prover: Prover | None = dataclasses.field(default=None, compare=False)

    def explain(self, err: Exception) -> str:
        """Return the text of an error for the server, with its kind; the node's own log has all of it."""
        if self.simulation:
            return with_kind(err, str(err) if isinstance(err, BouquetError) else place(err))
        logger.error("%s", err, exc_info=None if isinstance(err, BouquetError) else err)
        return with_kind(err, public(err))


SIMULATION = Owner()


def owner_of(node_config: Mapping[str, Any], run: int = 0) -> Owner:
    """Read the rules from a node config; `run` is Flower's id.

    Raises:
        ConfigError: A bound is out of range, ``keep-models`` no folder, or ``names`` or ``own-model`` no
            truth value.
    """
    bounds = [node_config.get(key, 0) for key in ("min-examples", "min-steps")]
    for key, value in zip(("min-examples", "min-steps"), bounds, strict=True):
        if type(value) is not int or value < 0:
            raise ConfigError(f'node config: key "{key}": expected a whole number >= 0; got {value!r}')
    models, file = _text(node_config, KEEP_MODELS, "a folder"), _text(node_config, INITIAL_MODEL, "a file")
    flags = (NAMES, OWN_MODEL, MISSING_COUNTS, POOLED_COUNTS)
    names, own, missing, pooled = (_flag(node_config, key) for key in flags)
    key, encrypted = str(node_config.get(NODE_KEY, "")), node_config.get(REQUIRED) is True
    ledger = NoiseLedger.of(own_state_root(node_config), node_config)
    queries = QueryLedger.of(own_state_root(node_config), node_config)
    return Owner(
        False, bounds[0], bounds[1], key, encrypted, models, names, file, own, missing, pooled, ledger,
        queries, Prover.of(node_config, run),
    )  # fmt: skip


def _text(node_config: Mapping[str, Any], key: str, what: str) -> str:
    value = node_config.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f'node config: key "{key}": expected {what}; got {value!r}')
    return value


def _flag(node_config: Mapping[str, Any], key: str) -> bool:
    value = node_config.get(key, False)
    if type(value) is not bool:
        raise ConfigError(f'node config: key "{key}": expected true or false; got {value!r}')
    return value


def config_of_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Config:
    """Return a run's config with this node's paths instead of the run's.

    Whether its keys go together is checked with the run's keys only, as on the server: a node's own paths say
    nothing about the number of clients or about who measures what.

    Raises:
        ConfigError: The run names a path, or code of its user's own, and the node's owner does not permit
            it; a permission is of another type; or a key is wrong.
    """
    keys = keys_of_node(run_config, node_config)
    read_config(run_config)
    config = read_checked(keys)
    if not (types := _text(node_config, column_types.KEY, "declarations of columns")):
        return config
    column_types.read_types(column_types.OWNER, types)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, own_types=types))


def keys_of_node(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's keys with this node's paths instead of the run's.

    Raises:
        ConfigError: The run names a path, or code of its user's own, and the node's owner does not permit
            it; or a permission is of another type.
    """
    keys = dict(flatten(run_config))
    permitted = _flag(node_config, "run-paths")
    # With data of its own a node has no use for the run's data-path, which names the server's test file.
    _check_packages(keys, node_config)
    asked = FOLDERS if node_config.get(DATA) else (DATA, *FOLDERS)
    for key in asked:
        if keys.get(key) and not permitted:
            raise ConfigError(
                f'run-config key "{key}": expected none, since its owner decides where a node\'s '
                "files are; got "
                f"{keys[key]!r}. Leave the key out, or ask the node's owner to permit it: run-paths "
                "= true in "
                "[policy] of its kit.toml, or in its --node-config"
            )
    return keys | {key: str(node_config[key]) for key in (DATA, *FOLDERS) if node_config.get(key)}


def _check_packages(keys: Mapping[str, Any], node_config: Mapping[str, Any]) -> None:
    """Refuse a run that names code of its user's own, unless the node's owner allows the package.

    What the owner allows may be imported from then on.
    """
    allowed = _text(node_config, PACKAGES, 'names, "net,data"')
    for reference in references_in(keys):
        if (package := package_of(reference)) not in listed(allowed):
            of, then = f' of "{reference}"', "provides the code: nothing is downloaded"
            if is_hub(reference):
                of, then = "", "also permits this machine to download the data set"
            raise ConfigError(
                f"policy: packages: expected one that this node's owner allows ({allowed or 'none'}); "
                f'got "{package}"{of}. The owner allows it with packages = ["{package}"] in '
                f"[policy] of its kit.toml, or in its --node-config, and {then}"
            )
    trust.allow(listed(allowed), "policy: packages")


def basis(
    config: Config, train: TrainConfig, entry: Algorithm, field: Record, rows: int, epochs: int
) -> tuple[int, int | None, str]:
    """Return what a record of a client's upload is computed from.

    `train` is the client's local work in this round, whose number of steps a rule may set; `rows` are its
    training examples and `epochs` its epochs.

    Returns:
        How many distinct training examples; in how many local steps, None if each of them takes all the
        client's examples; and the keys that make it so.
    """
    if any(f.of == "validation" for f in entry.up):
        share = config.fedfomo.validation
        held_out = max(int(rows * share), 1)
        if field.of == "validation":
            return held_out, None, f'run-config key "fedfomo.validation" = {share:g}'
        rows = rows - held_out or rows
    width = min(train.batch_size or rows, rows)
    batch = f'run-config key "batch-size" = {train.batch_size}'
    if field.of == "all":
        return rows, None, "all examples"
    if field.of == "class":
        return (
            min(config.fedproto.least, rows),
            None,
            f'run-config key "fedproto.least" = {config.fedproto.least}',
        )
    if field.of == "row":
        return 1, None, "each of its rows by itself"
    if field.of == "batch":
        return width, None if width >= rows else 1, f"{batch}, one minibatch"
    steps = steps_of(train, rows, epochs)
    whole, rest = divmod(rows, width)
    sizes = [width] * min(steps, whole) + ([rest] if rest and steps > whole else [])  # of one pass
    if field.of == "halves":
        sizes = [size - size // 2 for size in sizes]
    work = f"local-steps = {train.local_steps}" if train.local_steps else f"{epochs} epochs"
    return sum(sizes), None if width >= rows else steps, f"{batch}, {work}"


def check_spending(owner: Owner, config: Config, entry: Algorithm) -> None:
    """Refuse a phase whose answers have no noise, or too little, if the owner of the node limits epsilon.

    Raises:
        RefusedError: Naming the limit and what would be within it.
    """
    ledger = owner.ledger
    if ledger is None or not ledger.most:
        return
    limit = f"policy: {MAX_EPSILON} = {ledger.most:g}"
    if not (config.dp.distributed or config.dp.local):
        raise RefusedError(
            f'{limit}; expected a run in which nodes add noise ("dp.noise-by" = "nodes"), or clients to each '
            'step or answer ("dp.unit" = "example"); got one without'
        )
    if config.dp.distributed:
        if not entry.noised:
            raise RefusedError(f"{limit}; the sums of {entry.name!r} ({entry.work}) have no noise")
        ledger.check(multiplier(config.dp, contract_of(config)))  # before a useless training
    elif entry.work != "train" and not entry.noised_rows:
        raise RefusedError(f"{limit}; the answers to {entry.name!r} ({entry.work}) have no noise")


def check_tests(owner: Owner, client: str, rows: int) -> None:
    """Refuse to send measures of fewer test examples than the owner of the node allows.

    Raises:
        RefusedError: Naming bound, client and number.
    """
    if 0 < rows < owner.min_examples:
        raise RefusedError(
            f"policy: min-examples = {owner.min_examples}; loss and metrics of client {client} would be of "
            f"{rows} test examples. Raise the run-config key local-test-fraction, give data that have a test "
            "part more test examples, or the owner lowers min-examples in kit.toml"
        )


def check_basis(
    owner: Owner,
    config: Config,
    train: TrainConfig,
    entry: Algorithm,
    client: str,
    rows: int,
    epochs: int,
    *,
    trains: bool = True,
) -> None:
    """Refuse an upload that would be computed from less than the owner of the node allows.

    `trains` says whether the client takes local steps, so that a loss of theirs goes up even where no record
    does; the others are as of `basis`.

    Raises:
        RefusedError: Naming bound, record, number and keys.
    """
    if rows < owner.min_examples:
        raise RefusedError(f"policy: min-examples = {owner.min_examples}; client {client} has {rows}")
    for field in entry.up or ((TRAIN_LOSS,) if trains else ()):
        examples, steps, why = basis(config, train, entry, field, rows, epochs)
        if examples < owner.min_examples:
            raise RefusedError(
                f"policy: min-examples = {owner.min_examples}; {field.name!r} of {entry.name} would be "
                f"computed from {examples} examples ({why}; client {client} has {rows})"
            )
        if steps is not None and steps < owner.min_steps:
            raise RefusedError(
                f"policy: min-steps = {owner.min_steps}; {field.name!r} of {entry.name} would be "
                f"computed in {steps} local steps ({why}; client {client} has {rows} examples)"
            )
