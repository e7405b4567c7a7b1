"""Group runs into configurations with several seeds, and label the configurations by their differences."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from server_app.results.clients import ClientHistory, gather
from server_app.results.folder import RunFolder, machine_words, no_run, place_of
from server_app.results.lines import Row, read_object
from task.config.knobs import CHANGE_NO_RESULT
from task.config.read import defaults
from task.config.sections import Value
from task.errors import ConfigError
from task.resolve.effective import OWNERS, unmet

SWEEP = "sweep.json"  # the queue of a sweep, in its folder
MOST_PARTS = 6  # of a label; where more keys differ, a run's name says more
AT = "data"  # in place of run-config keys: where the data are
BARE = ("algorithm", "dataset", "model", "partition", "selection", AT)  # keys whose value says enough
# Keys that say how a simulation splits its data among clients.
SPLIT = {"partition", "num-clients", "data-path", *chain.from_iterable(OWNERS["partition"].values())}

SEEDS = ("seed", "model-seed", "data-seed", "train-seed")
# Keys in which runs of one configuration may differ, besides these.
FREE = CHANGE_NO_RESULT | {
    *("min-replies", "device", "stack", "threads"),
    *(
        "fraction-evaluate",
        "evaluate-every",
        "client-evaluate-every",
    ),  # what is measured, not what is trained
}


@dataclass(frozen=True)
class Run:
    """One run in a comparison."""

    path: Path
    rounds: list[Row]
    clients: ClientHistory
    config: Row  # every run-config key with its value
    left_out: Sequence[str] = ()  # nodes that were online in the last round and took no part
    at_nodes: bool = False  # whether only the nodes have the data
    machine: str = ""  # what computed it, in words; "" = its folder does not say

    @property
    def stem(self) -> str:
        """The folder's name without a last ``-number``, which often is the seed."""
        return re.sub(r"-\d+$", "", self.path.name)

    @property
    def seed(self) -> tuple[object, ...]:
        """All seeds of the run: runs of two configurations with the same ones are a pair."""
        return tuple(value for key, value in sorted(self.config.items()) if _is_seed(key))


Groups = Mapping[str, Sequence[Run]]


def runs_at(paths: Iterable[Path]) -> list[Path]:
    """Return the result folders; a sweep's folder stands for those of its runs that have begun.

    Raises:
        ConfigError: A sweep's folder holds no run with rounds.
    """
    found = list[Path]()
    for path in map(place_of, paths):
        problems = list[str]()
        queue = read_object(path / SWEEP, problems)
        if problems:
            raise ConfigError(f"{path}: expected a sweep's folder; got {problems[0]}")
        if queue is None:
            found.append(path)
            continue
        inside = [path / point["name"] for point in queue["points"]]
        begun = [one for one in inside if RunFolder(one).rounds(unfinished=True)]
        if not begun:
            raise ConfigError(f"{path}: expected a sweep with a run that has rounds; got none")
        found += begun
    return found


def groups(
    paths: Sequence[Path], *, names: bool = False, last_round: int | None = None
) -> dict[str, list[Run]]:
    """Return the runs by configuration: those of a group differ in their seeds, if at all.

    A group is labelled by the keys in which the groups differ. Runs of one configuration and one seed are no
    seeds of one group: names that differ in a last ``-number`` or not at all keep together, others do not.

    Args:
        paths: Result folders, or folders of sweeps.
        names: Group and label by the runs' names instead.
        last_round: Leave out all later rounds; None = none.

    Raises:
        ConfigError: A path is no result folder, or holds no rounds.
    """
    runs = [_read(path, last_round) for path in runs_at(paths)]
    by_name = [run.stem for run in runs]
    if names:
        return _gathered(by_name, runs)
    configs = [configuration(run.config, at_nodes=run.at_nodes) for run in runs]
    alike = [tuple(sorted((key, str(value)) for key, value in config.items())) for config in configs]
    twice = {a for (a, _), n in Counter(zip(alike, (run.seed for run in runs), strict=True)).items() if n > 1}
    labels = _labels(configs)
    if len(set(alike)) == 1:  # nothing differs
        same = len(set(by_name)) == 1 or alike[0] in twice
        labels = by_name if same else [str(config.get("algorithm", "runs")) for config in configs]
    else:
        split = [
            a in twice and len({n for n, b in zip(by_name, alike, strict=True) if a == b}) > 1 for a in alike
        ]
        labels = [
            f"{label} ({stem})" if apart and label else label or stem
            for label, stem, apart in zip(labels, by_name, split, strict=True)
        ]
        # Too long: the name of the first run says more.
        first = {label: run.path.name for label, run in reversed([*zip(labels, runs, strict=True)])}
        labels = [label if label.count(", ") < MOST_PARTS else first[label] for label in labels]
    return _gathered(labels, runs)


def _gathered(labels: Sequence[str], runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for label, run in zip(labels, runs, strict=True):
        found.setdefault(label, []).append(run)
    return found


def _read(path: Path, last_round: int | None) -> Run:
    folder = RunFolder(path)
    config = folder.config()
    rounds = folder.rounds(unfinished=True) if config else []
    clients = folder.clients(unfinished=True) if rounds else []
    if last_round is not None:
        rounds = [row for row in rounds if row["round"] <= last_round]
        clients = [row for row in clients if row["round"] <= last_round]
    if not rounds:
        raise no_run("compare: expected a result folder with rounds", path)
    left_out = [row["name"] or row["node"] for row in folder.left_out()]
    at_nodes = (config.get("data") or {}).get("at") == "nodes"
    keys, machine = config.get("run") or {}, machine_words(config)
    return Run(path, rounds, gather(clients), keys, left_out, at_nodes, machine)


def configuration(config: Mapping[str, Value], *, at_nodes: bool = False) -> dict[str, Value]:
    """Return what a run computes, whatever its seed: the keys that it reads, with defaults filled in.

    Data that lie `at_nodes` are split by nobody: that they do takes the place of the keys of a split.
    """
    full = {**defaults(), **config}
    found = {k: v for k, v in full.items() if k not in FREE and not _is_seed(k) and unmet(k, full) is None}
    if not at_nodes or full["partition"] == "columns":
        return found
    return {**{key: value for key, value in found.items() if key not in SPLIT}, AT: "the nodes' own data"}


def _is_seed(key: str) -> bool:
    return key in SEEDS


def _labels(configs: Sequence[Mapping[str, Value]]) -> list[str]:
    """Return for each configuration the keys that it reads and in which not all are alike, with their values.

    A key that only some read, all with its default, is left out.
    """
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: {str(config[key]) for config in configs if key in config} for key in keys}
    known = {key: str(value) for key, value in defaults().items()}
    everywhere = {key for key in keys if all(key in config for config in configs)}
    differ = [k for k in keys if len(values[k] if k in everywhere else values[k] | {known.get(k)}) > 1]
    return [", ".join(said(key, config[key]) for key in differ if key in config) for config in configs]


def said(key: str, value: Value) -> str:
    """Return a key and its value for people: "learning-rate=0.1", or "fedprox" of an algorithm."""
    if isinstance(value, bool):
        text = str(value).lower()
    else:
        text = value if isinstance(value, str) else f"{value:.6g}"
    return text if key in BARE else f"{key}={text}"
