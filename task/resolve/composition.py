"""What goes together: algorithms with stages and selection policies. What does not is refused before round 1.

`docs/composition.md` is the table of it, made by ``make docs``; every cell that says yes is run by a test.
"""

from collections.abc import Callable
from dataclasses import dataclass

from task import codecs
from task.config.attack_section import INFORMED
from task.config.knobs import Config
from task.config.sections import CODECS, SPARSE
from task.errors import ConfigError
from task.references import is_reference
from task.resolve.changing import check_changing
from task.resolve.contract import entry_of
from task.resolve.contribution import check_contribution
from task.resolve.private import why_not_central, why_not_local
from task.secagg.grid import EXACT
from task.spec.algorithms import ALGORITHMS
from task.spec.encryption import why_not_added
from task.spec.entry import Algorithm
from task.spec.record import MODEL_DOWN, MODEL_UP, PARAMETERS, SHARED
from task.spec.selections import SELECTIONS
from task.spec.stages import ALA_FITS, coded_in
from task.spec.sub_models import why_whole

_PARTIES = "its clients train parts of one model on each other's embeddings, for which this is not defined"


@dataclass(frozen=True)
class Choice:
    """Values of a run-config key that add something to an algorithm."""

    key: str
    values: tuple[bool | int | str, ...]  # which are alike in what they need
    # Returns why an algorithm does not go with it; "" = it does.
    why_not: Callable[[Algorithm], str] = lambda entry: ""

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
        train, attack, server = config.train, config.attack, config.server
        got = {"ala": train.ala, "attack.kind": attack.kind, "selection": server.selection}
        got |= {"codec.up": config.codec.up, "codec.down": config.codec.down}
        got["structured.kind"] = config.structured.kind
        if self.key in ("secagg", "secagg-bits"):
            return server.secagg and (self.key == "secagg" or server.secagg_bits < EXACT)
        if self.key == "he":
            return server.he
        if self.key == "transcript":
            return server.transcript in self.values
        if self.key == "sam.rho":
            return config.sam.rho > 0
        if self.key in ("clip-norm", "initial-model"):
            return bool(train.clip_norm if self.key == "clip-norm" else config.initial_model)
        if self.key in ("dp.noise", "dp.unit"):
            return config.dp.central if self.key == "dp.noise" else config.dp.local
        if self.key in ("dropout-width", "width.levels"):
            named = "width.levels" if config.width.levels else "dropout-width"
            return self.key == named and any(r < 1 for r, _ in config.widths)
        if self.key == "models.levels":
            return bool(config.models.levels)
        if self.key == "heldout-clients":
            return server.heldout_clients > 0
        if self.key == "optimizer":
            return (OWN if is_reference(train.optimizer) else train.optimizer) in self.values
        return got[self.key] in self.values


_REPEATS = "its clients train several times in a round"
OWN = "package.module:name"  # stands for whatever a user brings
SOME, BELOW_ONE = "> 0", "< 1"
FILE = "FILE"  # stands for any path
LEVELS = "1,0.5"
MODELS = "logistic,mlp"


def _alike(entry: Algorithm) -> str:
    one = "its clients send models, or parts of one, that the server averages or compares"
    return "" if entry.private == "all" or ALGORITHMS.get(entry.name, entry).distils else one


def _ala(entry: Algorithm) -> str:
    if entry.name in ALA_FITS:
        return ""
    return f"adaptive local aggregation is verified in front of {', '.join(ALA_FITS)} only"


def _own_start(entry: Algorithm) -> str:
    if "ala" in entry.stages:
        return "its clients mix what they get with the model that the seed draws"
    sent = (MODEL_DOWN in entry.down or not entry.personal) and entry.private != "all"
    return "" if sent else "its clients begin with the model that the seed draws, which is never sent"


def _nothing_up(entry: Algorithm) -> str:
    return "" if entry.up else "nothing goes up that a client could falsify"


def _informed(entry: Algorithm) -> str:
    why = f"{_REPEATS}, each edge's alone, where there may be no benign ones to look like"
    stale = "the updates of a step are from several versions, and may be of one client"
    return _no_base(entry) or (why if entry.repeats else stale if entry.asynchronous else "")


