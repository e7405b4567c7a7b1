"""Which algorithms go with which stages and selection policies. What does not is refused before round 1.

`docs/composition.md` is the table of it, made by ``make docs``; every cell that says yes is run by a test.
"""

from collections.abc import Callable
from dataclasses import dataclass

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.encryption import why_not_added
from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN, MODEL_UP, PARAMETERS, SHARED
from task.catalogue.selections import SELECTIONS
from task.catalogue.stages import ALA_FITS, coded_in
from task.catalogue.sub_models import why_whole
from task.config.attack_section import INFORMED, MOVED
from task.config.knobs import Config
from task.config.sections import CODECS, SPARSE
from task.errors import ConfigError
from task.resolve.changing import check_changing
from task.resolve.contract import entry_of
from task.resolve.measurements import check_measurements
from task.resolve.pairs import check_pairs
from task.resolve.private import why_not_central, why_not_local
from task.resolve.refusals import (
    COARSE,
    DP_CENTRAL,
    DP_LOCAL,
    DROPOUT,
    HELD_OUT,
    SHARP,
    WIDTHS,
    Setting,
)

_PARTIES = "its clients train parts of one model on each other's embeddings; this is not defined for them"

OWN = "package.module:name"  # stands for whatever a user brings
SOME, BELOW_ONE = "> 0", "< 1"
FILE = "FILE"  # stands for any path
LEVELS = "1,0.5"
MODELS = "logistic,mlp"


@dataclass(frozen=True)
class Choice:
    """Values of a run-config key that add something to an algorithm."""

    key: str
    values: tuple[bool | int | str, ...]  # which are alike in what they need
    # Returns why an algorithm does not go with it; "" = it does.
    why_not: Callable[[Algorithm], str] = lambda entry: ""
    setting: Setting | None = None  # what says whether a run has one of the values, if these stand for others

    def __post_init__(self) -> None:
        """Refuse whatever stands around local training where none of one model takes place."""
        check = self.why_not
        object.__setattr__(self, "why_not", lambda entry: _PARTIES if entry.vertical else check(entry))

    def __str__(self) -> str:
        if self.values in ((SOME,), (BELOW_ONE,)):
            return f"{self.key} {self.values[0]}"
        values = [str(v).lower() if isinstance(v, int) else f'"{v}"' for v in self.values]
        return f"{self.key} = {' | '.join(values)}"

    def chosen(self, config: Config) -> bool:
        """Return whether a run config says so."""
        if self.setting is not None:
            return bool(self.setting.on(config))
        return config.value(self.key) in self.values


_REPEATS = "its clients train several times in a round"


def _alike(entry: Algorithm) -> str:
    one = "its clients send models, or parts of one, that the server averages or compares"
    return "" if entry.private == "all" or ALGORITHMS.get(entry.name, entry).distils else one


def _ala(entry: Algorithm) -> str:
    if entry.name in ALA_FITS:
        return ""
    return f"adaptive local aggregation is tested only with {', '.join(ALA_FITS)}"


def _own_start(entry: Algorithm) -> str:
    if "ala" in entry.stages:
        return "its clients mix the received model with the model drawn from the seed"
    sent = (MODEL_DOWN in entry.down or not entry.personal) and entry.private != "all"
    return "" if sent else "its clients begin with the model drawn from the seed, which is never sent"


def _nothing_up(entry: Algorithm) -> str:
    return "" if entry.up else "its clients send nothing that they could falsify"


def _informed(entry: Algorithm) -> str:
    why = f"{_REPEATS}, each edge separately, and an edge may have no benign clients to imitate"
    stale = "the updates of a step are from several versions, and may be of one client"
    return _no_base(entry) or (why if entry.repeats else stale if entry.asynchronous else "")


def _no_base(entry: Algorithm) -> str:
    """Return why there is no Delta_k: the clients did not receive what their records are relative to."""
    received = {r.name for r in entry.down if r.to == "all"}
    missing = [r.name for r in entry.up if r.base and r.base not in received]
    why = "the clients receive no common model from which to measure the change of their own"
    return _nothing_up(entry) or (why if missing else "")


def _structured(entry: Algorithm) -> str:
    more = entry.keeps or entry.phases or entry.private or entry.personal
    if not entry.traits.restricted or more:
        return (
            "its clients do more than take steps from the received model; no restriction is defined for that"
        )
    whole = "its rule compares whole models, and a restriction leaves most of a model unchanged"
    return "" if entry.up == (MODEL_UP,) else whole


def _sharp(entry: Algorithm) -> str:
    why = "its clients do not step along the gradient of the loss on one batch, or this is untested"
    return "" if entry.traits.uphill else why


def _ring(entry: Algorithm) -> str:
    if entry.repeats:
        return _REPEATS
    one_by_one = entry.phases or entry.individual or any(r.reduce == "collect" for r in entry.up)
    why = "the policy passes one model from client to client, and the rule needs several replies at once"
    return why if one_by_one else ""


def _codec(entry: Algorithm) -> str:
    if entry.repeats:
        return f"{_REPEATS}, but codes and their residuals are per round"
    if not coded_in(entry):
        return "its clients send nothing that a code could replace"
    return _no_base(entry)


def _sparse(entry: Algorithm) -> str:
    compared = any(r.reduce == "collect" for r in coded_in(entry))
    why = (
        "the rule compares the clients' models entry by entry, and most entries of a sparse code are not sent"
    )
    return _codec(entry) or (why if compared else "")


