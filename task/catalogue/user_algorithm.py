"""A user's own algorithm: a rule by reference, ``rules:MyRule``, in place of a name of the catalogue.

The attribute ``entry`` of a rule's class says what it needs of the clients; without it they do as in FedAvg.
It is best one of ours with what differs::

    from bouquet.extend import ALGORITHMS, Rule

    class Damped(Rule, update=server_update, sends={"proximal-mu": "mu"}):
        entry = replace(ALGORITHMS["fedprox"], title="Damped", solver="rules:DampedSolver")

Its ``phases`` may have names of their own, for the rule's ``round`` to yield. A rule whose update returns the
mean of the clients' models as it is says so with ``takes_mean=True``, a further argument of the class: what
goes with such rules alone, `he` and `lora.average`, then goes with it.

Whether the class is a rule, `strategies.strategy_of` checks, and `client_app.solvers.solver_of` finds the
solver: this package imports neither.
"""

from dataclasses import replace
from functools import cache

from task import trust
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.entry import Algorithm
from task.catalogue.record import Record, Scalar
from task.errors import ConfigError, choose_from
from task.objects import is_object
from task.references import is_reference, load_reference, package_of

KEY = "algorithm"
_PARTS: dict[str, type] = {
    "down": Record, "up": Record, "keeps": Record, "down_scalars": Scalar, "up_scalars": Scalar
}  # fmt: skip
_TAKEN = ("adapt", "candidates", "columns", "cross", "evaluate", "own", "train")  # names of phases of ours
_LOSSES = {"loss", "loss-rms"}  # what a phase with ``work="loss"`` sends up


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
                f"bouquet.extend.Rule; got {type(rule).__name__}"
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
            f"{where}: expected entry as a bouquet.extend.Algorithm; got {type(entry).__name__}"
        )
    _check_parts(where, "entry", entry)
    _check_solver(where, "entry", entry, name)
    for phase, contract in entry.phases.items():
        _check_phase(where, phase, contract, name)
    title, about = entry.title, entry.about
    if entry in ALGORITHMS.values():  # which says nothing of this rule
        title, about = rule.__name__, (rule.__doc__ or "").strip().partition("\n")[0]
    why = "a rule of the user's own"
    # The entry that the user's is made of says neither of this rule.
    entry = replace(entry, takes_mean=getattr(rule, "takes_mean", False), ala=False)
    return replace(entry, name=name, rule=name, title=title, about=about, neutral={}, no_neutral=why)


def _check_parts(where: str, what: str, entry: Algorithm) -> None:
    """Refuse a contract with something else than records; `what` is its place in the user's code."""
    for field, kind in _PARTS.items():
        parts = getattr(entry, field)
        wrong = (
            [part for part in parts if not isinstance(part, kind)] if isinstance(parts, tuple) else [parts]
        )
        if wrong:
            raise ConfigError(
                f"{where}: expected {what}.{field} as a tuple of {kind.__name__}; got {wrong[0]!r}"
            )


def _check_phase(where: str, phase: str, contract: Algorithm, name: str) -> None:
    """Refuse a phase that no client can answer; `name` is the rule's reference."""
    if not phase.isidentifier() or phase in _TAKEN:
        raise ConfigError(
            f"{where}: entry.phases: expected names like Python's, other than {', '.join(_TAKEN)}; "
            f"got {phase!r}"
        )
    what = f'entry.phases["{phase}"]'
    if not isinstance(contract, Algorithm):
        raise ConfigError(
            f"{where}: expected {what} as a bouquet.extend.Algorithm; got {type(contract).__name__}"
        )
    _check_parts(where, what, contract)
    if contract.work == "train":
        _check_solver(where, what, contract, name)
    elif contract.work != "loss":
        raise ConfigError(f'{where}: expected {what}.work as "train" or "loss"; got "{contract.work}"')
    elif contract.up or contract.keeps or not _names(contract, "up_scalars") <= _LOSSES:
        raise ConfigError(
            f'{where}: {what}: expected work="loss" with up=(), keeps=() and up_scalars of '
            f"{_listed(_LOSSES)}; got others"
        )


def _check_solver(where: str, what: str, entry: Algorithm, name: str) -> None:
    """Refuse a solver from elsewhere, records that it does not send, and the lack of those that it reads."""
    if is_reference(entry.solver):
        if not is_object(name) and package_of(entry.solver) != package_of(name):
            raise ConfigError(
                f'{where}: expected a solver in "{package_of(name)}", since that is the code that nodes '
                f'compare and allow; got "{entry.solver}"'
            )
        trust.follow(name, entry.solver)
        return
    # The work of a party, and of a regression's site, is no solver's.
    ours = [a for a in ALGORITHMS.values() if not (a.vertical or a.statistics)]
    known = [part for a in ours for part in (a, *a.phases.values())]
    peers = [part for part in known if part.solver == entry.solver]
    if not peers:
        names = sorted({part.solver for part in known})
        raise ConfigError(choose_from(f'{where}: {what}.solver, ours or "module:Class"', entry.solver, names))
    for field in ("up", "up_scalars"):
        sent = set().union(*(_names(peer, field) for peer in peers))
        if strange := sorted(_names(entry, field) - sent):
            raise ConfigError(
                f'{where}: {what}.{field}: solver "{entry.solver}" sends {_listed(sent)}; got {strange[0]}. '
                "Take it out, or name a solver of your own that sends it"
            )
    for field in ("down", "down_scalars"):
        read = set.intersection(*(_names(ours, field) for ours in peers))
        if missing := sorted(read - _names(entry, field)):
            raise ConfigError(
                f'{where}: {what}.{field}: solver "{entry.solver}" reads {_listed(read)}; {missing[0]} is '
                f"not there. Begin with replace(ALGORITHMS[{peers[0].name!r}], ...)"
            )


def _names(entry: Algorithm, field: str) -> set[str]:
    """Return the entry's records or scalars in words; records of one name may differ in their arrays."""
    parts: tuple[Record | Scalar, ...] = getattr(entry, field)
    return {f"{p.name} ({p.layout.of or p.layout.kind})" if isinstance(p, Record) else p.name for p in parts}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
