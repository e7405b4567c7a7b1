"""Base of the rules: the server half of an algorithm, as pure functions of the state and the replies.

A rule sees neither Flower nor PyTorch. Its round is a generator that yields *phases*, questions to some
clients, and gets back what their replies reduce to:

>>> from strategies.rules.fedavg import server_update
>>> replies = AggregatedReplies({"arrays": {"w": np.array([2.0])}}, ("anna",), np.array([7]))
>>> server_update(ServerState({"w": np.array([1.0])}), replies, Config())[0].arrays["w"]
array([2.])

`strategies.engine.phases` runs the phases; `strategies.strategy.Strategy` is the Flower strategy
around both.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from strategies.engine.state import AggregatedReplies, MeansState, Number, ServerState, rescaled
from task.catalogue.entry import Algorithm, phase_of
from task.catalogue.record import MODEL_DOWN
from task.config.knobs import Config
from task.errors import ConfigError, choose_from
from task.models.family import ModelFamily, SubModels
from task.numerics.arrays import Arrays, NamedArrays
from task.text import logger

if TYPE_CHECKING:  # it imports this module
    from strategies.engine.schedule import ArrivalSource
if TYPE_CHECKING:  # it imports Flower, which a rule does not know
    from task.wire.messages import RejectedReply

# Records that differ by recipient: by field, client and the record's own name.
Route = Mapping[str, Mapping[str, Mapping[str, Arrays]]]
# Returns the simulated seconds of clients that get the model, train and send, each alone on its link.
Seconds = Callable[[Sequence[str]], Sequence[float]]
# Trains a model towards the mean logits of others, stacked, on public examples (`task.tasks.distil`): given
# the number of steps, the learning rate, the batch size and a generator.
Distil = Callable[
    [NamedArrays, NamedArrays, int, float, int, np.random.Generator], tuple[Arrays, dict[str, float]]
]
Limits = Mapping[str, Mapping[str, float]]  # upper limits of scalars, by client and scalar
TRAIN, EVALUATE, ADAPT, OWN = "train", "evaluate", "adapt", "own"


@dataclass(frozen=True)
class Phase:
    """One question to some clients."""

    name: str  # ``train``, ``evaluate``, ``adapt`` or a key of the entry's `Algorithm.phases`
    contract: Algorithm  # what goes down, what comes up and how it is reduced
    to: tuple[str, ...]  # the clients that are asked, sorted
    records: Mapping[str, Arrays] = field(default_factory=dict)  # what goes to all of them, by field
    route: Route = field(default_factory=dict)  # what differs by client
    scalars: Mapping[str, float] = field(default_factory=dict)  # numbers that go to all of them
    # Epochs of the clients that do not train as configured.
    epochs: Mapping[str, int] = field(default_factory=dict)
    enough: int = 0  # replies after which the phase closes; 0 = it waits for all
    least: int = 0  # replies without which the round is skipped; 0 = any number suffices
    # Upper limits of the clients' scalars, below the catalogue's.
    limits: Limits = field(default_factory=dict)
    models: SubModels | None = None  # the parts of the model that the clients get, where they differ
    # Whether each client is asked at the node that served it last in this round, if it is there.
    session: bool = False
    # Of the records that have a row for each of the phase's rows: how many and how wide, by name.
    rows: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    round: int = 0  # server round in which the clients train; 0 = the present one
    # All parties of a rule of parties, whom messages name; () = those asked.
    parties: tuple[str, ...] = ()
    log_as: str = ""  # what ``clients.jsonl`` calls its answers; "" = nothing, or ``train`` or ``evaluate``

    @property
    def kind(self) -> str:
        """Flower's message type, with the phase as its action."""
        verb = self.contract.verb
        return verb if self.name == verb else f"{verb}.{self.name}"

    def received(self) -> Callable[[str], Arrays] | None:
        """Return a function of the model that a client gets; None = all get the same, or none."""
        if self.models:
            return self.models.received
        given = next((self.route[r.base] for r in self.contract.up if r.base in self.route), None)
        return (lambda client: next(iter(given[client].values()))) if given else None


