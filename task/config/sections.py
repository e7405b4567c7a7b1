"""The run-config sections that all algorithms share: data, training, server, output, selection and others.

`knob` declares a key: default, one-line meaning, unit, range.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

from task.catalogue.entry import Algorithm
from task.config.when import (
    AVERAGED,
    CHOSEN_STEPS,
    FILLED,
    HEAD,
    MEASURED,
    SET_ASIDE,
    STEPS,
    TESTED,
    TRAINS,
    WAITING,
    Conditions,
    When,
    algorithms,
    but_algorithms,
)
from task.config.when import Value as Value

CODECS = ("fp16", "int8", "eden", "top-k", "stc", "rand-k")
SPARSE = ("top-k", "stc", "rand-k")  # codes that send only some entries
TRACKERS = ("mlflow", "tensorboard", "wandb")


def knob(
    default: Value,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | tuple[int, ...] = (),
    when: Conditions = (),
    several: bool = False,
) -> Any:
    """Declare one run-config key; the type of its default is the type of the key.

    `doc` is one line: meaning, paper symbol, unit, neutral value. Where given, `low` and `high` are inclusive
    bounds, `above` and `below` exclusive ones, and `choices` the allowed values. A run reads the key if all
    conditions in `when` and those of the section hold. The text of a key of `several` has commas between its
    parts; in Python it may be a list of them.
    """
    bounds = {">=": low, ">": above, "<=": high, "<": below}
    bounds = {sign: bound for sign, bound in bounds.items() if bound is not None}
    metadata = {"doc": doc, "bounds": bounds, "choices": choices, "when": _all(when), "several": several}
    return field(default=default, metadata=metadata)


def _all(when: Conditions) -> tuple[When, ...]:
    return (when,) if isinstance(when, When) else when


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Section:
    """Keys of a run config; a subclass is a frozen dataclass whose fields are given by name.

    A run reads the section if all conditions in `when` hold. A `switch` is the field that turns the section's
    feature on: the other fields are read only if it is on, unless they have conditions of their own.
    """

    when: ClassVar[tuple[When, ...]] = ()
    switch: ClassVar[str] = ""

    def __init_subclass__(cls, when: Conditions = (), switch: str = "") -> None:
        cls.when, cls.switch = _all(when), switch
        dataclass(frozen=True, kw_only=True)(cls)


TABLES = ("arrow", "breast-cancer", "csv", "npz")  # data sets whose columns a run can prepare
OWN_FORMS = ("arrow", "csv", "imagefolder", "npz")  # of the files that `data-path` names
_TABLE = When("dataset", TABLES)


class DataConfig(Section):
    """Data: who owns which examples."""

    dataset: str = knob("digits", "data set (see `bouquet data --list`)")
    data_dir: str = knob("", 'folder with the raw data; "" = $BOUQUET_DATA, else ~/.cache/bouquet/data')
    cache_dir: str = knob("", 'decoded data and partitions; "" = $BOUQUET_CACHE, else ~/.cache/bouquet')
    data_path: str = knob(
        "", f"file or folder for {', '.join(OWN_FORMS)}; a node's own data-path overrides it"
    )
    column_types: str = knob(
        "",
        'types of csv columns, written as in a header, "sex:category(f|m), visit:ignore"; "" = as the header '
        "says (docs/howto/data.md)",
        when=When("dataset", ("csv",)),
        several=True,
    )
    num_classes: int = knob(
        0,
        "number of classes or labels; 0 = from the data; required if nodes' own data have class numbers only",
        low=0,
    )
    task: str = knob(
        "auto",
        "kind of task; auto = from the targets",
        choices=(
            "auto",
            "classification",
            "language",
            "multi-label",
            "reconstruction",
            "regression",
            "segmentation",
            "survival",
            "tagging",
        ),
        when=MEASURED,
    )
    inputs: str = knob(
        "auto",
        "what a model reads: auto = numbers, pictures, a tokenizer's columns as ids; ids = integers x; or by "
        'name and shape, "input_ids:int64[16]"',
    )
    num_clients: int = knob(10, "population K; 0 = the number of the data set's owners", low=0)
    partition: str = knob("iid", "how examples are split among clients (see `bouquet data --list`)")
    partition_arguments: str = knob(
        "",
        'arguments of a partition of your own or of flwr-datasets, as TOML: "alpha=0.5, shuffle=false"',
        several=True,
    )
    dirichlet_alpha: float = knob(
        0.5, "concentration of the Dirichlet partitions; smaller = more skewed", above=0
    )
    classes_per_client: int = knob(2, "c of partition=classes and classes-unbalanced", low=1)
    shards_per_client: int = knob(2, "shards per client with partition=shards", low=1)
    size_skew: float = knob(1.0, "exponent of partition=quantity; 0 = equal sizes", low=0)
    examples_per_client: int = knob(600, "examples per client with partition=bootstrap", low=1)
    pixels: str = knob(
        "auto",
        "range of pixels: unit = [0, 1], centred = [-1, 1], standardised = each image to mean 0 and "
        "deviation 1; auto = the data set's usual one (docs/howto/data.md)",
        choices=("auto", "unit", "centred", "standardised"),
    )
    crop: int = knob(
        0,
        "side of the square of an image that a model reads, in pixels: its middle, or with crops-flips any "
        "part in training; 0 = the whole image",
        low=0,
    )
    feature_skew: str = knob(
        "none",
        "how images differ between clients, by client number (task/datasets/skew.py)",
        choices=("none", "background", "contrast", "invert", "noise", "rotate", "styles"),
    )
    feature_skew_strength: float = knob(
        0.0,
        "strength s of feature-skew: level, contrast or deviation; 0 = background 0.5, contrast "
        "0.5, noise 0.2",
        low=0,
        high=1,
        when=When("feature-skew", ("background", "contrast", "noise")),
    )
    condition: str = knob(
        "client",
        "condition of a conditional model, given with each example: number of its client, or its class",
        choices=("client", "label"),
        when=When("model", ("cvae",)),
    )
    columns: str = knob(
        "even",
        'partition=columns: columns (of images, pixels) of each party: even, or their numbers, "10,20"',
        several=True,
    )
    min_client_examples: int = knob(
        1, "fewest examples of a client; a partition with a smaller client is refused", low=1
    )
    local_test_fraction: float = knob(
        0.1,
        "share of a client's examples kept for its own test; 0 = none",
        low=0,
        high=0.9,
        when=(TESTED, SET_ASIDE),
    )
    max_examples: int = knob(0, "use only this number of training examples, drawn by seed; 0 = all", low=0)
    missing: str = knob(
        "refuse",
        "how missing values of csv and npz are filled",
        choices=("refuse", "mean", "zero"),
        when=(_TABLE, FILLED),
    )
    missing_indicator: bool = knob(
        False,
        "add an input for each column: 1 where the value is missing",
        when=(_TABLE, When("missing", ("mean", "zero"))),
    )
    standardise: bool = knob(
        False,
        "standardise columns of csv and npz by the mean and deviation over all clients",
        when=(_TABLE, AVERAGED),
    )
    shuffle_lines: bool = knob(
        False,
        "deal all roles' training lines to as many owners of equal size, in an order drawn by seed",
        when=When("dataset", ("shakespeare",)),
    )
    pool_test: bool = knob(False, "split the test set among clients, too, as PFLlib does: no global test set")

    # Whether numbers of a csv file are read as float64 and no rows are kept for a test; no key, as it follows
    # from the algorithm (`task.config.read`).
    doubles: bool = False
    keep_missing: bool = False  # likewise, whether rows may lack values
    own_types: str = ""  # no key either: what the owner of a node declares as its `column-types`

    @property
    def learns_columns(self) -> bool:
        """Whether the run needs the columns' means and deviations (`task.datasets.columns`)."""
        return self.standardise or self.missing == "mean"