def _no_base(entry: Algorithm) -> str:
    """Return why there is no Delta_k: the clients did not receive what their records are relative to."""
    received = {r.name for r in entry.down if r.to == "all"}
    missing = [r.name for r in entry.up if r.base and r.base not in received]
    why = "the clients receive no common model that the change of their own could be measured from"
    return _nothing_up(entry) or (why if missing else "")


def _structured(entry: Algorithm) -> str:
    more = entry.keeps or entry.phases or entry.private or entry.personal
    if entry.solver not in ("sgd", "fedexp", "fedprox") or more:
        return "its clients do more than steps from the received model, which no restriction is defined for"
    whole = "its rule compares whole models, of which a restriction leaves most as they were"
    return "" if entry.up == (MODEL_UP,) else whole


# Solvers whose steps go along the gradient of a loss on one batch, with linear terms at most.
_UPHILL = (
    "ditto", "fedacg", "fedcm", "feddc", "feddyn", "fedexp", "fedlc", "fednova", "fedntd", "fedprox",
    "fedrep", "fine-tune", "loss-before", "mimelite", "moon", "qfedavg", "scaffold", "sgd",
)  # fmt: skip


def _sharp(entry: Algorithm) -> str:
    why = "its clients do not step along the gradient of a loss on one batch, or it is not verified with them"
    return "" if entry.solver in _UPHILL else why


def _ring(entry: Algorithm) -> str:
    if entry.repeats:
        return _REPEATS
    one_by_one = entry.phases or entry.individual or any(r.reduce == "collect" for r in entry.up)
    why = "the policy passes one model from client to client, and the rule needs several replies at once"
    return why if one_by_one else ""


def _codec(entry: Algorithm) -> str:
    if entry.repeats:
        return f"{_REPEATS}, and codes are drawn, and what they leave out is kept, by round"
    if not coded_in(entry):
        return "nothing goes up that a code could stand for"
    return _no_base(entry)


def _sparse(entry: Algorithm) -> str:
    compared = any(r.reduce == "collect" for r in coded_in(entry))
    why = (
        "the rule compares the clients' models entry by entry, and most entries of a sparse code are not sent"
    )
    return _codec(entry) or (why if compared else "")


def _down(entry: Algorithm) -> str:
    one = MODEL_DOWN in entry.down and entry.private != "all"
    return "" if one else "the clients receive no common model that codes could bring up to date"


def _loss(entry: Algorithm) -> str:
    whole = MODEL_DOWN in entry.down and not entry.private
    return "" if whole else "the policy goes by the loss of the received model, and no whole model is sent"


def _by_examples(entry: Algorithm) -> str:
    counts = any(phase.up and r.layout.of == "columns" for phase in entry.phases.values() for r in phase.up)
    return "the policy draws by n_k, and the rule counts features with weights n_k" if counts else ""


def _secure(entry: Algorithm) -> str:
    if entry.pooled:
        return "its clients train on everybody's data, so that there is nothing to hide"
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
            return f"its clients send {r.name!r}, whose numbers no bound on updates holds for"
    return ""


def _summed(entry: Algorithm) -> str:
    for contract in (entry, *entry.phases.values()):
        if single := [r.name for r in contract.up if r.reduce == "collect"]:
            return f'the rule needs each client\'s {single[0]!r}, which only "full" publishes'
    return ""


def _protecting(check: Callable[[Algorithm], str]) -> Callable[[Algorithm], str]:
    """Return a check of what protects clients, which goes with nothing that only claims to."""
    return lambda entry: entry.disproved or check(entry)


def _selection(name: str) -> Choice:
    selection = SELECTIONS[name]
    checks = [(selection.ring, _ring), (selection.needs_losses, _loss), (selection.by_examples, _by_examples)]

    def why_not(entry: Algorithm) -> str:
        if entry.asynchronous:
            return "a step takes the updates of the clients that are there first, whoever they are"
        return next((why for on, check in checks if on and (why := check(entry))), "")

    return Choice("selection", (name,), why_not)