@dataclass(frozen=True)
class RoundContext:
    """What a rule knows of a round, other than its state."""

    rule: "Rule"
    entry: Algorithm  # its contract in this run
    round: int  # server round t
    lr: float  # eta_t
    cohort: tuple[str, ...]  # the clients that train, sorted
    names: Sequence[str]  # names of all clients that are online, sorted
    trainable: tuple[str, ...]  # names of the model's parameters
    # Returns n_k by name; for a client that is away, its last n_k.
    examples: Callable[[Iterable[str]], Mapping[str, int]]
    # Returns loss and accuracy of a model on the server's test set; nothing where that is missing or not due.
    measure: Callable[[Arrays], Mapping[str, float]] = lambda arrays: {}
    # Returns the examples that clients registered, of those that did.
    registered: Callable[[Iterable[str]], Mapping[str, int]] = lambda clients: {}
    family: ModelFamily | None = None  # which part of the model each client trains; None = the whole
    remark: Callable[[str], None] = logger.warning  # shows a line to the user who watches the run
    distil: Distil | None = None  # trains models on the run's public examples; None = there are none
    arrivals: "ArrivalSource | None" = (
        None  # where updates really arrive; None = they are asked for in a round
    )
    epochs: Mapping[str, int] = field(default_factory=dict)  # epochs of the stragglers of the cohort
    # The cohort in the groups that train one after the other; one group unless the policy passes the model
    # from client to client.
    groups: tuple[tuple[str, ...], ...] = ()
    known: Sequence[str] = ()  # names of all clients that the run has known, sorted; empty = those online

    @property
    def everybody(self) -> Sequence[str]:
        """Names of all clients that the run has known, online or not, sorted."""
        return self.known or self.names

    def phase(
        self, name: str, state: Any, to: Sequence[str] | None = None, *, session: bool = False
    ) -> Phase:
        """Return a phase: ``train``, ``evaluate``, ``adapt``, or one of the entry's `Algorithm.phases`.

        What goes down is of this `state`, `to` these clients, by default the cohort; `session` is as in
        `Phase`.

        Raises:
            ConfigError: The entry has no such phase.
        """
        server, trains = self.rule.config.server, name == TRAIN
        contract = phase_of(self.entry, name)
        if contract is None:
            names = (TRAIN, EVALUATE, ADAPT, *self.entry.phases)
            raise ConfigError(choose_from(f"algorithm {self.entry.name}, a phase of its entry", name, names))
        asked = self.cohort if to is None else tuple(to)
        records = {
            f.name: state.arrays if f == MODEL_DOWN else self.rule.down_record(state, f.name, self)
            for f in contract.down
            if f.to == "all"
        }
        routed = any(f.to == "each" for f in contract.down)
        route = self.rule.route(state, asked, self) if routed else {}
        models = self._models(state) if contract.parted else None
        work = contract.work in (TRAIN, ADAPT, OWN)
        scalars = {"lr": self.lr, **self.rule.down_scalars(state)} if work else {}
        epochs = {c: e for c, e in self.epochs.items() if c in asked} if work else {}
        enough = server.enough_replies if trains else 0
        rings = len(self.groups) > 1  # then the round as a whole needs `min_replies`, see `Rule.round`
        measures = name in (EVALUATE, ADAPT)
        least = 0 if measures or contract.noised else 1 if rings else max(server.min_replies, 1)
        limits = self.rule.limits(self.registered(asked), epochs) if name == TRAIN else {}
        return Phase(
            name, contract, asked, records, route, scalars, epochs, enough, least, limits, models, session
        )

    def _models(self, state: Any) -> SubModels:
        if self.family is None:
            raise ConfigError(
                f'run-config key "{self.rule.config.part_key}": expected a family of models, which '
                "says what parts of the model there are (task.resolve.run_model.family_of, and "
                "strategies.stages.mixed_models.set_family); got none"
            )
        return SubModels(self.family, self.round, state.arrays)


def over_models(found: Sequence[Mapping[str, float]]) -> dict[str, Number]:
    """Return mean and worst of `RoundContext.measure` over several models of a round."""
    spread: dict[str, Number] = {}
    for name, worst in (("loss", max), ("accuracy", min)):
        values = [float(one[name]) for one in found if name in one]
        if values:
            spread |= {f"{name}-mean": math.fsum(values) / len(values), f"{name}-worst": worst(values)}
    return spread


class TooFewRepliesError(Exception):
    """A phase had fewer good replies than the rule or the run asks for; raised where the rule yielded it.

    A rule that can do without the phase catches it; else the round is skipped and the model kept. `rejected`
    are the replies that were not used.
    """

    def __init__(self, why: str, rejected: "Sequence[RejectedReply]" = ()) -> None:
        super().__init__(why)
        self.rejected = tuple(rejected)


def few(good: int, least: int) -> str:
    """Say that there were too few replies."""
    return f"{good} usable replies of at least {least}"


Round = Generator[Phase, AggregatedReplies, tuple[ServerState, dict[str, Number]]]
Phases = Generator[Phase, AggregatedReplies, None]
# Returns the next state and the rule's metrics, from the state, the replies and the run.
Update = Callable[[Any, AggregatedReplies, Config], tuple[Any, dict[str, Number]]]


