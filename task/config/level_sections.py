"""The run-config keys of clients with different widths or kinds of models, and of public examples."""

from dataclasses import dataclass, field

from task.config.sections import Section, knob
from task.config.when import AVERAGED, When, algorithms
from task.errors import ConfigError


class WidthConfig(Section, switch="levels"):
    """Clients of several sizes: HeteroFL, Diao et al. 2021, and FedRolex, Alam et al. 2022."""

    levels: str = knob(
        "",
        'levels r, shares of each layer\'s units that a client trains: "1,0.5,0.25"; "" = all train all',
        several=True,
    )
    shares: str = knob(
        "", 'shares of the clients by level, drawn by name: "0.2,0.3,0.5"; "" = equal', several=True
    )
    scheme: str = knob(
        "nested",
        "which units a client trains: the first, a window that moves by a unit each round, or drawn "
        "each round",
        choices=("nested", "rolling", "random"),
    )

    def by_level(self) -> tuple[tuple[float, float], ...]:
        """Return r and the share of the clients by level, widest first; () if there are no levels.

        Raises:
            ConfigError: Naming the key.
        """
        if not self.levels:
            return ()
        levels = _numbers(
            "width.levels", self.levels, "shares above 0 and at most 1, each once, the widest first"
        )
        if any(not 0 < r <= 1 for r in levels) or list(levels) != sorted(set(levels), reverse=True):
            raise _unlike(
                "width.levels", "shares above 0 and at most 1, each once, the widest first", self.levels
            )
        return tuple(zip(levels, _shares("width", self.shares, len(levels)), strict=True))


class ModelsConfig(Section, when=AVERAGED):
    """Clients with different models, which never leave them."""

    levels: str = knob(
        "",
        'models of the clients, instead of model: "logistic,mlp,2nn"; "" = all have the same',
        several=True,
    )
    shares: str = knob(
        "",
        'shares of the clients by level, drawn by name: "0.2,0.3,0.5"; "" = equal',
        when=When("models.levels"),
        several=True,
    )
    features: int = knob(
        0, "add a last hidden layer with this number of ReLU units to each model; 0 = none", low=0
    )

    def by_level(self) -> tuple[tuple[str, float], ...]:
        """Return the models' names and shares of the clients, by level; () if all have the run's model.

        Raises:
            ConfigError: Naming the key.
        """
        if not self.levels:
            return ()
        names = tuple(part.strip() for part in self.levels.split(","))
        if len({*names}) < len(names) or not all(names):
            raise _unlike("models.levels", "names of models, each once", self.levels)
        return tuple(zip(names, _shares("models", self.shares, len(names)), strict=True))


class PublicConfig(Section, when=algorithms(lambda entry: entry.reads_public)):
    """Public examples, the same everywhere; only `FedMDConfig.pretrain_epochs` needs their labels."""

    data: str = knob("", 'data set of the public examples; "" = held out from the run\'s own data set')
    examples: int = knob(500, "number of public examples, drawn by data-seed", low=1)


class FedDFConfig(Section):
    """FedDF, Lin et al. 2020."""

    steps: int = knob(100, "N, distillation steps of the server each round; 0 = FedAvg", low=0)
    lr: float = knob(0.001, "learning rate of Adam in these steps, decaying to 0 along a cosine", above=0)
    batch_size: int = knob(128, "batch size of these steps", low=1)


class FedMDConfig(Section):
    """FedMD, Li and Wang 2019."""

    pretrain_epochs: int = knob(
        0, "epochs on the labelled public examples before a client's first training", low=0
    )
    digest_epochs: int = knob(
        1, "epochs of distillation of the consensus on the public examples; 0 = none", low=0
    )
    digest_lr: float = knob(0.0, "learning rate of SGD on the public examples; 0 = learning-rate", low=0)


class FedProtoConfig(Section):
    """FedProto, Tan et al. 2022."""

    lambda_: float = knob(1.0, "lambda of the term lambda/f |h(x) - C|^2; 0 = local training only", low=0)
    weights: str = knob(
        "examples",
        "weight of a client's prototype: its number of examples of the class, or 1 as in the authors' code",
        choices=("examples", "clients"),
    )
    least: int = knob(1, "fewest examples of a class for which a client sends a prototype", low=1)
    predict: str = knob(
        "head",
        "how clients predict in evaluations: with the model's head, or by the nearest global prototype",
        choices=("head", "prototype"),
    )


def _shares(section: str, text: str, levels: int) -> tuple[float, ...]:
    """Return the shares of the clients by level; equal shares if the text is empty."""
    wanted = f"{levels} shares of the clients, one for each of {section}.levels, that add up to 1"
    shares = _numbers(f"{section}.shares", text, wanted) if text else (1 / levels,) * levels
    if len(shares) != levels or any(s < 0 for s in shares) or abs(sum(shares) - 1) > 1e-6:
        raise _unlike(f"{section}.shares", wanted, text)
    return shares


def _numbers(key: str, text: str, expected: str) -> tuple[float, ...]:
    """Return the numbers of a list in a text."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _unlike(key, expected, text) from None


def _unlike(key: str, expected: str, got: str) -> ConfigError:
    return ConfigError(f'run-config key "{key}": expected {expected}; got {got!r}')


@dataclass(frozen=True, kw_only=True)
class LevelKeys:
    """The sections of runs whose clients train different models."""

    models: ModelsConfig = field(default_factory=ModelsConfig)
    public: PublicConfig = field(default_factory=PublicConfig)
    width: WidthConfig = field(default_factory=WidthConfig)
    feddf: FedDFConfig = field(default_factory=FedDFConfig)
    fedmd: FedMDConfig = field(default_factory=FedMDConfig)
    fedproto: FedProtoConfig = field(default_factory=FedProtoConfig)
