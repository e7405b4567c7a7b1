"""Registration on the wire: a node says which clients it can train, of how many examples.

The server's query has no content; the answer is the record ``roll_call`` and, in ``metrics``, the clients'
``num-examples``. A node that has registered and that the run leaves out is sent the reason in the record
``left_out``; its answer has no content.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from task.datasets.description import PARTS, Description, Meaning
from task.errors import ConfigError, WireError
from task.population import ClientNames
from task.wire.checks import check_name, short
from task.wire.messages import LONGEST_LINE, METRICS, NUM_EXAMPLES, one_line, records_of

REGISTER = "roll_call"  # action of the query, and record of the answer
LEFT_OUT = "left_out"  # action of the notice, and its record
MOST_CLIENTS = 10**7  # of one node
MOST_PACKAGES = 64  # packages whose code a run names
MOST_LACKING = 10_000  # columns that a run declares and a node lacks
LONGEST_NAMES = 2**22  # characters of all names of columns, categories and classes
MOST_PLACES = 10**6  # numbers that a model reads of an example, or says of it


Data = tuple[tuple[int, ...], int]  # shape of one example and number of classes


@dataclass(frozen=True, eq=False)
class Registration:
    """A node's registration."""

    clients: Sequence[str]  # names of the clients that it can train; `ClientNames` travel as their number
    num_examples: np.ndarray  # their training examples, integers ``[len(clients)]``
    pool: str  # nodes with the same pool share data and client state and can stand in for each other
    # (partition-id, num-partitions): if other pools also claim a client, the node whose share it is trains
    # it.
    share: tuple[int, int] = (0, 1)
    version: str = ""  # version of the app on the node
    shape: tuple[int, ...] = ()  # shape of one example as the model sees it; empty if unknown
    classes: int = 0  # number of classes; 0 if unknown
    stock: bool = False  # whether the node's app is not Bouquet's and cannot register
    whole: bool = False  # whether its share of the clients counts as one client
    code: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of what a run's user brings, by package
    width: float = 0.0  # of its one client's model; 0 = as the run assigns it
    model: str = ""  # its one client's model, by name; "" = as the run assigns it
    meaning: Meaning = field(default_factory=Meaning)  # of its clients' data
    # SHA-256 of frozen parts of models that it has: as drawn by the run's seed, and in its store.
    frozen: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()  # columns that the run declares and none of its data has
    names: Description | None = None  # the names that these are digests of, where the owner lets them out

    @property
    def data(self) -> Data | None:
        """What its clients' data are like; None if it has none, or did not say."""
        return (self.shape, self.classes) if self.classes and len(self.clients) else None


def registration_content(answer: Registration) -> RecordDict:
    """Return the content of a node's answer; one count stands for as many equal ones."""
    names, counts = answer.clients, np.asarray(answer.num_examples)
    config = ConfigRecord(
        {
            "clients": len(names) if isinstance(names, ClientNames) else list(names),
            "pool": answer.pool,
            "share": list(answer.share),
            "version": answer.version,
            "shape": list(answer.shape),
            "classes": answer.classes,
            "code": [f"{package}={digest}" for package, digest in answer.code.items()],
            **({"width": answer.width} if answer.width else {}),
            **({"model": answer.model} if answer.model else {}),
            **({"frozen": list(answer.frozen)} if answer.frozen else {}),
            **({"lacks": list(answer.lacks)} if answer.lacks else {}),
            "meaning": [f"{part}={digest}" for part, digest in answer.meaning.parts.items()],
            "inputs": list(answer.meaning.inputs),
            "outputs": list(answer.meaning.outputs),
            **({"names": json.dumps(answer.names.as_dict())} if answer.names else {}),
        }
    )
    counts = counts[:1] if (counts == counts[:1]).all() else counts
    return RecordDict({REGISTER: config, METRICS: MetricRecord({NUM_EXAMPLES: counts.tolist()})})


def refusal_content(reason: str) -> RecordDict:
    """Return the answer of a node that cannot take part: its configuration or its data are wrong."""
    return RecordDict({REGISTER: ConfigRecord({"refused": reason}), METRICS: MetricRecord()})


def notice_content(reason: str) -> RecordDict:
    """Return the notice to a node that is left out; the reason continues the sentence "it ..."."""
    return RecordDict({LEFT_OUT: ConfigRecord({"reason": one_line(reason)})})


def read_notice(content: RecordDict) -> str:
    """Return why a run leaves this node out, as one printable line.

    Raises:
        WireError: The notice has no reason.
    """
    notice = records_of(content, ConfigRecord).get(LEFT_OUT, ConfigRecord())
    if not isinstance(reason := notice.get("reason"), str):
        raise WireError(f"notice: expected a reason as a text; got {short(reason)}", "reason")
    return one_line(reason, "did not get a reason")


