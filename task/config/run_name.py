"""The default name of a run (algorithm, data set, changed keys, seed) and digests of its keys."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from task.config.sections import Value

FLAT = frozenset({"data", "train", "server", "output"})  # sections whose keys have no prefix
# Keys that change where and how fast a run is computed, but not its result; each with the reason.
MACHINE: Mapping[str, str] = {
    "run-name": "names folders",
    "runs-dir": "a folder of the server's",
    "resume": "whether the server continues from its checkpoint",
    "progress": "what a terminal shows",
    "tracker": "where the server's results are sent, too",
    "checkpoint-every": "how often the server saves",
    "cache-dir": "a folder of decoded data",
    "data-dir": "a folder of raw data",
    "state-dir": "the folder of client state",
    "min-nodes": "the number of nodes that the server waits for",
    "keep-state": "whether client state is deleted after the run",
    "round-timeout": "how long the server waits for a round",
    "roll-call-timeout": "how long the server waits for nodes",
}
CHANGE_NO_RESULT = frozenset(MACHINE)
# Keys that may also change when a run is resumed: its name stays.
LENGTHEN = frozenset(
    {"num-server-rounds", "target-accuracy", "plateau-rounds", "plateau-delta", "node-names"}
    | {"dp.max-epsilon"}
)

# Keys whose values a node takes from its own settings or data; each with the reason.
OF_A_NODE: Mapping[str, str] = {
    "data-path": "the node's own data",
    "initial-model": "a file of the server, which sends its model",
    "task": "follows from a node's data if the run leaves it open",
}

LONGEST = 80  # characters
_NAMED = frozenset({"algorithm", "dataset", "seed"})  # always part of the name
_BARE = frozenset({"model", "partition", "selection"})  # keys whose values are clear without the key


def key_of(section: str, name: str) -> str:
    """Return the run-config key of a field of a section; "" is the run itself."""
    kebab = name.rstrip("_").replace("_", "-")  # lambda is a word of Python
    return f"{section.replace('_', '-')}.{kebab}" if section and section not in FLAT else kebab


def changed(config: Any) -> dict[str, Value]:
    """Return the keys of a `Config` whose values are not the defaults, in the order of declaration.

    A value that follows from the algorithm is no change: a personalised run has ``fraction-evaluate`` = 1.
    """
    found: dict[str, Value] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if "doc" in field.metadata:
            found |= {key_of("", field.name): value} if value != field.default else {}
            continue
        for own in dataclasses.fields(value):
            if getattr(value, own.name) != own.default:
                found[key_of(field.name, own.name)] = getattr(value, own.name)
    if config.server.fraction_evaluate == config.measured_share:
        found.pop("fraction-evaluate", None)
    return found


def terms(keys: Mapping[str, Value]) -> str:
    """Return the SHA-256 of the keys that the server and all nodes of a run must share, in all attempts."""
    return digest_but(keys, CHANGE_NO_RESULT | LENGTHEN | OF_A_NODE.keys())


def session_terms(keys: Mapping[str, Value]) -> str:
    """Return the SHA-256 of the keys that the server and all nodes of a run must share in one attempt."""
    return digest_but(keys, MACHINE.keys() | OF_A_NODE.keys())


def all_terms(keys: Mapping[str, Value]) -> str:
    """Return the SHA-256 of all keys of a run as a node reads them, except folders and timeouts."""
    return digest_but(keys, MACHINE.keys() | OF_A_NODE.keys() - {"task"})


def digest_but(keys: Mapping[str, Value], left: Collection[str]) -> str:
    """Return the SHA-256 of a run's keys, without those in `left`."""
    taken = {key: value for key, value in keys.items() if key not in left}
    return hashlib.sha256(json.dumps(taken, sort_keys=True).encode()).hexdigest()


def default_name(config: Any) -> str:
    """Return ``algorithm-dataset-<changes>-seed``, a folder name of at most `LONGEST` characters.

    If that would be too long, it has only the first changes, and a fingerprint of all.
    """
    left = CHANGE_NO_RESULT | LENGTHEN | _NAMED
    keys = {key: value for key, value in changed(config).items() if key not in left}
    return _joined(_safe(config.algorithm), _safe(config.data.dataset), keys, str(config.seed))


def _joined(algorithm: str, dataset: str, keys: Mapping[str, Value], seed: str) -> str:
    head, parts = f"{algorithm[:24]}-{dataset[:24]}", [_part(key, value) for key, value in keys.items()]
    name = "-".join([head, *parts, seed])
    if len(name) <= LONGEST:
        return name
    print_of = hashlib.sha256(json.dumps(dict(keys), sort_keys=True).encode()).hexdigest()[:6]
    while len("-".join([head, *parts, print_of, seed])) > LONGEST:
        parts.pop()
    return "-".join([head, *parts, print_of, seed])


def _part(key: str, value: Value) -> str:
    label = key.rpartition(".")[2].removeprefix("num-")
    if isinstance(value, bool):
        return label if value else f"no-{label}"
    if isinstance(value, str):
        last = value.rstrip("/").rpartition("/")[2]  # of a path
        return _safe(last) if key in _BARE else f"{label}_{_safe(last)}"
    return f"{label}_{value:g}"


def _safe(text: str) -> str:
    """Return a text without characters that are unsafe in folder names."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "x"
