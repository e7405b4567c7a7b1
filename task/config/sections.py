"""The run-config sections that every algorithm has: data, training, server, output, selection, attacks.

`knob` declares a key: default, one-line meaning, unit, range.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

from task.catalogue.entry import Algorithm
from task.config.when import (
    AVERAGED,
    CHOSEN_STEPS,
    HEAD,
    STEPS,
    WAITING,
    Conditions,
    When,
    algorithms,
    but_algorithms,
)
from task.config.when import Value as Value

CODECS = ("fp16", "int8", "eden", "top-k", "stc", "rand-k")
SPARSE = ("top-k", "stc", "rand-k")  # codes of some entries only
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
) -> Any:
    """Declare one run-config key; the type of its default is the type of the key.

    `doc` is one line: meaning, paper symbol, unit, neutral value. Values are from `low` to `high`, both
    included, strictly `above` and `below`, and one of `choices`, where these are given. A run reads the key
    `when` all conditions hold, and those of the section.
    """
    bounds = {">=": low, ">": above, "<=": high, "<": below}
    bounds = {sign: bound for sign, bound in bounds.items() if bound is not None}
    metadata = {"doc": doc, "bounds": bounds, "choices": choices, "when": _all(when)}
    return field(default=default, metadata=metadata)


def _all(when: Conditions) -> tuple[When, ...]:
    return (when,) if isinstance(when, When) else when


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True)
class Section:
    """Keys of a run config; a subclass is a frozen dataclass whose fields are given by name.

    A run reads the section `when` all conditions hold. A `switch` is the field by which a run turns on what
    the section is about: the others are read only then, but for those that have conditions of their own.
    """

    when: ClassVar[tuple[When, ...]] = ()
    switch: ClassVar[str] = ""

    def __init_subclass__(cls, when: Conditions = (), switch: str = "") -> None:
        cls.when, cls.switch = _all(when), switch
        dataclass(frozen=True, kw_only=True)(cls)


TABLES = ("breast-cancer", "csv", "npz")  # data sets whose columns a run can prepare
_TABLE = When("dataset", TABLES)


class DataConfig(Section):
    """Data: who owns which examples."""

    dataset: str = knob("digits", "data set (see `bouquet data --list`)")
    data_dir: str = knob("", 'folder with the raw data; "" = $BOUQUET_DATA, else ~/.cache/bouquet/data')
    cache_dir: str = knob("", 'decoded data and partitions; "" = $BOUQUET_CACHE, else ~/.cache/bouquet')
    data_path: str = knob("", "file or folder of imagefolder, csv, npz; a node's own data-path wins")
    num_classes: int = knob(
        0,
        "classes or labels; 0 = from the data; needed where nodes' own data only number their classes",
        low=0,
    )
    task: str = knob(
        "auto",
        "what is learnt; auto = what the targets are",
        choices=("auto", "classification", "language", "multi-label", "reconstruction", "regression"),
    )
    num_clients: int = knob(10, "population K; 0 = as many as the data set has owners", low=0)
    partition: str = knob("iid", "how examples are dealt to clients (see `bouquet data --list`)")
    dirichlet_alpha: float = knob(0.5, "concentration of the Dirichlet partitions; small = skewed", above=0)
    classes_per_client: int = knob(2, "c of partition=classes and classes-unbalanced", low=1)
    shards_per_client: int = knob(2, "shards a client gets with partition=shards", low=1)
    size_skew: float = knob(1.0, "exponent of partition=quantity; 0 = equal sizes", low=0)
    examples_per_client: int = knob(600, "examples a client draws with partition=bootstrap", low=1)
    pixels: str = knob(
        "auto",
        "inputs of images: unit = [0, 1], centred = [-1, 1]; auto = as the data set has it (docs/data.md)",
        choices=("auto", "unit", "centred"),
    )
    feature_skew: str = knob(
        "none",
        "how clients' images differ, by the client's number (task/datasets/skew.py)",
        choices=("none", "background", "contrast", "invert", "noise", "rotate", "styles"),
    )
    feature_skew_strength: float = knob(
        0.0,
        "its s: level, contrast or deviation; 0 = background 0.5, contrast 0.5, noise 0.2",
        low=0,
        high=1,
        when=When("feature-skew", ("background", "contrast", "noise")),
    )
    condition: str = knob(
        "client",
        "what a conditional model is given with each example: the number of its client, or its class",
        choices=("client", "label"),
        when=When("model", ("cvae",)),
    )
    columns: str = knob(
        "even",
        'columns of each party, with partition=columns: even, or how many, "10,20"; of images, pixels',
    )
    min_client_examples: int = knob(1, "a partition with a smaller client is refused", low=1)
    local_test_fraction: float = knob(
        0.1, "share of a client's examples kept for its own test; 0 = none", low=0, high=0.9
    )
    max_examples: int = knob(0, "use only so many training examples, drawn by seed; 0 = all", low=0)
    missing: str = knob(
        "refuse",
        "missing values of csv and npz: how they are filled",
        choices=("refuse", "mean", "zero"),
        when=_TABLE,
    )
    missing_indicator: bool = knob(
        False,
        "a further input for each column: 1 where the value is missing",
        when=(_TABLE, When("missing", ("mean", "zero"))),
    )
    standardise: bool = knob(
        False, "columns of csv and npz less all clients' mean, by their deviation", when=(_TABLE, AVERAGED)
    )
    pool_test: bool = knob(False, "deal the test set's examples too, as PFLlib does: no global test set")

    @property
    def learns_columns(self) -> bool:
        """Whether the means and deviations of the columns are needed (`task.datasets.columns`)."""
        return self.standardise or self.missing == "mean"


class SyntheticConfig(Section, when=When("dataset", ("synthetic",))):
    """Synthetic(alpha, beta) of Li et al. (FedProx)."""

    alpha: float = knob(1.0, "how much local models differ", low=0)
    beta: float = knob(1.0, "how much local data differ", low=0)
    iid: bool = knob(False, "one model and one input law for all devices")
    size_spread: float = knob(
        2.0, "standard deviation of the log of a device's number of examples", low=0, high=5
    )


OPTIMIZERS = ("sgd", "adam", "adamw")
AUGMENTATIONS = ("crops-flips",)
_SGD = When("optimizer", ("sgd",))


class TrainConfig(Section):
    """Training: local work of a client."""

    local_epochs: int = knob(
        1, "E, passes over the local data in a round", low=1, when=(When("local-steps", (0,)), CHOSEN_STEPS)
    )
    local_steps: int = knob(
        0, "steps in a round instead of epochs; 0 = use local-epochs", low=0, when=CHOSEN_STEPS
    )
    batch_size: int = knob(
        10,
        "B; 0 = infinity, all local data in one step",
        low=0,
        when=but_algorithms(lambda entry: entry.sends_whole_gradient, other=When("batch-size", (0,))),
    )
    learning_rate: float = knob(0.1, "eta_0 of the local solver", above=0)
    lr_schedule: str = knob(
        "exponential",
        "eta_t: exponential (1 = constant) and step by lr-decay; cosine ends near 0 after the last round",
        choices=("exponential", "step", "cosine"),
    )
    lr_decay: float = knob(
        1.0,
        "eta_t = eta_0 * lr-decay^(t-1) in round t; 1 = none",
        above=0,
        high=1,
        when=When("lr-schedule", ("cosine",), but=True),
    )
    lr_step: int = knob(
        10, "lr-schedule=step: rounds between two decays", low=1, when=When("lr-schedule", ("step",))
    )
    lr_warmup: int = knob(0, "W, first rounds with eta_0 * t / (W + 1), before the schedule; 0 = none", low=0)
    augment: str = knob(
        "",
        'changes of training examples, drawn each epoch: crops-flips or package.module:function; "" = none',
        when=(STEPS, AVERAGED),
    )
    optimizer: str = knob("sgd", "local solver: sgd, adam, adamw or package.module:name; fresh every round")
    momentum: float = knob(
        0.0, "momentum of the local SGD, fresh every round; 0 = none", low=0, high=0.9999, when=(STEPS, _SGD)
    )
    nesterov: bool = knob(False, "Nesterov's form of that momentum", when=(STEPS, _SGD, When("momentum")))
    weight_decay: float = knob(
        0.0,
        "L2 weight decay of local steps; adamw: decoupled; 0 = none",
        low=0,
        when=(STEPS, When("optimizer", OPTIMIZERS)),
    )
    clip_norm: float = knob(
        0.0, "largest L2 norm of a client's gradient in a step, what exceeds it is scaled; 0 = none", low=0
    )
    device: str = knob("auto", "where clients train, and the server tests", choices=("auto", "cpu", "cuda"))
    precision: str = knob(
        "float32",
        "of local training, on a GPU: 16 bits where autocast finds that safe; parameters stay float32",
        choices=("float32", "bfloat16", "float16"),
        when=AVERAGED,
    )
    threads: int = knob(1, "torch threads of one training process; 0 = torch's default", low=0)
    portable: bool = knob(
        False, "the same bits on every x86-64 processor with AVX2: kernels fixed, one thread, no GPU"
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
        "", 'layers that stay at the client in place of personal.layers: "fc2" or "head.*,norm"', when=HEAD
    )
    ala: bool = knob(False, "adaptive local aggregation in front of fedavg, fedprox, fedrep or ditto")


def _is_bounded(entry: Algorithm) -> bool:
    """Return whether a norm bounds all that is summed, which is changes of the model."""
    sent = [r for contract in (entry, *entry.phases.values()) for r in contract.up]
    changes = [r.layout.kind == "part" for r in sent if r.layout.kind == "part" or r.reduce != "collect"]
    return bool(changes) and all(changes)


_BOUNDED = but_algorithms(
    lambda entry: not _is_bounded(entry),
    why="whose clients send nothing, or sums that no norm of a change bounds",
)
_MANY = but_algorithms(lambda entry: entry.pooled)
# Slow clients do fewer epochs, but one at least: they do the same work where it is one, or not in epochs.
_DROPPED = When("drop-stragglers")
_SLOW = (
    but_algorithms(lambda entry: entry.sends_gradient, lambda entry: entry.counts_steps, other=_DROPPED),
    When("local-epochs", (1,), but=True, other=_DROPPED),
)


class ServerConfig(Section):
    """Rounds: the server's loop."""

    num_server_rounds: int = knob(10, "rounds", low=1)
    fraction_train: float = knob(
        1.0, "C, share of the clients that train in a round; 0 = one", low=0, high=1, when=AVERAGED
    )
    fraction_evaluate: float = knob(
        -1.0,
        "share of the clients that evaluate; -1 = all if the models are their own, else 0",
        low=-1,
        high=1,
    )
    heldout_clients: float = knob(
        0.0, "share of the clients that never train and are measured at the end; 0 = none", low=0, below=1
    )
    evaluate_every: int = knob(
        1, "rounds between central evaluations; 0 = never", low=0, when=When("he", (False,))
    )
    norms: bool = knob(False, "write the norm of each client's update into clients.jsonl; changes no model")
    gradient_dissimilarity: bool = knob(
        False, "measure with each central evaluation how unlike the clients' gradients are; changes no model"
    )
    client_evaluate_every: int = knob(
        1, "rounds between client-side evaluations", low=1, when=When("fraction-evaluate")
    )
    selection: str = knob("uniform", "who trains: uniform, proportional, power-of-choice, oort, fedcs, cycle")
    stragglers: float = knob(
        0.0,
        "share of the selected that are slow: x ~ U{1..E} epochs",
        low=0,
        high=1,
        when=(AVERAGED, WAITING, _MANY, When("local-steps", (0,)), *_SLOW),
    )
    drop_stragglers: bool = knob(
        False, "leave stragglers out instead of taking their partial work", when=When("stragglers")
    )
    min_replies: int = knob(
        1, "a round with fewer good replies keeps the model; a link's default: a majority", low=1
    )
    enough_replies: int = knob(
        0, "close a round once so many clients answered; 0 = wait for all", low=0, when=(AVERAGED, WAITING)
    )
    order_of_arrival: str = knob(
        "virtual",
        "asynchronous: virtual = as simulated devices would be done; real = as nodes answer, for `replay`",
        choices=("virtual", "real"),
        when=algorithms(lambda entry: entry.asynchronous),
    )
    round_timeout: float = knob(3600.0, "seconds after which a round closes without the missing", above=0)
    roll_call_timeout: float = knob(180.0, "seconds to wait for nodes and their client lists", above=0)
    min_nodes: int = knob(1, "nodes that must be there before round 1; a link's default: a majority", low=1)
    nodes: str = knob("", 'names of the nodes to run on, "ward-1,ward-3", where they are enrolled; "" = all')
    max_update_norm: float = knob(
        0.0, "refuse a client's update of a larger L2 norm; 0 = no bound", low=0, when=(AVERAGED, _BOUNDED)
    )
    secagg: bool = knob(False, "secure aggregation: the server sees sums over nodes, of no single one")
    secagg_min_nodes: int = knob(
        3, "secagg: fewest nodes whose sum the server may see", low=3, when=When("secagg")
    )
    secagg_threshold: int = knob(
        0,
        "secagg: t, nodes that can open a sum, more than half of them; 0 = floor(2n/3) + 1",
        low=0,
        when=When("secagg"),
    )
    he: bool = knob(False, "homomorphic encryption: the server adds ciphertexts that only nodes can open")
    secagg_bits: int = knob(
        96,
        "secagg: bits of a sum; 96 = exact; fewer round, by max-update-norm",
        choices=(32, 64, 96),
        when=When("secagg"),
    )
    transcript: str = knob(
        "none",
        "what is published for anyone to check the rounds by: sums, or the nodes' uploads too, see verify.md",
        choices=("none", "sums", "full"),
    )
    target_accuracy: float = knob(0.0, "stop when the accuracy reaches it; 0 = never", low=0, high=1)
    plateau_rounds: int = knob(0, "stop after so many rounds without a better accuracy; 0 = never", low=0)
    plateau_delta: float = knob(
        0.0, "what an accuracy, else a loss, must be better by to count", low=0, when=When("plateau-rounds")
    )

    def clients_evaluate(self, server_round: int) -> bool:
        """Return whether clients measure models in a round: when it is due, and in the last one."""
        if not self.fraction_evaluate > 0:
            return False
        return server_round % self.client_evaluate_every == 0 or server_round == self.num_server_rounds


