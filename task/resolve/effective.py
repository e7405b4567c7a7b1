"""Which run-config keys a run reads; a key that was set and that nothing reads is refused.

A key that no line below names is read by every run. An algorithm's own keys (``fedprox.mu``) are read with
that algorithm and need no line: the catalogue has them (`Algorithm.reads`). Flower hands over the run config
with all defaults filled in, so a key counts as set if its value is not the default.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.config.attack_section import BACKDOORS, DEVIATING, AttackConfig
from task.config.sections import OPTIMIZERS, SPARSE, TABLES, Value
from task.datasets import DATASETS
from task.datasets.partition import PARTITIONS
from task.errors import ConfigError
from task.population import listed
from task.references import is_reference


@dataclass(frozen=True)
class When:
    """A condition on one key of a run."""

    key: str
    values: tuple[Value, ...] = ()  # those that satisfy the condition; none = any but 0, false and ""
    but: bool = False  # whether all other values satisfy it instead
    other: "When | None" = None  # a second condition that is enough by itself
    why: str = ""  # what is true of the values, where they do not say it themselves

    def holds(self, run: Mapping[str, Value]) -> bool:
        """Return whether a run, given by all its keys, satisfies the condition."""
        found = (run[self.key] in self.values) is not self.but if self.values else bool(run[self.key])
        if self.key == "algorithm" and not self.but:
            found = found or is_reference(str(run[self.key]))  # a rule of a user's own may read any
        return found or (self.other is not None and self.other.holds(run))

    def __str__(self) -> str:
        how = "other than" if self.but else "=" if len(self.values) == 1 else "one of"
        words = f"{self.key} {how} {', '.join(_toml(v) for v in self.values)}"
        words = f"{words}{self.why and ', '}{self.why}" if self.values else f'"{self.key}" set'
        return f"{words}, or {self.other}" if self.other else words


def _those(holds: Callable[[Algorithm], object]) -> tuple[str, ...]:
    return tuple(sorted(name for name, entry in ALGORITHMS.items() if holds(entry)))


def _selection(name: str) -> When:
    return When("selection", (name,))


def _codec(*names: str) -> When:
    return When("codec.up", names, other=When("codec.down", names))


def _is_bounded(entry: Algorithm) -> bool:
    """Return whether a norm bounds all that is summed, which is changes of the model."""
    sent = [r for contract in (entry, *entry.phases.values()) for r in contract.up]
    changes = [r.layout.kind == "part" for r in sent if r.layout.kind == "part" or r.reduce != "collect"]
    return bool(changes) and all(changes)


_OWN_DATA = When("dataset", tuple(sorted(name for name, spec in DATASETS.items() if spec.own)))
_VERTICAL = _those(lambda entry: entry.vertical)
_AVERAGED = When("algorithm", _VERTICAL, but=True)
_UPDATES = When(
    "algorithm",
    _those(lambda entry: not _is_bounded(entry)),
    but=True,
    why="whose clients send nothing, or sums that no norm of a change bounds",
)
_MANY = When("algorithm", _those(lambda entry: entry.pooled), but=True)
_ASYNCHRONOUS = _those(lambda entry: entry.asynchronous)
_WAITING = When("algorithm", _ASYNCHRONOUS, but=True)
_FREE_MODEL = When("algorithm", _those(lambda entry: entry.fixed_model), but=True)
_VIRTUAL = When("order-of-arrival", ("virtual",))
_HEAD = When("algorithm", _those(lambda entry: entry.private == "head"))
_TABLE = When("dataset", TABLES)
_TEXTS = tuple(name for name, spec in DATASETS.items() if spec.text)
_IMAGES = When("dataset", tuple(sorted((*_TEXTS, "breast-cancer", "csv", "synthetic"))), but=True)
_MODEL_COST = When("adaptive-tau.resource", ("model",))
_OORT = ("penalty", "exploration", "exploration-decay", "exploration-min", "cut-off", "clip",
         "pace", "pacer-step", "pacer-window")  # fmt: skip
_ONE_GRADIENT = _those(lambda entry: entry.sends_gradient)
_WHOLE_GRADIENT = _those(lambda entry: entry.sends_whole_gradient)
_COUNTED = _those(lambda entry: entry.counts_steps)
_STEPS = When("algorithm", _ONE_GRADIENT, but=True)
_SGD = When("optimizer", ("sgd",))
# What parties of one model have no use for: all of them take part in every step.
_NOT_VERTICAL = (
    "enough-replies", "evaluate-every", "fraction-train", "max-update-norm", "precision", "stragglers",
)  # fmt: skip
_KINDS = tuple(k for k in AttackConfig.__dataclass_fields__["kind"].metadata["choices"] if k != "none")
_SCALED = ("sign-flip", "scale", "inner-product", "distributed-backdoor", "model-replacement")

# Slow clients do fewer epochs, but one at least: they do the same work where it is one, or not in epochs.
_DROPPED = When("drop-stragglers")
_SLOW = (
    When("algorithm", (*_ONE_GRADIENT, *_COUNTED), but=True, other=_DROPPED),
    When("local-epochs", (1,), but=True, other=_DROPPED),
)
_DRIFTS = When("drift.kind", ("none",), but=True)
_CENTRAL = When("dp.noise"), When("dp.unit", ("client",))

READ_WHEN: dict[str, tuple[When, ...]] = {
    # whole sections, whose name ends in a dot
    "synthetic.": (When("dataset", ("synthetic",)),),
    "adam.": (When("optimizer", OPTIMIZERS[1:]),),
    "fedala.": (When("algorithm", _those(lambda entry: "ala" in entry.stages), other=When("ala", (True,))),),
    # single keys; all conditions must hold, those of the section too
    "initial-model-strict": (When("initial-model"),),
    "data-path": (_OWN_DATA,),
    "pixels": (_IMAGES,),
    "stream.per-round": (When("stream.start", (1.0,), but=True),),
    "stream.order": (When("stream.start", (1.0,), but=True, other=When("stream.window")),),
    **dict.fromkeys((f"drift.{k}" for k in ("round", "pattern", "clients", "examples")), (_DRIFTS,)),
    "drift.strength": (When("drift.kind", ("background", "contrast", "noise")),),
    "drift.span": (_DRIFTS, When("drift.pattern", ("sudden",), but=True)),
    "stream.own-data": (_OWN_DATA,),
    "arrive.round": (When("arrive.share"),),
    "feature-skew-strength": (When("feature-skew", ("background", "contrast", "noise")),),
    "condition": (When("model", ("cvae",)),),
    "num-classes": (_OWN_DATA,),
    "missing": (_TABLE,),
    "missing-indicator": (_TABLE, When("missing", ("mean", "zero"))),
    "standardise": (_TABLE, _AVERAGED),
    "batch-size": (When("algorithm", _WHOLE_GRADIENT, but=True, other=When("batch-size", (0,))),),
    "local-epochs": (
        When("local-steps", (0,)),
        When("algorithm", (*_ONE_GRADIENT, *_VERTICAL, *_COUNTED), but=True),
    ),
    "local-steps": (When("algorithm", (*_ONE_GRADIENT, *_VERTICAL, *_COUNTED), but=True),),
    **dict.fromkeys(_NOT_VERTICAL, (_AVERAGED,)),
    "max-update-norm": (_AVERAGED, _UPDATES),
    "enough-replies": (_AVERAGED, _WAITING),
    "stragglers": (_AVERAGED, _WAITING, _MANY, When("local-steps", (0,)), *_SLOW),
    "devices.": (_VIRTUAL,),
    "devices.uplink": (_AVERAGED, _WAITING),
    "order-of-arrival": (When("algorithm", _ASYNCHRONOUS),),
    "vertical.noise": (When("vertical.defence", ("gaussian",)),),
    # Which has but one, and whose kinds may be several.
    "model": (_FREE_MODEL, When("models.levels", ("",))),
    "models.": (_AVERAGED,),
    "public.": (When("algorithm", _those(lambda entry: entry.reads_public)),),
    "lr-decay": (When("lr-schedule", ("cosine",), but=True),),
    "lr-step": (When("lr-schedule", ("step",)),),
    "augment": (_STEPS, _AVERAGED),
    "momentum": (_STEPS, _SGD),
    "nesterov": (_STEPS, _SGD, When("momentum")),
    "weight-decay": (_STEPS, When("optimizer", OPTIMIZERS)),
    "drop-stragglers": (When("stragglers"),),
    "plateau-delta": (When("plateau-rounds"),),
    "client-evaluate-every": (When("fraction-evaluate"),),
    "adaptive-tau.tau-max": (When("adaptive-tau.fixed-tau", (0,)),),
    "adaptive-tau.step-cost": (_MODEL_COST,),
    "adaptive-tau.round-cost": (_MODEL_COST,),
    **dict.fromkeys(("dp.clip", "dp.delta", "dp.max-epsilon", "dp.unit"), (When("dp.noise"),)),
    "dp.clip-quantile": _CENTRAL,
    "dp.noise-by": _CENTRAL,
    "dp.colluding": (When("dp.noise"), When("dp.noise-by", ("nodes",))),
    "audit.canaries": _CENTRAL,
    "audit.swap": (*_CENTRAL, When("audit.canaries")),
    "codec.keep": (_codec(*SPARSE),),
    "codec.bits": (_codec("eden", "rand-k"),),
    "codec.block": (_codec("eden", "rand-k"),),
    "codec.rotate": (_codec("rand-k"), When("codec.bits")),
    "secagg-bits": (When("secagg"),),
    "secagg-min-nodes": (When("secagg"),),
    "secagg-threshold": (When("secagg"),),
    "evaluate-every": (When("he", (False,)),),
    "attack.fraction": (When("attack.kind", _KINDS),),
    "attack.target": (When("attack.kind", BACKDOORS),),
    "attack.poison": (When("attack.kind", BACKDOORS),),
    "attack.scale": (When("attack.kind", _SCALED),),
    "attack.deviations": (When("attack.kind", DEVIATING),),
    "attack.std": (When("attack.kind", ("gaussian",)),),
    "contribution.orders": (When("contribution.measure", ("shapley",)),),
    "contribution.tolerance": (When("contribution.measure", ("shapley",)),),
    "sam.form": (When("sam.rho"),),
    "structured.keep": (When("structured.kind", ("low-rank", "mask")),),
    "dropout-width": (When("width.levels", ("",)),),
    "models.shares": (When("models.levels"),),
    "width.shares": (When("width.levels"),),
    "width.scheme": (When("width.levels"),),
    "personal.layers": (_HEAD, When("private-layers", ("",))),
    "private-layers": (_HEAD,),
    "personal.epochs": (
        When("local-steps", (0,)),
        When("fedbabu.tune", ("none",), but=True),
    ),
    "fedphp.temperature": (When("fedphp.transfer", ("kd",)),),
    "d-psgd.degree": (When("d-psgd.route", ("regular",)),),
    "fedasync.poly-a": (When("fedasync.staleness", ("polynomial",)),),
    "fedasync.hinge-a": (When("fedasync.staleness", ("hinge",)),),
    "fedasync.hinge-b": (When("fedasync.staleness", ("hinge",)),),
    "hierfavg.edges": (When("hierfavg.pattern", ("",)),),
    "select.order": (_selection("cycle"),),
    "select.candidates": (_selection("power-of-choice"),),
    "select.losses": (_selection("power-of-choice"),),
    "select.deadline": (_selection("fedcs"),),
    **dict.fromkeys((f"select.{name}" for name in _OORT), (_selection("oort"),)),
    **{
        key.replace("_", "-"): (When("partition", tuple(p for p in PARTITIONS if key in PARTITIONS[p].keys)),)
        for spec in PARTITIONS.values()
        for key in spec.keys
    },
}


def conditions(key: str) -> tuple[When, ...]:
    """Return what must hold of a run so that it reads a key; nothing = every run does."""
    section, dot, _ = key.partition(".")
    whole = READ_WHEN.get(f"{section}.", _owned(f"{section}.")) if dot else ()
    return (*whole, *_owned(key), *READ_WHEN.get(key, ()))


def _owned(key: str) -> tuple[When, ...]:
    """Return the condition on the algorithm of a key, or of a section, that is one of algorithms' own."""
    owners = _those(lambda entry: key in entry.reads)
    return (When("algorithm", owners),) if owners else ()


