"""What goes together: algorithms with stages and selection policies. What does not is refused before round 1.

`docs/composition.md` is the table of it, made by ``make docs``; every cell that says yes is run by a test.
"""

from collections.abc import Callable
from dataclasses import dataclass

from task.config.knobs import Config
from task.errors import ConfigError
from task.references import is_reference
from task.spec.algorithms import ALGORITHMS
from task.spec.brought import algorithm_of
from task.spec.entry import Algorithm
from task.spec.record import MODEL_DOWN
from task.spec.selections import SELECTIONS
from task.spec.stages import ALA_FITS


@dataclass(frozen=True)
class Choice:
    """Values of a run-config key that add something to an algorithm."""

    key: str
    values: tuple[bool | str, ...]  # which are alike in what they need
    # Returns why an algorithm does not go with it; "" = it does.
    why_not: Callable[[Algorithm], str] = lambda entry: ""

    def __str__(self) -> str:
        if self.values == (SOME,):
            return f"{self.key} {self.values[0]}"
        values = [str(v).lower() if isinstance(v, bool) else f'"{v}"' for v in self.values]
        return f"{self.key} = {' | '.join(values)}"

    def chosen(self, config: Config) -> bool:
        """Return whether a run config says so."""
        train, attack, server = config.train, config.attack, config.server
        got = {"ala": train.ala, "attack.kind": attack.kind, "selection": server.selection}
        if self.key in ("clip-norm", "initial-model"):
            return bool(train.clip_norm if self.key == "clip-norm" else config.initial_model)
        if self.key == "heldout-clients":
            return server.heldout_clients > 0
        if self.key == "optimizer":
            return (OWN if is_reference(train.optimizer) else train.optimizer) in self.values
        return got[self.key] in self.values


OWN = "package.module:name"  # stands for whatever a user brings
SOME = "> 0"
FILE = "FILE"  # stands for any path


def _ala(entry: Algorithm) -> str:
    if entry.name in ALA_FITS:
        return ""
    return f"adaptive local aggregation is verified in front of {', '.join(ALA_FITS)} only"


def _own_start(entry: Algorithm) -> str:
    if "ala" in entry.stages:
        return "its clients mix what they get with the model that the seed draws"
    sent = MODEL_DOWN in entry.down and entry.private != "all"
    return "" if sent else "its clients begin with the model that the seed draws, which is never sent"


def _nothing_up(entry: Algorithm) -> str:
    return "" if entry.up else "nothing goes up that a client could falsify"


def _no_base(entry: Algorithm) -> str:
    """Return why there is no Delta_k: the clients did not receive what their records are relative to."""
    received = {r.name for r in entry.down if r.to == "all"}
    missing = [r.name for r in entry.up if r.base and r.base not in received]
    why = "the clients receive no common model that the change of their own could be measured from"
    return _nothing_up(entry) or (why if missing else "")


def _ring(entry: Algorithm) -> str:
    one_by_one = entry.phases or entry.individual or any(r.reduce == "collect" for r in entry.up)
    why = "the policy passes one model from client to client, and the rule needs several replies at once"
    return why if one_by_one else ""


def _loss(entry: Algorithm) -> str:
    whole = MODEL_DOWN in entry.down and not entry.private
    return "" if whole else "the policy goes by the loss of the received model, and no whole model is sent"


def _by_examples(entry: Algorithm) -> str:
    counts = any(phase.up and r.layout.of == "columns" for phase in entry.phases.values() for r in phase.up)
    return "the policy draws by n_k, and the rule counts features with weights n_k" if counts else ""


def _selection(name: str) -> Choice:
    selection = SELECTIONS[name]
    checks = [(selection.ring, _ring), (selection.needs_losses, _loss), (selection.by_examples, _by_examples)]

    def why_not(entry: Algorithm) -> str:
        return next((why for on, check in checks if on and (why := check(entry))), "")

    return Choice("selection", (name,), why_not)


CHOICES: tuple[Choice, ...] = (
    Choice("ala", (True,), _ala),
    Choice("optimizer", ("adam", "adamw", OWN), lambda entry: entry.sgd_only),
    Choice("clip-norm", (SOME,), lambda entry: entry.unclipped),
    Choice("initial-model", (FILE,), _own_start),
    Choice("heldout-clients", (SOME,), lambda entry: "one client trains on everybody's data" * entry.pooled),
    Choice("attack.kind", ("sign-flip", "scale", "gaussian"), _no_base),
    Choice("attack.kind", ("label-flip",)),
    Choice("attack.kind", ("little-is-enough",), _nothing_up),
    *(_selection(name) for name in SELECTIONS if name != "uniform"),
)


def check_composition(config: Config) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: Naming key, algorithm and reason, and what would go.
    """
    entry = algorithm_of(config.algorithm)
    for choice in CHOICES:
        if choice.chosen(config) and (why := choice.why_not(entry)):
            fits = [name for name, other in ALGORITHMS.items() if not choice.why_not(other)]
            raise ConfigError(
                f'run-config key "{choice.key}": {choice} does not go with algorithm = '
                f'"{entry.name}": {why}; '
                f"expected one of {', '.join(fits[:12])}{', ...' if len(fits) > 12 else ''}, or another "
                f'"{choice.key}"'
            )