class OutputConfig(Section):
    """Output: where results and state lie."""

    run_name: str = knob("", 'folder below runs-dir; "" = algorithm-dataset-<what was changed>-seed')
    runs_dir: str = knob("runs", "where result folders are written")
    state_dir: str = knob("", 'kept state of clients; "" = <cache-dir>/state')
    keep_state: bool = knob(True, "keep what clients kept after a finished run; else it is deleted then")
    resume: bool = knob(False, "go on from the last checkpoint of the run of this name")
    checkpoint_every: int = knob(1, "rounds between checkpoints; 0 = only at the end", low=0)
    progress: str = knob("auto", "live progress", choices=("auto", "bar", "log", "none"))
    tracker: str = knob("", 'record the run in tensorboard, mlflow or wandb, too; several: "mlflow,wandb"')

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of the trackers, each once."""
        return tuple(dict.fromkeys(name for part in self.tracker.split(",") if (name := part.strip())))


class SelectConfig(Section):
    """The selection policies: power-of-choice (Cho et al. 2020), FedCS (2019), Oort (Lai et al. 2021)."""

    order: str = knob(
        "fixed", "cycle: by name, or shuffled by seed in each round", choices=("fixed", "shuffled")
    )
    candidates: int = knob(0, "d of power-of-choice, clients that compete; 0 = twice those that train", low=0)
    losses: str = knob("query", "power-of-choice: ask, or last known", choices=("query", "last"))
    deadline: float = knob(180.0, "fedcs: simulated seconds by which a round must end", above=0)
    penalty: float = knob(2.0, "oort: alpha, how hard slowness counts; 0 = not at all", low=0)
    exploration: float = knob(0.9, "oort: epsilon, share of newcomers in a cohort at first", low=0, high=1)
    exploration_decay: float = knob(0.98, "oort: factor of epsilon by round", above=0, high=1)
    exploration_min: float = knob(0.2, "oort: least epsilon", low=0, high=1)
    cut_off: float = knob(0.95, "oort: c, share of the last top utility that is enough", low=0, high=1)
    clip: float = knob(0.95, "oort: utilities are cut at this quantile", above=0, high=1)
    pace: float = knob(0.3, "oort: T at first, as a quantile of the clients' seconds", low=0, high=1)
    pacer_step: float = knob(0.05, "oort: Delta by which the quantile T rises", low=0, high=1)
    pacer_window: int = knob(20, "oort: W, rounds between comparisons of the utility", low=1)


class DevicesConfig(Section, when=When("order-of-arrival", ("virtual",))):
    """The seeded trace of device speeds behind ``simulated_seconds``; nothing of it is measured."""

    speed: float = knob(100.0, "median training speed of a client, examples per second", above=0)
    bandwidth: float = knob(1.4, "median rate of a client's link, Mbit/s", above=0)
    spread: float = knob(1.0, "standard deviation of the log of both; 0 = all alike", low=0, high=5)
    uplink: str = knob(
        "own",
        "own = uploads at once, shared = one after another",
        choices=("own", "shared"),
        when=(AVERAGED, WAITING),
    )


def _codec(*names: str) -> When:
    return When("codec.up", names, other=When("codec.down", names))


class CodecConfig(Section):
    """Codes in place of the numbers that travel (see ``docs/compression.md``)."""

    up: str = knob("none", "code of what clients send", choices=("none", *CODECS))
    down: str = knob("none", "code of what clients get", choices=("none", *CODECS))
    keep: float = knob(
        0.01, "p, share of each tensor's entries that is sent", above=0, high=1, when=_codec(*SPARSE)
    )
    bits: int = knob(
        0,
        "bits a number: eden 1 to 4, 0 = 2; rand-k 1 to 8, 0 = whole floats",
        low=0,
        high=8,
        when=_codec("eden", "rand-k"),
    )
    block: int = knob(
        4096,
        "numbers that are rotated together; a power of two",
        low=64,
        high=1 << 20,
        when=_codec("eden", "rand-k"),
    )
    rotate: bool = knob(
        True,
        "rand-k with codec.bits: rotate before drawing; false = for comparison",
        when=(_codec("rand-k"), When("codec.bits")),
    )


class StructuredConfig(Section, switch="kind"):
    """Structured updates, Konečný et al. 2016: local steps in a random space, of which few numbers travel."""

    kind: str = knob(
        "none",
        "where steps stay: mask = random entries of each matrix; low-rank = A B, A random, B trained",
        choices=("none", "low-rank", "mask"),
    )
    keep: float = knob(
        0.25, "share of each matrix's numbers that is trained and sent; 1 = all", above=0, high=1
    )


_CENTRAL = When("dp.noise"), When("dp.unit", ("client",))


class DPConfig(Section, switch="noise"):
    """Differential privacy (see ``docs/privacy.md``); its noise never comes from a seed."""

    noise: float = knob(0.0, "z, noise on a sum of updates in units of dp.clip; 0 = none", low=0)
    clip: float = knob(
        0.1, "C, largest L2 norm of a client's update, or an example's gradient; the rest is cut", above=0
    )
    clip_quantile: float = knob(
        0.0,
        "gamma, share of the updates that C is led to, from dp.clip on; 0 = C stays",
        low=0,
        below=1,
        when=_CENTRAL,
    )
    delta: float = knob(1e-5, "delta of (epsilon, delta), less than one over the clients", above=0, below=1)
    max_epsilon: float = knob(0.0, "stop before a round that would exceed this epsilon; 0 = never", low=0)
    unit: str = knob(
        "client",
        "what is protected: all of a client's data, or one of its examples",
        choices=("client", "example"),
    )
    noise_by: str = knob(
        "server",
        "who adds the noise: server, or, under secagg, nodes, a share each",
        choices=("server", "nodes"),
        when=_CENTRAL,
    )
    colluding: int = knob(
        1,
        "c, nodes that may give their noise away; the others' is enough",
        low=0,
        when=(When("dp.noise"), When("dp.noise-by", ("nodes",))),
    )

    @property
    def distributed(self) -> bool:
        """Whether nodes add shares of the noise, so that the server sees no sum without."""
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
    """What each client contributes to the model of a round, by the server's test set."""

    measure: str = knob(
        "none",
        "value of each client: what the model loses without it, or its mean over orders",
        choices=("none", "leave-one-out", "shapley"),
    )
    orders: int = knob(
        30,
        "shapley: random orders of the clients in a round; all, if not more",
        low=1,
        when=When("contribution.measure", ("shapley",)),
    )
    tolerance: float = knob(
        0.001,
        "shapley: difference in accuracy that is not followed further",
        low=0,
        when=When("contribution.measure", ("shapley",)),
    )


class AuditConfig(Section):
    """Canary clients of `bouquet audit epsilon` (see ``task/privacy/canaries.py``)."""

    canaries: int = knob(
        0,
        "clients without data that send random directions, half of them never; 0 = none",
        low=0,
        high=100_000,
        when=_CENTRAL,
    )
    swap: bool = knob(
        False,
        "those canaries send that did not, and the other way round",
        when=(*_CENTRAL, When("audit.canaries")),
    )
