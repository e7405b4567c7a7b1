"""`Config`: the description of a run, with every run-config key declared once.

The algorithms' sections are in `task.config.algorithm_sections`, the others in `task.config.sections`;
`Config` has them all. A test checks that the table in ``pyproject.toml`` agrees. `task.config.read` reads the
keys into these objects.
"""

from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, cached_property
from typing import NamedTuple

from task.catalogue.entry import Algorithm
from task.catalogue.user_algorithm import algorithm_of
from task.config.algorithm_sections import AlgorithmKeys
from task.config.attack_section import AttackConfig
from task.config.data_sections import ArriveConfig, DriftConfig, StreamConfig
from task.config.level_sections import LevelKeys
from task.config.lora_section import LoraConfig
from task.config.personal_sections import PersonalKeys
from task.config.run_name import CHANGE_NO_RESULT, FLAT, default_name, key_of
from task.config.sections import (
    AuditConfig,
    CodecConfig,
    ContributionConfig,
    DataConfig,
    DevicesConfig,
    DPConfig,
    OutputConfig,
    SelectConfig,
    ServerConfig,
    StructuredConfig,
    SyntheticConfig,
    TrainConfig,
    knob,
)
from task.config.when import Value, When, but_algorithms
from task.references import is_reference

__all__ = ["CHANGE_NO_RESULT", "NESTED", "Config"]


_OWN_MODEL = but_algorithms(lambda entry: entry.fixed_model)


class Seeds(NamedTuple):
    """The seeds of a run, by the role of their random numbers (see `task.numerics.seeds`)."""

    model: int  # the initial parameters
    data: int  # partition, splits, subsets, generated data
    train: int  # everything during rounds: selection, batches, dropout, devices, noise, attacks