class SyntheticConfig(Section, when=When("dataset", ("synthetic",))):
    """Synthetic(alpha, beta) of Li et al. (FedProx)."""

    alpha: float = knob(1.0, "how much local models differ between clients", low=0)
    beta: float = knob(1.0, "how much local data differ between clients", low=0)
    iid: bool = knob(False, "one model and one input distribution for all devices")
    size_spread: float = knob(
        2.0, "standard deviation of the log of the number of examples per device", low=0, high=5
    )


OPTIMIZERS = ("sgd", "adam", "adamw")
AUGMENTATIONS = ("crops-flips",)
_SGD = When("optimizer", ("sgd",))


class TrainConfig(Section):
    """Training: the local work of a client."""

    local_epochs: int = knob(
        1, "E, passes over the local data in a round", low=1, when=(When("local-steps", (0,)), CHOSEN_STEPS)
    )
    local_steps: int = knob(
        0, "steps in a round instead of epochs; 0 = use local-epochs", low=0, when=(CHOSEN_STEPS, TRAINS)
    )
    batch_size: int = knob(
        10,
        "B; 0 = infinity, all local data in one step",
        low=0,
        when=(
            but_algorithms(lambda entry: entry.sends_whole_gradient, other=When("batch-size", (0,))),
            TRAINS,
        ),
    )
    learning_rate: float = knob(0.1, "eta_0 of the local solver", above=0, when=TRAINS)
    lr_schedule: str = knob(
        "exponential",
        "eta_t: constant, exponential and step by lr-decay (1 = constant), cosine to about 0 at the end",
        choices=("constant", "exponential", "step", "cosine"),
        when=TRAINS,
    )
    lr_decay: float = knob(
        1.0,
        "eta_t = eta_0 * lr-decay^(t-1) in round t; 1 = none",
        above=0,
        high=1,
        when=(When("lr-schedule", ("exponential", "step")), TRAINS),
    )
    lr_step: int = knob(
        10,
        "lr-schedule=step: rounds between two decays",
        low=1,
        when=(When("lr-schedule", ("step",)), TRAINS),
    )
    lr_warmup: int = knob(
        0, "W, first rounds with eta_0 * t / (W + 1), before the schedule; 0 = none", low=0, when=TRAINS
    )
    augment: str = knob(
        "",
        "augmentation of training examples, drawn each epoch: crops-flips or "
        'package.module:function; "" = none',
        when=(STEPS, AVERAGED),
    )
    augment_brightness: float = knob(
        0.0,
        "augmentation: largest shift of all pixels of an image, as a share of the range from black to white; "
        "0 = none",
        low=0,
        high=1,
        when=(STEPS, AVERAGED),
    )
    augment_contrast: float = knob(
        0.0,
        "augmentation: an image's contrast changes by a factor from 1 - c to 1 + c, this key being c; "
        "0 = none",
        low=0,
        high=1,
        when=(STEPS, AVERAGED),
    )
    optimizer: str = knob(
        "sgd", "local optimizer: sgd, adam, adamw or package.module:name; its state is reset every round"
    )
    momentum: float = knob(
        0.0,
        "momentum of the local SGD, reset every round; 0 = none",
        low=0,
        high=0.9999,
        when=(STEPS, TRAINS, _SGD),
    )
    nesterov: bool = knob(
        False, "use Nesterov's form of momentum", when=(STEPS, TRAINS, _SGD, When("momentum"))
    )
    weight_decay: float = knob(
        0.0,
        "L2 weight decay of local steps; adamw: decoupled; 0 = none",
        low=0,
        when=(STEPS, TRAINS, When("optimizer", OPTIMIZERS)),
    )
    clip_norm: float = knob(
        0.0, "gradient clipping: largest L2 norm of a client's gradient in a step; 0 = none", low=0
    )
    device: str = knob(
        "auto", "device on which clients train and the server tests", choices=("auto", "cpu", "cuda")
    )
    precision: str = knob(
        "float32",
        "precision of local training on a GPU: 16 bits where autocast allows it; parameters stay float32",
        choices=("float32", "bfloat16", "float16"),
        when=AVERAGED,
    )
    threads: int = knob(1, "torch threads per training process; 0 = torch's default", low=0)
    portable: bool = knob(
        False, "same bits on every x86-64 processor with AVX2: fixed kernels, one thread, no GPU"
    )
    stack: int = knob(0, "clients trained as one program; 0 = automatic, 1 = each alone", low=0)
    dropout_width: float = knob(
        1.0,
        "r, share of each layer's units that a client gets, drawn each round; 1 = all",
        above=0,
        high=1,
        when=When("width.levels", ("",)),
    )
    private_layers: str = knob(
        "",
        'layers that stay at the client, instead of personal.layers: "fc2" or "head.*,norm"',
        when=HEAD,
        several=True,
    )
    ala: bool = knob(
        False, "adaptive local aggregation before training; with fedavg, fedprox, fedrep or ditto"
    )