CHOICES: tuple[Choice, ...] = (
    Choice("ala", (True,), _ala),
    Choice("optimizer", ("adam", "adamw", OWN), lambda entry: entry.sgd_only),
    Choice("clip-norm", (SOME,), lambda entry: entry.unclipped),
    Choice("sam.rho", (SOME,), _sharp),
    Choice("dropout-width", (BELOW_ONE,), why_whole),
    Choice("width.levels", (LEVELS,), why_whole),
    Choice("models.levels", (MODELS,), _alike),
    Choice("initial-model", (FILE,), _own_start),
    Choice(
        "heldout-clients",
        (SOME,),
        lambda entry: "its clients train on everybody's data" if entry.pooled else "",
    ),
    Choice("attack.kind", ("sign-flip", "scale", "gaussian", "model-replacement"), _no_base),
    Choice("attack.kind", ("label-flip", "backdoor")),
    Choice("attack.kind", INFORMED, _informed),
    Choice("codec.up", ("fp16", "int8", "eden"), _codec),
    Choice("codec.up", SPARSE, _sparse),
    Choice("codec.down", CODECS, _down),
    Choice("structured.kind", ("low-rank", "mask"), _structured),
    Choice("dp.noise", (SOME,), _protecting(why_not_central)),
    Choice("dp.unit", ("example",), _protecting(why_not_local)),
    Choice("secagg-bits", (64, 32), _protecting(_rounded)),
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
    check_changing(config, entry)
    _refuse(
        config.sam.rho > 0 and config.dp.local, ("sam.rho", f"{config.sam.rho:g}", "0"), "dp.unit", "example",
        "the noise is for one gradient of an example in a step, and the ascent takes another",
    )  # fmt: skip
    if config.contribution.measure != "none":
        check_contribution(config, entry)
    if config.parted:
        _check_parts(config)
    if config.server.secagg:
        _check_secure(config)
    if config.server.he:
        _check_encrypted(config)
    if config.server.transcript != "none":
        _check_transcript(config)


def _check_secure(config: Config) -> None:
    """Refuse keys that need single clients' numbers, or that masks would make useless."""
    server, selection = config.server, SELECTIONS[config.server.selection]
    columns = "the sums of each client's columns go up unmasked"
    whole = "a masked sum has every number whole, so that a code saves nothing"
    for key, value, on, why in (
        ("selection", selection.name, selection.needs_losses, "the policy goes by single clients' losses"),
        ("selection", selection.name, selection.ring, "the server sees each client's model on its way"),
        ("codec.up", config.codec.up, config.codec.up != "none", whole),
        ("structured.kind", config.structured.kind, config.structured.kind != "none", whole),
        (config.part_key, config.part_levels, config.parted,
         "which numbers a client sends would show which part it trained"),
        ("heldout-clients", f"{server.heldout_clients:g}", server.heldout_clients > 0,
         "they are measured one by one"),
        ("dp.unit", config.dp.unit, config.dp.local,
         "the server adds up the private steps of each client, which masks would hide"),
        ("standardise", "true", config.data.standardise, columns),
        ("missing", "mean", config.data.missing == "mean", columns),
        ("enough-replies", f"{server.enough_replies}", server.enough_replies > 0,
         "a sum is opened once all nodes have answered or the time is up"),
    ):  # fmt: skip
        _refuse(on, ("secagg", "true", "false"), key, value, why)
    bits = f"{server.secagg_bits}"
    if server.secagg_bits < EXACT and not (server.max_update_norm or config.dp.central):
        raise ConfigError(
            f'run-config key "secagg-bits": expected {EXACT} with max-update-norm = 0, as without a bound on '
            f"updates a sum of {bits} bits could wrap; got {bits}. Set max-update-norm: what is larger "
            "is refused"
        )


def _check_encrypted(config: Config) -> None:
    """Refuse keys that need single clients' models, or the model in clear, at the server."""
    server, dp = config.server, config.dp
    coded = "a ciphertext has every number whole, so that a code saves nothing"
    columns = "the sums of each client's columns go up in clear"
    for key, value, on, why in (
        ("secagg", "true", server.secagg, "either hides single nodes' sums; masks cost less"),
        ("dp.noise", f"{dp.noise:g}", dp.central, "the server adds noise to integers, and has ciphertexts"),
        ("dp.unit", dp.unit, dp.local, "it was not verified together"),
        ("codec.up", config.codec.up, config.codec.up != "none", coded),
        ("codec.down", config.codec.down, config.codec.down != "none", "the server knows no model to code"),
        ("structured.kind", config.structured.kind, config.structured.kind != "none", coded),
        (config.part_key, config.part_levels, config.parted,
         "the server cannot cut parts out of a ciphertext"),
        ("standardise", "true", config.data.standardise, columns),
        ("missing", "mean", config.data.missing == "mean", columns),
    ):  # fmt: skip
        _refuse(on, ("he", "true", "false"), key, value, why)


def _check_transcript(config: Config) -> None:
    """Refuse keys under which a round cannot be computed again from what a transcript holds."""
    server, entry = config.server, ALGORITHMS.get(config.algorithm)
    if server.transcript == "full" and config.dp.central:
        raise ConfigError(
            'run-config key "transcript": expected "sums" or "none" with dp.noise, as uploads, and sums of '
            'masked ones, are without noise; got "full"'
        )
    noisy = config.dp.central and config.dp.noise_by == "nodes"
    for key, value, on, why in (
        ("algorithm", config.algorithm, entry is not None and entry.vertical,
         "each party's part of the model stays with it"),
        ("algorithm", config.algorithm, entry is not None and entry.asynchronous,
         "a transcript does not say who was at work since when"),
        ("algorithm", config.algorithm, bool(entry and entry.distils), "it does not hold public examples"),
        ("he", "true", server.he, "the models that the rule computes are ciphertexts"),
        ("secagg-bits", f"{server.secagg_bits}", server.secagg and server.secagg_bits < EXACT,
         "the sums of a coarser grid are not published"),
        ("dp.noise-by", "nodes", noisy, "the sums that nodes noise are not published"),
    ):  # fmt: skip
        _refuse(on, ("transcript", server.transcript, "none"), key, value, why)


def _check_parts(config: Config) -> None:
    """Refuse keys that do not go with clients that train a part of the model each."""
    selection, codec = config.server.selection, codecs.CODECS.get(config.codec.up)
    for key, value, on, why in (
        ("ala", "true", config.train.ala, "clients keep arrays of the whole model from round to round"),
        ("selection", selection, SELECTIONS[selection].needs_losses,
         "the policy goes by the loss of the received model, and no whole model is sent"),
        ("codec.up", config.codec.up, codec is not None and codec.biased,
         "clients keep what their codes leave out of the whole model"),
        ("structured.kind", config.structured.kind, config.structured.kind != "none",
         "a restriction is of the whole model"),
        ("codec.down", config.codec.down, config.codec.down != "none", "no whole model is sent"),
        ("codec.up", config.codec.up, codec is not None and config.by_kind, "it was not verified together"),
        ("heldout-clients", "above 0", config.by_kind and config.server.heldout_clients > 0,
         "a client held out has no kind of model of its own yet"),
        ("transcript", config.server.transcript, config.server.transcript != "none",
         "a transcript's sums are of whole models"),
        ("attack.kind", config.attack.kind, config.attack.kind in INFORMED,
         "malicious clients compare coordinates of models that do not have the same ones"),
    ):  # fmt: skip
        _refuse(on, (config.part_key, config.part_levels, config.part_whole), key, value, why)


def _refuse(on: bool, wanted: tuple[str, str, str], key: str, value: str, why: str) -> None:
    """Refuse a key for the value of another; `wanted` are its name, its value, and the one that would go."""
    if on:
        name, got, fits = wanted
        raise ConfigError(
            f'run-config key "{name}": expected {fits} with {key} = {value}, as {why}; got {got}. '
            f'Set it to {fits}, or choose another "{key}"'
        )