class Rule:
    """The server half of one algorithm."""

    algorithm: ClassVar[str] = ""  # name of its catalogue entry; "" = it is the base of several
    update: ClassVar[Update]  # the module's pure ``server_update``
    state: ClassVar[type[ServerState]] = ServerState  # what it carries from round to round
    sends: ClassVar[Mapping[str, str]] = MappingProxyType({})  # downward scalars: field of the state, by name
    # Fields of the state that begin at zero for each parameter: their dtype, None = the parameter's.
    zeros: ClassVar[Mapping[str, type | None]] = MappingProxyType({})
    # Of a user's own rule, whether its update returns the mean of the clients' models as it is; of ours, the
    # entry says so.
    takes_mean: ClassVar[bool] = False
    # Whether it goes by the examples of all clients that the run has known, online or not.
    counts_examples: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        algorithm: str = "",
        update: Update | None = None,
        state: type[ServerState] | None = None,
        sends: Mapping[str, str] | None = None,
        zeros: Mapping[str, type | None] | None = None,
        takes_mean: bool = False,
    ) -> None:
        cls.algorithm, cls.takes_mean = algorithm or cls.algorithm, takes_mean
        cls.state, cls.sends, cls.zeros = state or cls.state, sends or cls.sends, zeros or cls.zeros
        if update is not None:
            cls.update = staticmethod(update)

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial_state(self, arrays: Arrays, trainable: tuple[str, ...]) -> ServerState:
        """Return the state before round 1; `trainable` names the parameters among the arrays."""
        like = {name: arrays[name] for name in trainable}
        start = {f: {n: np.zeros_like(a, dtype) for n, a in like.items()} for f, dtype in self.zeros.items()}
        return self.state(arrays, **start)

    def round(self, state: Any, context: RoundContext) -> Round:
        """Yield the round's phases; return the next state and the rule's metrics.

        Only the state outlives a round: an interrupted one starts again from its beginning.
        """
        if len(context.groups) <= 1:
            replies = yield context.phase(TRAIN, state)
            return type(self).update(state, replies, self.config)
        metrics: dict[str, Number] = {}
        hops: list[Mapping[str, float]] = []
        trained, least = 0, self.config.server.min_replies
        for group in context.groups:
            try:
                replies = yield context.phase(TRAIN, state, group)
            except TooFewRepliesError:
                continue  # the model skips a client that cannot train
            state, metrics = type(self).update(state, replies, self.config)
            trained += len(replies.clients)
            hops.append(context.measure(state.arrays))
        if trained < least:
            raise TooFewRepliesError(few(trained, least))
        return state, metrics | over_models(hops)

    def counted(self, state: Any, context: RoundContext) -> Any:
        """Return the state with which a round begins, given the clients known by then.

        Means over all clients count those, too, that have joined since. It comes after `begin`, and is also
        called where a transcript is checked.
        """
        if not isinstance(state, MeansState):
            return state
        N = len(context.everybody)
        factor = state.population / N if state.population else 1.0
        fields = [r.mean for r in context.entry.keeps if r.mean and r.mean_by == "clients"]
        means = {name: rescaled(getattr(state, name), factor) for name in fields}
        return replace(state, population=N, **means)

    def begin(self, state: Any, context: RoundContext, seconds: Seconds) -> Any:
        """Return the state with which a round begins; the context is still without a cohort."""
        return state

    def drawn(self, state: Any) -> tuple[str, ...] | None:
        """Return the clients that train in the round, sorted; None = the policy draws them."""
        return None

    def seconds(self, state: Any) -> float | None:
        """Return the simulated seconds of the round; None = until its slowest client is done."""
        return None

    def opening(self, context: RoundContext) -> Phases:
        """Yield the phases before the first round; a resumed run repeats them.

        They fix what holds for the whole run, such as who takes part, and leave the state alone.
        """
        yield from ()

    def needs(self) -> tuple[str, ...]:
        """Return the clients without which no round begins, sorted, once the run is open."""
        return ()

    def evaluation(self, state: Any, context: RoundContext) -> Phases:
        """Yield the phases of an evaluation at the clients, the cohort; the last one measures."""
        yield context.phase(EVALUATE, state)

    def down_scalars(self, state: Any) -> dict[str, float]:
        """Return the entry's downward scalars."""
        return {name: getattr(state, field) for name, field in self.sends.items()}

    def down_record(self, state: Any, name: str, context: RoundContext) -> Arrays:
        """Return a record other than the model that goes to all alike; the state's field of that name."""
        arrays: Arrays = getattr(state, name.replace("-", "_"))
        return arrays

    def route(self, state: Any, to: Sequence[str], context: RoundContext) -> Route:
        """Return what differs by recipient, of the fields that do."""
        return {}

    def limits(self, examples: Mapping[str, int], epochs: Mapping[str, int]) -> Limits:
        """Return upper limits of training scalars, from registered examples and stragglers' epochs."""
        return {}

    def routed_per_client(self, state: Any) -> int:
        """Return about how many records a client gets of a field that differs by recipient."""
        return 1

    def on_round_skipped(self, state: Any, spent: AggregatedReplies, came: AggregatedReplies | None) -> Any:
        """Return the state after a round without a result; the model must stay.

        `spent` has the round's cost, without clients; `came` are the replies to its training, if any
        were good.
        """
        return state

    def roll_back(self, good: Any, state: Any) -> Any:
        """Return the state to continue with when clients diverge from `state` but not from `good`."""
        return good

    def finished(self, state: Any) -> bool:
        """Return whether the rule has nothing more to do, such as when a budget is spent."""
        return False