def read_registration(content: RecordDict) -> Registration:
    """Read a node's answer.

    Raises:
        ConfigError: The node declines, and says why.
        WireError: A part is missing or the lists do not match.
    """
    configs, metrics = records_of(content, ConfigRecord), records_of(content, MetricRecord)
    if REGISTER not in configs or METRICS not in metrics:
        raise WireError("registration: expected the records 'roll_call' and 'metrics'", REGISTER)
    config = configs[REGISTER]
    if "refused" in config:
        raise ConfigError(one_line(str(config["refused"]), "no reason given"))
    clients = _clients(config.get("clients"))
    counts = np.array(_integers(metrics[METRICS].get(NUM_EXAMPLES), NUM_EXAMPLES, 2**53), np.int64)
    if counts.shape not in ((1,), (len(clients),)):
        got = f"expected {len(clients)} example counts, or one; got {counts.size}"
        raise WireError(f"registration: {got}", NUM_EXAMPLES)
    share, shape = (_integers(config.get(k), k, 2**31) for k in ("share", "shape"))
    if len(share) != 2 or share[0] >= share[1] or len(shape) > 8:
        raise WireError(f"registration: expected a share below its number; got {share}, {shape}", "share")
    (classes,) = _integers([config.get("classes")], "classes", 2**31)
    pool, version = (one_line(str(config.get(k, ""))[:LONGEST_LINE], "") for k in ("pool", "version"))
    width = config.get("width", 0.0)
    if not isinstance(width, float) or not 0 <= width <= 1 or (width and len(clients) != 1):
        got = f"{short(width)} of {len(clients)} clients"
        raise WireError(f"registration: expected a width from 0 to 1 of one client, or 0; got {got}", "width")
    model = one_line(str(config.get("model", ""))[:LONGEST_LINE], "")
    if model and len(clients) != 1:
        raise WireError(f"registration: expected a model of one client; got {len(clients)}", "model")
    counts = np.broadcast_to(counts, len(clients))
    parts = {part: digest for part, digest in _pairs(config, "meaning").items() if part in PARTS}
    return Registration(
        clients, counts, pool, (share[0], share[1]), version, tuple(shape), classes,
        code=_pairs(config, "code"), width=width, model=model, frozen=_lines(config, "frozen"),
        meaning=Meaning(parts, _places(config, "inputs"), _places(config, "outputs")),
        names=_names(config.get("names")), lacks=_lines(config, "lacks", MOST_LACKING),
    )  # fmt: skip


def _names(text: object) -> Description | None:
    """Return a description that a node lets out; `Registration.meaning` says whether it is true."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > LONGEST_NAMES:
        raise WireError(f"registration: expected 'names' as at most {LONGEST_NAMES} characters", "names")
    try:
        return Description.from_dict(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError):
        got = short(text)
        raise WireError(
            f"registration: expected 'names' as JSON of a description; got {got}", "names"
        ) from None


def _places(config: ConfigRecord, name: str) -> tuple[int, ...]:
    """Return places among this number of names, each at most once."""
    places = _integers(config.get(name, []), name, MOST_PLACES)
    if len(places) > MOST_PLACES or sorted(places) != list(range(len(places))):
        got = short(places)
        raise WireError(f"registration: expected {name!r} as places, each once; got {got}", name)
    return _shared(tuple(places))


@lru_cache(maxsize=64)
def _shared(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return places, those of many nodes once."""
    return places


def _pairs(config: ConfigRecord, name: str) -> dict[str, str]:
    """Return texts by key, from a list of ``key=text``: hashes of code by package, or digests by part."""
    pairs = [text.partition("=") for text in _texts(config, name)]
    return {one_line(key, ""): one_line(text, "") for key, _, text in pairs}


def _lines(config: ConfigRecord, name: str, most: int = MOST_PACKAGES) -> tuple[str, ...]:
    """Return lines of text, such as hashes."""
    return tuple(one_line(text, "") for text in _texts(config, name, most))


def _texts(config: ConfigRecord, name: str, most: int = MOST_PACKAGES) -> list[str]:
    values = config.get(name, [])
    if not isinstance(values, list) or len(values) > most:
        raise WireError(f"registration: expected {name!r} as a short list; got {short(values)}", name)
    return [str(value)[:LONGEST_LINE] for value in values]


def _clients(value: object) -> Sequence[str]:
    """Return client names, given as a list or as the number of a partition's clients."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST_CLIENTS:
            raise WireError(f"registration: expected 1 to {MOST_CLIENTS} clients; got {value}", "clients")
        return ClientNames(value)
    names = tuple(check_name(c) for c in value) if isinstance(value, list) else ()
    if not isinstance(value, list) or len(set(names)) < len(names):
        raise WireError(f"registration: expected names, each once; got {short(value)}", "clients")
    return names


def _integers(values: object, what: str, most: int) -> list[int]:
    """Return a list of integers from 0 to `most`, or refuse it."""
    if not isinstance(values, list):
        raise WireError(f"registration: expected {what!r} as a list; got {short(values)}", what)
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or not 0 <= v <= most:
            raise WireError(f"registration: expected integers from 0 to {most}; got {short(v)}", what)
    return values