def _is_bounded(entry: Algorithm) -> bool:
    """Return whether only changes of the model are summed, so that a norm bounds them."""
    sent = [r for contract in (entry, *entry.phases.values()) for r in contract.up]
    changes = [r.layout.kind == "part" for r in sent if r.layout.kind == "part" or r.reduce != "collect"]
    return bool(changes) and all(changes)


_BOUNDED = but_algorithms(
    lambda entry: not _is_bounded(entry),
    why="whose clients send nothing, or sums that no norm of a change bounds",
)
_MANY = but_algorithms(lambda entry: entry.pooled)
# Stragglers do fewer epochs, but at least one. With one epoch, or without epochs, they do the same work.
_DROPPED = When("drop-stragglers")
_SLOW = (
    but_algorithms(lambda entry: entry.sends_gradient, lambda entry: entry.counts_steps, other=_DROPPED),
    When("local-epochs", (1,), but=True, other=_DROPPED),
)


class ServerConfig(Section):
    """Rounds: the server's loop."""

    num_server_rounds: int = knob(10, "rounds; 0 = clients only evaluate initial-model", low=0)
    fraction_train: float = knob(
        1.0, "C, share of the clients that train in a round; 0 = one client", low=0, high=1, when=AVERAGED
    )
    fraction_evaluate: float = knob(
        -1.0,
        "share of the clients that evaluate; -1 = all if models are personal or nothing is trained, else 0",
        low=-1,
        high=1,
        when=TESTED,
    )
    fraction_heldout: float = knob(
        0.0, "share of the clients that never train and are evaluated at the end; 0 = none", low=0, below=1
    )
    cross_evaluation: bool = knob(
        False, "after the last round, test each client's own model at every client; changes no model"
    )
    evaluate_every: int = knob(
        1, "rounds between central evaluations; 0 = never", low=0, when=(MEASURED, When("he", (False,)))
    )
    norms: bool = knob(False, "write the norm of each client's update to clients.jsonl; changes no model")
    gradient_dissimilarity: bool = knob(
        False, "with each central evaluation, measure how much clients' gradients differ; changes no model"
    )
    client_evaluate_every: int = knob(
        1, "rounds between client-side evaluations", low=1, when=(TESTED, When("fraction-evaluate"))
    )
    selection: str = knob(
        "uniform", "selection policy: uniform, proportional, power-of-choice, oort, fedcs, cycle"
    )
    stragglers: float = knob(
        0.0,
        "share of stragglers among the selected clients; they do x ~ U{1..E} epochs",
        low=0,
        high=1,
        when=(AVERAGED, WAITING, _MANY, When("local-steps", (0,)), *_SLOW),
    )
    drop_stragglers: bool = knob(
        False, "drop stragglers instead of using their partial work", when=When("stragglers")
    )
    min_replies: int = knob(
        1, "a round with fewer valid replies keeps the model; a link's default: a majority", low=1
    )
    enough_replies: int = knob(
        0, "close a round after this number of replies; 0 = wait for all", low=0, when=(AVERAGED, WAITING)
    )
    order_of_arrival: str = knob(
        "virtual",
        "asynchronous: virtual = by simulated device speeds; real = as nodes answer, see `bouquet replay`",
        choices=("virtual", "real"),
        when=algorithms(lambda entry: entry.asynchronous),
    )
    round_timeout: float = knob(
        3600.0, "seconds after which a round closes without the missing replies", above=0
    )
    roll_call_timeout: float = knob(180.0, "seconds to wait for nodes and their client lists", above=0)
    min_nodes: int = knob(1, "nodes that must be online before round 1; a link's default: a majority", low=1)
    node_names: str = knob(
        "", 'at a link: names of the nodes to run on, "ward-1,ward-3"; "" = all', several=True
    )
    max_update_norm: float = knob(
        0.0, "refuse a client's update with a larger L2 norm; 0 = no bound", low=0, when=(AVERAGED, _BOUNDED)
    )
    secagg: bool = knob(False, "secure aggregation: the server sees only sums over several nodes")
    secagg_min_nodes: int = knob(
        3, "secagg: fewest nodes in a sum that the server may see", low=3, when=When("secagg")
    )
    secagg_threshold: int = knob(
        0,
        "secagg: threshold t of nodes needed to unmask a sum, more than half; 0 = floor(2n/3) + 1",
        low=0,
        when=When("secagg"),
    )
    he: bool = knob(False, "homomorphic encryption: the server adds ciphertexts that only nodes can decrypt")
    secagg_bits: int = knob(
        96,
        "secagg: bits of a sum; 96 = exact; with fewer, values are rounded by max-update-norm",
        choices=(32, 64, 96),
        when=When("secagg"),
    )
    transcript: str = knob(
        "none",
        "what is published so that anyone can check the rounds: sums, or also nodes' uploads "
        "(docs/howto/verify.md)",
        choices=("none", "sums", "full"),
    )
    target_accuracy: float = knob(0.0, "stop when this accuracy is reached; 0 = never", low=0, high=1)
    plateau_rounds: int = knob(
        0, "early stopping: stop after this number of rounds without improvement; 0 = never", low=0
    )
    plateau_delta: float = knob(
        0.0,
        "early stopping: smallest improvement that counts, of the accuracy, else of the loss",
        low=0,
        when=When("plateau-rounds"),
    )

    def clients_evaluate(self, server_round: int) -> bool:
        """Return whether clients evaluate models in a round: when it is due, and in the last one."""
        if not self.fraction_evaluate > 0:
            return False
        return server_round % self.client_evaluate_every == 0 or server_round == self.num_server_rounds


