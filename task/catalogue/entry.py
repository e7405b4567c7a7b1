"""What a catalogue entry is: an algorithm and the contract between its two halves."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from task.catalogue.papers import Paper, paper
from task.catalogue.record import CLIENTS, MODEL_DOWN, MODEL_UP, SUB_MODEL, Layout, Record, Scalar
from task.catalogue.solvers import SOLVER_TRAITS, SolverTraits

Private = Literal["", "head", "body", "norm", "twin", "all"]
# What a user wants of an algorithm, and the heading of those that give it.
GROUPS = {
    "global": "One global model",
    "fair": "One global model that is fair to all clients",
    "robust": "One global model in spite of malicious clients",
    "topology": "Models that are mixed at edges or on a graph of peers",
    "asynchronous": "One global model, without waiting for the slowest",
    "vertical": "One model over columns that different parties hold",
    "own": "A model for each client",
    "classical": "A table equal to that of the pooled rows",
    "trees": "Boosted trees",
    "baseline": "Baselines to compare with",
}
# Work that measures a model or prepares the training, and is asked for as an evaluation; all other trains.
_MEASURING = (
    "evaluate", "loss", "columns", "adapt", "points", "mask", "match", "score", "scores", "tally", "bins",
    "weigh", "tree-test",
)  # fmt: skip

MCMAHAN = paper("1602.05629")
LI_PROX = paper("1812.06127", "Algorithm 2")


@dataclass(frozen=True)
class Variant:
    """What another value of one of an algorithm's own keys changes in its entry."""

    key: str
    value: bool | int | float | str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Algorithm:
    """One algorithm; the defaults are FedAvg's, so that an entry says only what differs."""

    name: str
    title: str
    paper: Paper
    about: str = ""  # what it does, one sentence for readers; a phase needs none
    differs: str = (
        ""  # where it does otherwise than its paper, and why, in sentences; "" = nowhere that counts
    )
    # Server half, key of ``strategies.STRATEGIES``; the algorithm's name if an entry gives none.
    rule: str = ""
    # Whether the server takes the mean for the next model and does nothing more with it, so that the mean may
    # be a ciphertext, or one of products.
    takes_mean: bool = False
    solver: str = "sgd"  # client half, key of ``client_app.solvers.SOLVERS``
    down: tuple[Record, ...] = (MODEL_DOWN,)
    up: tuple[Record, ...] = (MODEL_UP,)
    down_scalars: tuple[Scalar, ...] = ()
    up_scalars: tuple[Scalar, ...] = ()
    keeps: tuple[Record, ...] = ()
    # Contracts of the round's phases other than training and evaluation, by name.
    phases: "Mapping[str, Algorithm]" = field(default_factory=dict)
    # What clients do to answer: train, measure on test data, take the loss on training data, sum up their
    # tables' columns or rows, measure on test data the result of a round of training, which is neither sent
    # nor kept, or send their own model. Parties (`vertical`) align their rows in three steps, embed rows, and
    # where the labels are, train on embeddings or measure them; or they train by sums of products that others
    # decrypt, or grow trees by sums that the one with the labels decrypts.
    work: str = "train"  # what its clients do, a name in `client_app.works.WORK`
    measuring: str = "evaluate"  # what those do that are asked to measure the model
    weight: Literal["examples", "uniform"] = "examples"
    # Whether the solver can train several clients as one program; else each trains alone.
    batched: bool = True
    # Its run-config keys: sections, whose names end in a dot, and single keys. If it names a key's section,
    # too, only those that name the key read it; if not, it reads the key in addition to the section's owners.
    # The section of the algorithm's name if an entry gives none.
    reads: tuple[str, ...] = ()
    example: str = ""  # of an analysis: the run-config keys that declare its columns, as ``-c`` takes them
    variants: tuple[Variant, ...] = ()
    # Run-config keys at whose values the algorithm is FedAvg.
    neutral: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    # Whether `neutral` holds only among clients with equally many examples, the rule not using n_k.
    equal_sizes: bool = False
    no_neutral: str = ""  # why there are no values at which it is FedAvg; "" = `neutral` has them
    # (a, b) of a rule that withstands f malicious clients of a round if a f + b reply or more; else None.
    withstands: tuple[int, int] | None = None
    # Whether a biased rule converges; one that chooses among clients may change its choice for ever.
    converges: bool = True
    # Why the local steps must be those of SGD, with or without momentum; "" = any ``optimizer`` goes.
    sgd_only: str = ""
    unclipped: str = ""  # why their gradients must not be clipped; "" = ``clip-norm`` goes
    # Which part of the model never leaves a client: its last layers, all but its last layers, its
    # normalisation layers, the local extractor and the head of a twin model, or everything. The rest is the
    # *shared part*, the only one that the server knows.
    private: Private = ""
    # Run-config key of how many global models there are, each a record of its own (`task.catalogue.several`);
    # "" = there is one, or none.
    models: str = ""
    # Run-config key of the server's steps on public examples in each round; "" = it takes none.
    distils: str = ""
    # Whether clients read features, the inputs of the model's last linear layer.
    features: bool = False
    classes: str = ""  # why targets must be class numbers; "" = any go
    fixed_model: bool = False  # whether the algorithm says itself what the model is
    ensemble: bool = False  # whether a client's own model is but one of those that vote
    composite: bool = False  # whether what answers for a client is more than one model
    by_steps: str = ""  # of an algorithm whose clients send gradients, the one whose clients take the step
    # Whether the models that it is for are the clients' own. They are measured at the clients.
    personal: bool = False
    # Whether what happens in a round follows from ``num-server-rounds``, not from the rounds before alone.
    horizon: bool = False
    # Whether a client may train several times in a round, each time with batches of its own.
    repeats: bool = False
    # Whether a round takes the updates that arrive first, from whatever version of the model; its rule says
    # who arrives (`strategies.rules.asynchronous`).
    asynchronous: bool = False
    # Key of `GROUPS`; by default "own" if `personal`, "robust" if it withstands clients, else "global".
    group: str = ""
    ala: bool = False  # whether ``ala = true`` was tested with it
    # What stands around the clients' training, in the order of `task.catalogue.stages.STAGES`.
    stages: tuple[str, ...] = ()
    newcomer: str = ""  # what a client begins with that is new, joins late, or has lost what it kept
    # Whose data a client trains on that are not its own, which is not federated learning but what it is
    # compared with. "once": everybody's, and one client does it for all. "each": those of all clients of its
    # site, which are everybody's in a simulation, and it begins with an initial model of its own.
    pooled: Literal["", "once", "each"] = ""
    evaluation: tuple[Record, ...] | None = None  # what goes down with evaluation messages, if not the model
    # Why it does not end in the optimum of the pooled data where clients differ; "" = it ends there.
    biased: str = ""
    # Why what its paper calls private is not; "" = it claims nothing. It goes with nothing that protects.
    unsafe_reason: str = ""
    # Of a phase, whether who answers is trusted by assumption: no attack is simulated there.
    trusted: bool = False
    metrics: bool = False  # whether evaluations send up sums for further metrics, which the run config names
    measured: tuple[Record, ...] = ()  # further records of evaluations, which stages make
    # Whether the clients are parties, which hold other columns of the same people, one of them the labels.
    vertical: bool = False
    # Whether clients send exact sums over all their rows, from which the server makes a table of statistics:
    # no model is trained, numbers are read as float64, and unless it is `tested` no rows are kept for a test.
    statistics: bool = False
    steps: bool = True  # whether models learn by steps of an optimizer; trees are grown
    missing_values: bool = False  # whether the rows of its tables may lack values
    # Whether the numbers of its round have a declared bound on what a row adds, so that noise protects rows.
    noised_rows: bool = False
    # Run-config key of how many questions a round then asks at most besides the last; "" = none.
    more_questions: str = ""
    # Of such an analysis, whether clients measure its result on rows that they have set aside for that
    # (`measuring`): only if ``fraction-evaluate`` says so, or by default.
    tested: Literal["", "asked", "always"] = ""

    def __post_init__(self) -> None:
        """Name the rule, the group and the section, and make the mappings read-only."""
        group = "own" if self.personal else "robust" if self.withstands else "global"
        object.__setattr__(self, "rule", self.rule or self.name)
        object.__setattr__(self, "group", self.group or group)
        object.__setattr__(self, "reads", self.reads or (f"{self.name}.",))
        object.__setattr__(self, "phases", MappingProxyType(dict(self.phases)))
        object.__setattr__(self, "neutral", MappingProxyType(dict(self.neutral)))

    @property
    def verb(self) -> Literal["train", "evaluate"]:
        """The kind of Flower's message that asks for it."""
        return "evaluate" if self.work in _MEASURING else "train"

    @property
    def ends_itself(self) -> bool:
        """Whether it makes a table that is done at some round: ``num-server-rounds`` is but a limit."""
        return self.statistics and not self.tested

    @property
    def traits(self) -> SolverTraits:
        """What its clients' steps allow; those of a user's own solver allow nothing."""
        return SOLVER_TRAITS.get(self.solver, SolverTraits())

    @property
    def sends_gradient(self) -> bool:
        """Whether its clients send gradients at the received model and take no step."""
        return bool(self.up) and all(r.of in ("all", "batch") for r in self.up)

    @property
    def sends_whole_gradient(self) -> bool:
        """Whether these are over all examples, in no batches."""
        return bool(self.up) and all(r.of == "all" for r in self.up)

    @property
    def counts_steps(self) -> bool:
        """Whether its server says how many local steps clients take."""
        return any(s.name == "local-steps" for s in self.down_scalars)

    def owns(self, key: str) -> bool:
        """Return whether a run-config key is its own, or in a section of which it reads keys.

        Which keys of a section that several algorithms share are its own, `task.resolve.effective` says.
        """
        section, dot, _ = key.partition(".")
        return key in self.reads or section + dot in self.reads

    @property
    def learns(self) -> bool:
        """Whether its clients train by steps of an optimizer, which read ``learning-rate`` and the like."""
        return self.steps and not self.statistics

    @property
    def sends_model(self) -> bool:
        """Whether all clients of a round receive the same whole model, the server's or one made of it."""
        return any(r.name == MODEL_DOWN.name and r.to == "all" for r in self.down)

    @property
    def parted(self) -> bool:
        """Whether each client trains a part of the model (`task.catalogue.sub_models`)."""
        return any(r.layout == SUB_MODEL for r in self.down)

    @property
    def public(self) -> bool:
        """Whether all parties need the same public examples (`task.datasets.public`)."""
        return any(r.layout.kind == "public" for r in self.up)

    @property
    def reads_public(self) -> bool:
        """Whether a run has public examples: all parties need them, or the server alone does."""
        return self.public or bool(self.distils)

    @property
    def noised(self) -> bool:
        """Whether the server adds noise to sums of what clients clip (`task.catalogue.stages`)."""
        return any(r.clipped for r in self.up)

    @property
    def encrypted(self) -> bool:
        """Whether nodes send ciphertexts (`task.catalogue.encryption`)."""
        return any(r.encrypted for r in self.up)

    @property
    def rounded(self) -> bool:
        """Whether clients send integers on the grid of the sum (`task.catalogue.stages`)."""
        return any(r.rounded for r in self.up)

    @property
    def individual(self) -> bool:
        """Whether messages name the population: for what differs by client, or holds a number for each."""
        routed = any(r.to == "each" and r.layout != SUB_MODEL for r in self.down)
        return routed or any(r.layout == CLIENTS for r in (*self.down, *self.up))


