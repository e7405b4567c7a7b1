"""A user's own algorithm: a rule by reference, ``rules:MyRule``, in place of a name of the catalogue.

The attribute ``entry`` of a rule's class says what it needs of the clients; without it they do as in FedAvg.
It is best one of ours with what differs::

    class Damped(Rule, update=server_update, sends={"proximal-mu": "mu"}):
        entry = replace(ALGORITHMS["fedprox"], title="Damped", solver="rules:DampedSolver")

Whether the class is a rule, `strategies.strategy_of` checks, and `client_app.solvers.solver_of` finds the
solver: this package imports neither.
"""

from dataclasses import replace
from functools import cache

from task.errors import ConfigError, choose_from
from task.references import is_reference, load_reference, package_of
from task.spec.algorithms import ALGORITHMS
from task.spec.entry import Algorithm
from task.spec.record import Record, Scalar

KEY = "algorithm"
_PARTS: dict[str, type] = {
    "down": Record, "up": Record, "keeps": Record, "down_scalars": Scalar, "up_scalars": Scalar
}  # fmt: skip


def algorithm_of(name: str) -> Algorithm:
    """Return the catalogue's entry, or that of a user's own rule.

    Raises:
        ConfigError: There is no such algorithm, or the rule's entry cannot be used.
    """
    if is_reference(name):
        rule = load_reference(KEY, name)
        if not isinstance(rule, type):
            raise ConfigError(
                f'run-config key "{KEY}": "{name}": expected a class derived from '
                f"strategies.engine.rule.Rule; got {type(rule).__name__}"
            )
        return _entry_of(name, rule)
    if name not in ALGORITHMS:
        raise ConfigError(choose_from(f'run-config key "{KEY}"', name, ALGORITHMS))
    return ALGORITHMS[name]


@cache  # a node asks with every message
def _entry_of(name: str, rule: type) -> Algorithm:
    where = f'run-config key "{KEY}": "{name}"'
    entry = getattr(rule, "entry", ALGORITHMS["fedavg"])
    if not isinstance(entry, Algorithm):
        raise ConfigError(
            f"{where}: expected entry as a task.spec.entry.Algorithm; got {type(entry).__name__}"
        )
    _check_parts(where, entry)
    if not is_reference(entry.solver):
        _check_solver(where, entry)
    elif package_of(entry.solver) != package_of(name):
        raise ConfigError(
            f'{where}: expected a solver in "{package_of(name)}", since that is the code that nodes compare '
            f'and allow; got "{entry.solver}"'
        )
    title, about = entry.title, entry.about
    if entry in ALGORITHMS.values():  # which says nothing of this rule
        title, about = rule.__name__, (rule.__doc__ or "").strip().partition("\n")[0]
    why = "a rule of the user's own"
    return replace(entry, name=name, rule=name, title=title, about=about, neutral={}, no_neutral=why)


def _check_parts(where: str, entry: Algorithm) -> None:
    """Refuse an entry with something else than records, or with phases that no client knows."""
    for field, kind in _PARTS.items():
        parts = getattr(entry, field)
        wrong = (
            [part for part in parts if not isinstance(part, kind)] if isinstance(parts, tuple) else [parts]
        )
        if wrong:
            raise ConfigError(
                f"{where}: expected entry.{field} as a tuple of {kind.__name__}; got {wrong[0]!r}"
            )
    known = {name for ours in ALGORITHMS.values() for name in ours.phases}
    if strange := sorted(set(entry.phases) - known):
        raise ConfigError(f"{where}: entry.phases: {choose_from('a phase', strange[0], known)}")


def _check_solver(where: str, entry: Algorithm) -> None:
    """Refuse records that the solver does not send, and one without those that it reads."""
    peers = [ours for ours in ALGORITHMS.values() if ours.solver == entry.solver]
    if not peers:
        known = sorted({ours.solver for ours in ALGORITHMS.values()})
        raise ConfigError(choose_from(f'{where}: entry.solver, ours or "module:Class"', entry.solver, known))
    for field in ("up", "up_scalars"):
        sent = set().union(*(_names(ours, field) for ours in peers))
        if strange := sorted(_names(entry, field) - sent):
            raise ConfigError(
                f'{where}: entry.{field}: solver "{entry.solver}" sends {_listed(sent)}; got {strange[0]}. '
                "Take it out, or name a solver of your own that sends it"
            )
    for field in ("down", "down_scalars"):
        read = set.intersection(*(_names(ours, field) for ours in peers))
        if missing := sorted(read - _names(entry, field)):
            raise ConfigError(
                f'{where}: entry.{field}: solver "{entry.solver}" reads {_listed(read)}; {missing[0]} is not '
                f"there. Begin with replace(ALGORITHMS[{peers[0].name!r}], ...)"
            )


def _names(entry: Algorithm, field: str) -> set[str]:
    """Return the entry's records or scalars in words; records of one name may differ in their arrays."""
    parts: tuple[Record | Scalar, ...] = getattr(entry, field)
    return {f"{p.name} ({p.layout.of or p.layout.kind})" if isinstance(p, Record) else p.name for p in parts}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