class OutputConfig(Section):
    """Output: where results and state are stored."""

    run_name: str = knob("", 'folder below runs-dir; "" = algorithm-dataset-<changed keys>-seed')
    runs_dir: str = knob("runs", "where result folders are written")
    state_dir: str = knob("", 'folder of client state; "" = <cache-dir>/state')
    keep_state: bool = knob(True, "keep the clients' state, such as personal models, after the run")
    resume: bool = knob(False, "continue the run of this name from its last checkpoint")
    checkpoint_every: int = knob(1, "rounds between checkpoints; 0 = only at the end", low=0)
    progress: str = knob("auto", "live progress", choices=("auto", "bar", "log", "none"))
    tracker: str = knob(
        "", 'also record the run in tensorboard, mlflow or wandb; several: "mlflow,wandb"', several=True
    )

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of the trackers, each once."""
        return tuple(dict.fromkeys(name for part in self.tracker.split(",") if (name := part.strip())))


class SelectConfig(Section):
    """The selection policies: power-of-choice (Cho et al. 2020), FedCS (2019), Oort (Lai et al. 2021)."""

    order: str = knob(
        "fixed",
        "cycle: order of the clients: by name, or shuffled by seed in each round",
        choices=("fixed", "shuffled"),
    )
    candidates: int = knob(0, "power-of-choice: d, candidates; 0 = twice the number that train", low=0)
    losses: str = knob(
        "query",
        "power-of-choice: query the candidates' losses, or use their last known ones",
        choices=("query", "last"),
    )
    deadline: float = knob(180.0, "fedcs: simulated seconds by which a round must end", above=0)
    penalty: float = knob(2.0, "oort: alpha, penalty exponent of slow clients; 0 = none", low=0)
    exploration: float = knob(
        0.9, "oort: initial epsilon, share of a cohort that has never trained", low=0, high=1
    )
    exploration_decay: float = knob(0.98, "oort: factor on epsilon each round", above=0, high=1)
    exploration_min: float = knob(0.2, "oort: smallest epsilon", low=0, high=1)
    cut_off: float = knob(0.95, "oort: c, share of the cut-off utility that still qualifies", low=0, high=1)
    clip: float = knob(0.95, "oort: utilities are clipped at this quantile", above=0, high=1)
    pace: float = knob(0.3, "oort: initial T, as a quantile of the clients' seconds", low=0, high=1)
    pacer_step: float = knob(0.05, "oort: Delta, increase of the quantile T", low=0, high=1)
    pacer_window: int = knob(20, "oort: W, rounds between comparisons of the utility", low=1)


class DevicesConfig(Section, when=When("order-of-arrival", ("virtual",))):
    """Simulated device speeds, drawn by seed, behind ``simulated_seconds``; none of it is measured."""

    speed: float = knob(100.0, "median training speed of a client, examples per second", above=0)
    bandwidth: float = knob(1.4, "median rate of a client's link, Mbit/s", above=0)
    spread: float = knob(1.0, "standard deviation of the log of both; 0 = all alike", low=0, high=5)
    watts_compute: float = knob(0.0, "watts that a client draws while it trains; 0 = not counted", low=0)
    watts_radio: float = knob(0.0, "watts that it draws while it sends or receives; 0 = not counted", low=0)
    battery_joules: float = knob(
        0.0, "charge of a client's battery before round 1, in joules; 0 = no battery", low=0
    )
    uplink: str = knob(
        "own",
        "own = clients upload in parallel, shared = one after another",
        choices=("own", "shared"),
        when=(AVERAGED, WAITING),
    )


def _codec(*names: str) -> When:
    return When("codec.up", names, other=When("codec.down", names))


class CodecConfig(Section):
    """Compression of uploads and downloads (see ``docs/reference/compression.md``)."""

    up: str = knob("none", "code for uploads", choices=("none", *CODECS))
    down: str = knob("none", "code for downloads", choices=("none", *CODECS))
    keep: float = knob(
        0.01, "p, share of each tensor's entries that are sent", above=0, high=1, when=_codec(*SPARSE)
    )
    bits: int = knob(
        0,
        "bits per number: eden 1 to 4, 0 = 2; rand-k 1 to 8, 0 = float32",
        low=0,
        high=8,
        when=_codec("eden", "rand-k"),
    )
    block: int = knob(
        4096,
        "block size of the rotation; a power of two",
        low=64,
        high=1 << 20,
        when=_codec("eden", "rand-k"),
    )
    rotate: bool = knob(
        True,
        "rand-k with codec.bits: rotate before sampling; false = for comparison",
        when=(_codec("rand-k"), When("codec.bits")),
    )


class StructuredConfig(Section, switch="kind"):
    """Structured updates, Konečný et al. 2016: local steps in a random subspace, to send fewer numbers."""

    kind: str = knob(
        "none",
        "subspace of the steps: mask = random entries of each matrix; low-rank = A B, A random, B trained",
        choices=("none", "low-rank", "mask"),
    )
    keep: float = knob(
        0.25, "share of each matrix's entries that are trained and sent; 1 = all", above=0, high=1
    )


_CENTRAL = When("dp.noise"), When("dp.unit", ("client",))


class DPConfig(Section, switch="noise"):
    """Differential privacy (see ``docs/howto/privacy.md``); its noise never comes from a seed."""

    noise: float = knob(
        0.0, "z, standard deviation of the noise on a sum of updates, in units of dp.clip; 0 = none", low=0
    )
    clip: float = knob(
        0.1,
        "C, clipping bound: largest L2 norm of a client's update or of an example's gradient",
        above=0,
        when=(When("dp.noise"), TRAINS),
    )
    clip_quantile: float = knob(
        0.0,
        "gamma, quantile of the updates' norms that C follows, starting at dp.clip; 0 = fixed C",
        low=0,
        below=1,
        when=_CENTRAL,
    )
    delta: float = knob(1e-5, "delta of (epsilon, delta), less than 1 / number of clients", above=0, below=1)
    max_epsilon: float = knob(0.0, "stop before a round that would exceed this epsilon; 0 = never", low=0)
    unit: str = knob(
        "client",
        "unit of privacy: all of a client's data, or one of its examples",
        choices=("client", "example"),
    )
    noise_by: str = knob(
        "server",
        "who adds the noise: the server, or, with secagg, the nodes, each a share",
        choices=("server", "nodes"),
        when=_CENTRAL,
    )
    colluding: int = knob(
        1,
        "c, nodes that may reveal their noise: the noise of the others suffices",
        low=0,
        when=(When("dp.noise"), When("dp.noise-by", ("nodes",), other=algorithms(lambda e: e.noised_rows))),
    )

    @property
    def distributed(self) -> bool:
        """Whether nodes add shares of the noise, so that the server sees no sum without noise."""
        return self.central and self.noise_by == "nodes"

    @property
    def central(self) -> bool:
        """Whether the server adds noise, so that each client as a whole is protected."""
        return self.noise > 0 and self.unit == "client"

    @property
    def local(self) -> bool:
        """Whether the clients add noise to their steps, so that each of their examples is protected."""
        return self.noise > 0 and self.unit == "example"

    @property
    def adaptive(self) -> bool:
        """Whether the bound on the clients' updates follows a quantile of their norms."""
        return self.central and self.clip_quantile > 0


class ContributionConfig(Section):
    """Contribution of each client to the model of a round, measured on the server's test set."""

    measure: str = knob(
        "none",
        "value of a client: the drop in accuracy without it, or its Shapley value",
        choices=("none", "leave-one-out", "shapley"),
    )
    orders: int = knob(
        30,
        "shapley: random orders of the clients in a round; all orders if there are no more",
        low=1,
        when=When("contribution.measure", ("shapley",)),
    )
    tolerance: float = knob(
        0.001,
        "shapley: difference in accuracy below which an order is truncated",
        low=0,
        when=When("contribution.measure", ("shapley",)),
    )


class AuditConfig(Section):
    """Canary clients of `bouquet audit epsilon` (see ``task/privacy/canaries.py``)."""

    canaries: int = knob(
        0,
        "canary clients, without data, that send random directions; half of them never do; 0 = none",
        low=0,
        high=100_000,
        when=_CENTRAL,
    )
    swap: bool = knob(
        False,
        "exchange the canaries that send and those that don't",
        when=(*_CENTRAL, When("audit.canaries")),
    )