MOST_EXAMPLES = 2**29  # of one client
NUM_EXAMPLES = Scalar(
    "num-examples", "n_k, training examples of the client", low=1, high=MOST_EXAMPLES - 1, whole=True
)
TRAIN_LOSS = Scalar("train-loss", "mean loss over the examples as they were trained on", False, low=0)
TEST_LOSS = Scalar(
    "test-loss", "mean loss of the client's own model after training, own test data", False, low=0
)
TEST_ACCURACY = Scalar("test-accuracy", "accuracy of the same", False, low=0, high=1)
TEST_EXAMPLES = Scalar(
    "test-examples", "examples that it was measured on", False, low=0, high=MOST_EXAMPLES - 1, whole=True
)
# Further common fields where the models are the clients' own (`Algorithm.personal`).
TESTS = (TEST_LOSS, TEST_ACCURACY, TEST_EXAMPLES)
COMMON = (NUM_EXAMPLES, TRAIN_LOSS, *TESTS)  # any reply may carry these too
# Sums for the run's further metrics (`task.tasks.metrics`); a node adds up those of its clients.
SUMS = Record(
    "metric-sums", Layout("part", "sums"), "sums for the run's metrics, own test data", reduce="sum"
)
# What a client answers to an evaluation message, with the number of test examples as ``num-examples``.
MEASURED = (
    Scalar("loss", "mean loss on the client's own test data", False, low=0),
    Scalar("accuracy", "accuracy on the same", False, low=0, high=1),
)


