"""The algorithms whose clients train on rows, and those of parties with columns, with a run of each."""

from typing import Any

from task.catalogue.algorithms import ALGORITHMS

HORIZONTAL = {name: entry for name, entry in ALGORITHMS.items() if not (entry.vertical or entry.statistics)}
VERTICAL = {name: entry for name, entry in ALGORITHMS.items() if entry.vertical}


def of_columns(name: str, **more: Any) -> dict[str, Any]:
    """Return the keys of a run of three parties, names with underscores; nothing in it is encrypted."""
    own = {"vertical.cut": 4} if name == "splitnn" else {"vertical.key-bits": 0}
    own |= {"batch-size": 32} if ALGORITHMS[name].learns else {}
    base = {
        "algorithm": name, "dataset": "breast-cancer", "num-clients": 3, "max-examples": 60, "device": "cpu",
        "local-test-fraction": 0.25, "num-server-rounds": 2, "fraction-evaluate": 1.0,
    }  # fmt: skip
    return base | own | {k.replace("__", ".").replace("_", "-"): v for k, v in more.items()}