@dataclass(frozen=True, kw_only=True)
class RunKeys:
    """The keys of the run itself, and the sections of data, training, server and features."""

    algorithm: str = knob("fedavg", "see `bouquet algorithms`")
    model: str = knob(
        "mlp",
        "see `bouquet models`",
        when=(_OWN_MODEL, When("models.levels", ("",))),
    )
    loss: str = knob("", 'loss, by name or "package.module:name"; "" = by task', when=_OWN_MODEL)
    metrics: str = knob(
        "",
        'additional metrics, "f1-macro,net:Ece"; "" = only the usual ones, see docs/howto/training.md',
        several=True,
    )
    groups: str = knob(
        "",
        'groups of people to compare, "sex(Female|Male), age>65": rates and gaps on test data, see '
        'docs/howto/fairness.md; "" = none',
        several=True,
    )
    initial_model: str = knob(
        "",
        "initial parameters: a .safetensors, .pt or .pth file, or a result folder, at a link inside its kit; "
        '"" = drawn by seed',
    )
    initial_model_strict: bool = knob(
        True,
        "initial-model must have exactly the model's tensors; false = load what fits, and name the rest",
        when=When("initial-model"),
    )
    trainable: str = knob(
        "",
        'patterns of the parameters to train, "*lora*,classifier*"; the others are frozen and do not travel; '
        '"" = what the model trains',
        several=True,
        when=_OWN_MODEL,
    )
    seed: int = knob(1, "seed of all random numbers of the run, except those that protect privacy", low=0)
    model_seed: int = knob(-1, "seed of the initial parameters; -1 = seed", low=-1)
    data_seed: int = knob(-1, "seed of partition, splits, subsets, generated data; -1 = seed", low=-1)
    train_seed: int = knob(
        -1,
        "seed of selection, batches, dropout, codes, simulated devices, noise and attacks; -1 = seed",
        low=-1,
    )
    data: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    drift: DriftConfig = field(default_factory=DriftConfig)
    arrive: ArriveConfig = field(default_factory=ArriveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    devices: DevicesConfig = field(default_factory=DevicesConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    codec: CodecConfig = field(default_factory=CodecConfig)
    dp: DPConfig = field(default_factory=DPConfig)
    contribution: ContributionConfig = field(default_factory=ContributionConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    structured: StructuredConfig = field(default_factory=StructuredConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True, kw_only=True)
class Config(PersonalKeys, AlgorithmKeys, LevelKeys, RunKeys):
    """One run, checked."""

    def __hash__(self) -> int:
        """Return the hash of all keys, computed once: caches need it dozens of times per message."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(self)))

    def __getstate__(self) -> dict[str, object]:
        """Exclude the cached hash: string hashes differ between processes."""
        return {key: value for key, value in vars(self).items() if key != "_hash"}

    def value(self, key: str) -> Value:
        """Return the value of a run-config key."""
        section, name = _places()[key]
        found: Value = getattr(getattr(self, section) if section else self, name)
        return found

    @property
    def entry(self) -> Algorithm:
        """The algorithm's contract, in the variant that the keys of its solver select."""
        entry = algorithm_of(self.algorithm)
        for variant in () if is_reference(entry.solver) else entry.variants:
            if self.value(variant.key) == variant.value:
                entry = replace(entry, **variant.changes)
        return entry

    @property
    def seeds(self) -> Seeds:
        """The run's seeds by role."""
        given = (self.model_seed, self.data_seed, self.train_seed)
        return Seeds(*(self.seed if seed < 0 else seed for seed in given))

    @property
    def widths(self) -> tuple[tuple[float, float], ...]:
        """Width r and share of the clients by level, widest first; ``dropout-width`` is a single level."""
        return self.width.by_level() or ((self.train.dropout_width, 1.0),)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the clients' models: that of each level, or the run's."""
        return tuple(name for name, _ in self.models.by_level()) or (self.model,)

    def with_model(self, name: str) -> "Config":
        """Return the run as seen by a client that has this model."""
        return replace(self, model=name, models=replace(self.models, levels="", shares=""))

    @property
    def by_kind(self) -> bool:
        """Whether the server has a model for each of ``models.levels``; each client trains one of them."""
        return bool(self.models.levels) and bool(algorithm_of(self.algorithm).distils)

    @property
    def narrow(self) -> bool:
        """Whether clients train only some of the units of each layer."""
        return any(r < 1 for r, _ in self.widths)

    @property
    def parted(self) -> bool:
        """Whether clients train only parts of the model."""
        return self.by_kind or self.narrow

    @property
    def part_key(self) -> str:
        """The key that decides which part of the model a client has."""
        return "models.levels" if self.by_kind else "width.levels" if self.width.levels else "dropout-width"

    @property
    def run_name(self) -> str:
        """Name of the run: the key, or algorithm, data set, changed keys and seed."""
        return self.output.run_name or default_name(self)

    @property
    def horizon(self) -> bool:
        """Whether the rounds depend on the number of rounds, so that it is more than a limit."""
        return self.train.lr_schedule == "cosine" or algorithm_of(self.algorithm).horizon

    @property
    def measured_share(self) -> float:
        """Share of the clients that evaluate by default."""
        if self.dp.central:
            return 0.0  # the metrics of single clients are not protected
        entry = algorithm_of(self.algorithm)
        at_clients = (
            self.groups or self.train.ala or self.server.he or entry.personal or entry.tested == "always"
        )
        return 1.0 if at_clients or not self.server.num_server_rounds else 0.0


@cache
def _places() -> dict[str, tuple[str, str]]:
    """Return, by key, its section ("" = the run itself) and field."""
    places = {key_of("", f.name): ("", f.name) for f in fields(Config) if f.default_factory is MISSING}
    for section in fields(Config):
        if section.default_factory is not MISSING:
            own = fields(section.default_factory())
            places |= {key_of(section.name, f.name): (section.name, f.name) for f in own}
    return places


# Sections whose keys have the section's name as prefix ("fedprox.mu"); other keys have none.
NESTED = frozenset(f.name for f in fields(Config) if f.default_factory is not MISSING) - FLAT
