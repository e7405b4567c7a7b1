"""Suggestions for misspelt run-config keys, and for values that are another key's."""

import difflib
from collections.abc import Collection

# Names of the same settings in other frameworks and in papers.
ALIASES = {
    "algo": "algorithm",
    "batch": "batch-size",
    "batchsize": "batch-size",
    "bs": "batch-size",
    "b": "batch-size",
    "c": "fraction-train",
    "clients": "num-clients",
    "cohort": "fraction-train",
    "data": "dataset",
    "decay": "lr-decay",
    "e": "local-epochs",
    "epochs": "local-epochs",
    "eta": "learning-rate",
    "fraction": "fraction-train",
    "fraction-fit": "fraction-train",
    "gpu": "device",
    "k": "num-clients",
    "lr": "learning-rate",
    "method": "algorithm",
    "name": "run-name",
    "net": "model",
    "network": "model",
    "num-epochs": "local-epochs",
    "num-rounds": "num-server-rounds",
    "output": "runs-dir",
    "random-seed": "seed",
    "rounds": "num-server-rounds",
    "split": "partition",
    "steps": "local-steps",
    "strategy": "algorithm",
    "target": "target-accuracy",
    "test-fraction": "local-test-fraction",
    "timeout": "round-timeout",
    "wd": "weight-decay",
}

# What users look for among a key's values, by key and value, and the keys that do it.
ELSEWHERE = {
    "algorithm": {
        "dp-sgd": 'dp.unit="example" dp.noise=1.0',
        "dpsgd": 'dp.unit="example" dp.noise=1.0',
        "dp-fedavg": 'dp.unit="client" dp.noise=1.0',
    }
}

MOST = 2  # keys that are suggested


def nearest(key: str, known: Collection[str], algorithm: str = "") -> list[str]:
    """Return the keys that the user most probably meant, the likeliest first.

    A key of the run's `algorithm` is likelier than another algorithm's.
    """
    word = key.lower().replace("_", "-")
    last = word.rpartition(".")[2]
    found = [word, ALIASES.get(word, ""), f"{algorithm}.{last}", ALIASES.get(last, ""), last]
    found += difflib.get_close_matches(word, known, MOST, 0.6)
    found += [k for k in known if k.rpartition(".")[2] == last]
    likely = [k for k in dict.fromkeys(found) if k in known]
    return likely[:MOST] or difflib.get_close_matches(word, known, MOST, 0.4)


def unknown_key(key: str, known: Collection[str], algorithm: str = "") -> str:
    """Return the error text for an unknown key, with the nearest ones."""
    near = nearest(key, known, algorithm)
    meant = " or ".join(f'"{k}"' for k in near)
    hint = f"Did you mean {meant}? " if near else ""
    return f'run-config key "{key}" does not exist. {hint}`bouquet run --help-keys` lists all keys'


def elsewhere(key: str, value: object) -> str:
    """Return the error text for a value that other keys stand for; "" = no such value."""
    keys = ELSEWHERE.get(key, {}).get(str(value).lower().replace("_", "-"), "")
    if not keys:
        return ""
    return f'run-config key "{key}": {value!r} is none; expected {keys} with one of `bouquet algorithms`'