def reads_only(key: str, algorithm: str) -> bool:
    """Return whether a key is read by this algorithm and not by all: it is a knob of its own."""
    mine = [when for when in conditions(key) if when.key == "algorithm" and not when.but]
    return bool(mine) and all(algorithm in when.values for when in mine)


def unmet(key: str, run: Mapping[str, Value]) -> When | None:
    """Return why a run, given by all its keys, does not read a key; None if it does."""
    return next((when for when in conditions(key) if not when.holds(run)), None)


def models_in(run: Mapping[str, Any]) -> str:
    """Return by name which models a run trains, "" where its algorithm has but one; `run` may lack keys."""
    if names := str(run.get("models.levels") or ""):
        return ", ".join(listed(names))
    given = {"algorithm": "", "models.levels": "", **run}
    return "" if unmet("model", given) else str(run.get("model") or "")


def unread(run: Mapping[str, Value], defaults: Mapping[str, Value]) -> Iterator[tuple[str, When]]:
    """Yield the keys that are not at their default though nothing in the run reads them, and why."""
    for key, value in run.items():
        if value != defaults[key] and (why := unmet(key, run)):
            yield key, why


def check_read(run: Mapping[str, Value], defaults: Mapping[str, Value]) -> None:
    """Refuse a run with a key that was set and that nothing reads.

    Raises:
        ConfigError: Naming the key, what would read it, and what the run has instead.
    """
    for key, why in unread(run, defaults):
        raise ConfigError(
            f'run-config key "{key}": nothing in this run reads it; expected {why}, or the key left out '
            f"(default {_toml(defaults[key])}); got {_toml(run[key])} with {why.key} = {_toml(run[why.key])}"
        )


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"