def _down(entry: Algorithm) -> str:
    one = MODEL_DOWN in entry.down and entry.private != "all"
    return "" if one else "the clients receive no common model that codes could update"


def _loss(entry: Algorithm) -> str:
    whole = MODEL_DOWN in entry.down and not entry.private
    return "" if whole else "the policy uses the loss of the received model, and no whole model is sent"


def _by_examples(entry: Algorithm) -> str:
    counts = any(phase.up and r.layout.of == "columns" for phase in entry.phases.values() for r in phase.up)
    return "the policy draws by n_k, and the rule counts features with weights n_k" if counts else ""


def _everybody(entry: Algorithm) -> str:
    return "it trains on all clients' data" if entry.pooled else ""


def _secure(entry: Algorithm) -> str:
    if why := _everybody(entry):
        return f"{why}, so there is nothing to hide"
    if entry.repeats:
        return "the server would see the sums of single edges, which may have too few nodes"
    for contract in (entry, *entry.phases.values()):
        if single := [r.name for r in contract.up if r.reduce == "collect"]:
            return f"the rule needs each client's {single[0]!r}, and the server learns sums only"
        if single := [s.name for s in contract.up_scalars if s.reduce in ("collect", "max")]:
            return f"the rule needs single clients' {single[0]!r}, and the server learns sums only"
    return ""


def _rounded(entry: Algorithm) -> str:
    if why := _secure(entry) or _no_base(entry):
        return why
    for r in (r for c in (entry, *entry.phases.values()) if c.work == "train" for r in c.up):
        if r.reduce != "mean" or r.code or r.per or r.layout not in (SHARED, PARAMETERS):
            return f"its clients send {r.name!r}, and the bound on updates does not apply to its numbers"
    return ""


def _summed(entry: Algorithm) -> str:
    for contract in (entry, *entry.phases.values()):
        if single := [r.name for r in contract.up if r.reduce == "collect"]:
            return f'the rule needs each client\'s {single[0]!r}, which only "full" publishes'
    return ""


def _protecting(check: Callable[[Algorithm], str]) -> Callable[[Algorithm], str]:
    """Return a check of what protects clients, which goes with nothing that only claims to."""
    return lambda entry: entry.unsafe_reason or check(entry)


def _selection(name: str) -> Choice:
    selection = SELECTIONS[name]
    checks = [(selection.ring, _ring), (selection.needs_losses, _loss), (selection.by_examples, _by_examples)]

    def why_not(entry: Algorithm) -> str:
        if entry.asynchronous:
            return "a step takes the updates that arrive first, so a policy cannot choose its clients"
        return next((why for on, check in checks if on and (why := check(entry))), "")

    return Choice("selection", (name,), why_not)


_OPTIMIZER = Setting("optimizer", lambda c: c.train.optimizer != "sgd")
_CLIPPED = Setting("clip-norm", lambda c: c.train.clip_norm)
_MODELS = Setting("models.levels", lambda c: c.models.levels)
_FILE = Setting("initial-model", lambda c: c.initial_model)

CHOICES: tuple[Choice, ...] = (
    Choice("ala", (True,), _ala),
    Choice("optimizer", ("adam", "adamw", OWN), lambda entry: entry.sgd_only, _OPTIMIZER),
    Choice("clip-norm", (SOME,), lambda entry: entry.unclipped, _CLIPPED),
    Choice("sam.rho", (SOME,), _sharp, SHARP),
    Choice("dropout-width", (BELOW_ONE,), why_whole, DROPOUT),
    Choice("width.levels", (LEVELS,), why_whole, WIDTHS),
    Choice("models.levels", (MODELS,), _alike, _MODELS),
    Choice("initial-model", (FILE,), _own_start, _FILE),
    Choice("heldout-clients", (SOME,), _everybody, HELD_OUT),
    Choice("attack.kind", MOVED, lambda entry: _everybody(entry) or _no_base(entry)),
    Choice("attack.kind", ("label-flip", "backdoor"), _everybody),
    Choice("attack.kind", INFORMED, _informed),
    Choice("codec.up", ("fp16", "int8", "eden"), _codec),
    Choice("codec.up", SPARSE, _sparse),
    Choice("codec.down", CODECS, _down),
    Choice("structured.kind", ("low-rank", "mask"), _structured),
    Choice("dp.noise", (SOME,), _protecting(why_not_central), DP_CENTRAL),
    Choice("dp.unit", ("example",), _protecting(why_not_local), DP_LOCAL),
    Choice("secagg-bits", (64, 32), _protecting(_rounded), COARSE),
    Choice("secagg", (True,), _protecting(_secure)),
    Choice("he", (True,), _protecting(why_not_added)),
    Choice("transcript", ("sums",), _summed),
    *(_selection(name) for name in SELECTIONS if name != "uniform"),
)


def check_composition(config: Config) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: Naming key, algorithm and reason, and what would go.
    """
    entry = entry_of(config)
    for choice in CHOICES:
        if choice.chosen(config) and (why := choice.why_not(entry)):
            fits = [
                name for name, other in ALGORITHMS.items() if name != entry.name and not choice.why_not(other)
            ]
            got = f'models.levels = "{config.models.levels}"' if choice.key == "models.levels" else choice
            raise ConfigError(
                f'run-config key "{choice.key}": {got} does not go with algorithm = "{entry.name}": {why}; '
                f"expected one of {', '.join(fits[:12])}{', ...' if len(fits) > 12 else ''}, or another "
                f'"{choice.key}"'
            )
    check_changing(config)
    check_measurements(config, entry)
    check_pairs(config)