def evaluation_of(entry: Algorithm) -> Algorithm:
    """Return the contract of the entry's evaluation messages: the model down, metrics up, nothing kept.

    Where the models are the clients' own, what they kept is read.
    """
    down = (MODEL_DOWN,) if entry.evaluation is None else entry.evaluation
    keeps = entry.keeps if entry.personal else ()
    asked = replace(entry, down=down, down_scalars=(), phases={}, work=entry.measuring)
    up = (*([SUMS] if entry.metrics else []), *entry.measured)
    weight = "uniform" if up else entry.weight
    return replace(asked, up=up, up_scalars=MEASURED, keeps=keeps, weight=weight)


def unmeasured(entry: Algorithm) -> Algorithm:
    """Return the contract of evaluation messages that ask for loss and accuracy alone."""
    return evaluation_of(replace(entry, metrics=False, measured=()))


def adaptation_of(entry: Algorithm) -> Algorithm:
    """Return the contract under which a client of models of its own trains once as a new one, to be measured.

    What goes down is what training gets; up go loss and accuracy, and nothing is kept.
    """
    stages = tuple(name for name in entry.stages if name == "ala")  # no client reports a loss or attacks
    asked = replace(unmeasured(entry), down=entry.down, down_scalars=entry.down_scalars)
    return replace(asked, keeps=(), stages=stages, work="adapt")


def phase_of(entry: Algorithm, name: str) -> Algorithm | None:
    """Return the contract of ``train``, ``evaluate``, ``adapt`` or a phase of the entry's own; else None."""
    if name in entry.phases:
        return entry.phases[name]
    derived = {"evaluate": evaluation_of, "adapt": adaptation_of}
    if name in derived:
        return derived[name](entry)
    return entry if name == "train" else None
