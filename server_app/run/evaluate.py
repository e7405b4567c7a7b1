"""Central evaluation: the global model on the global test set."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord

from strategies.engine.rule import EVALUATE
from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_DOWN
from task.config.attack_section import ATTACK_SUCCESS
from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.drift import share_at
from task.datasets.trigger import stamped
from task.fairness.tested import rates_on
from task.models.family import Levels, Widths
from task.models.kinds import SideBySide
from task.models.units import smaller
from task.numerics import pages
from task.numerics.arrays import Arrays
from task.numerics.metrics import weighted_mean
from task.numerics.tensors import compute_with, load_into
from task.tasks.base import Task
from task.tasks.evaluate import measure
from task.tasks.kinds import CLASSIFICATION
from task.wire import messages as wire


def central_evaluation(
    model: torch.nn.Module,
    dataset: Dataset,
    device: torch.device,
    task: Task = CLASSIFICATION,
    target: int | None = None,
    parts: int = 1,
) -> Callable[[int, ArrayRecord], MetricRecord | None] | None:
    """Return Flower's ``evaluate_fn`` for this data set, or None if it has no global test set.

    With the `target` class of a simulated backdoor it measures ``attack-success`` too; `parts` are those of
    its trigger.

    The test set is decoded into memory once; one that drifts, again for each new concept. On a CPU this
    process's torch is set to one thread: the batches are shared among Python threads, one per core.
    """
    rows = dataset.test_rows
    if rows.stop <= rows.start:
        return None
    pages.trim(always=True)  # the trials of the model are over
    threads = 1
    if device.type != "cpu":
        model = deepcopy(model).to(device)  # the caller's stays where it is
    else:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
    held: dict[float, tuple[torch.Tensor, torch.Tensor]] = {}  # by the extent of its drift

    def data(server_round: int) -> tuple[torch.Tensor, torch.Tensor]:
        state = share_at(dataset.drift.config, server_round) if dataset.drift else 0.0
        if state not in held:
            held.clear()
            now = dataset.at(server_round)
            held[state] = now.inputs(rows).to(device), task.targets(now, rows).to(device)
        return held[state]

    data(0)
    one_at_a_time = threading.Lock()  # a round may measure models while the last one is being evaluated

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        received = wire.views(arrays)
        with one_at_a_time:
            compute_with(model, received)
            x, y = data(server_round)
            found, sums = measure(model, x, y, threads=threads, task=task)
            if (
                target is not None
                and (share := attack_success(model, x, y, target, task, threads, parts)) is not None
            ):
                found[ATTACK_SUCCESS] = share
        pages.trim(always=sum(a.nbytes for a in received.values()) >= pages.LEAST)
        return MetricRecord({**task.measures.record(sums), **found})

    return evaluate_fn


def attack_success(
    model: torch.nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    target: int,
    task: Task,
    threads: int = 1,
    parts: int = 1,
) -> float | None:
    """Return the share of the examples of other classes that a backdoor's trigger brings to its class.

    None if there are no such examples.
    """
    others = y != target
    if not bool(others.any()):
        return None
    wanted = torch.full_like(y[others], target)
    return measure(model, stamped(x[others], parts), wanted, threads=threads, task=task)[0]["accuracy"]


def global_model(
    entry: Algorithm,
    model: torch.nn.Module,
    dataset: Dataset,
    task: Task,
    arrays: ArrayRecord,
    server_round: int = 0,
) -> dict[str, float] | None:
    """Evaluate the final global model of a run with personal models on the global test set.

    The set is that of the last round, `server_round`. None if there is no such set, or the server has no
    whole model that clients receive.
    """
    if entry.private or MODEL_DOWN not in entry.down:
        return None
    evaluate_fn = central_evaluation(model, dataset, torch.device("cpu"), task)
    found = evaluate_fn(server_round, arrays) if evaluate_fn else None
    return None if found is None else {k: float(v) for k, v in found.items() if isinstance(v, int | float)}


def of_kinds(
    model: SideBySide, dataset: Dataset | None, task: Task, arrays: Arrays
) -> dict[str, dict[str, float]]:
    """Evaluate each kind of the server's models on the global test set; {} without one."""
    if dataset is None or dataset.test_rows.stop <= dataset.test_rows.start:
        return {}
    load_into(model, arrays)
    rows = dataset.test_rows
    x, y = dataset.inputs(rows), task.targets(dataset, rows)
    return {kind: measure(one, x, y, task=task)[0] for kind, one in model.kinds().items()}


def by_people(
    config: Config, model: torch.nn.Module, dataset: Dataset | None, task: Task, arrays: Arrays
) -> list[dict[str, Any]]:
    """Return the rates of groups of people on the global test set, see `task.fairness.rates`.

    [] if the run compares none, or there is no such set, or no whole model of the server's.
    """
    rows = dataset.test_rows if dataset else slice(0, 0)
    whole = not (config.entry.personal or config.parted)
    if dataset is None or not (config.groups and whole and rows.stop > rows.start):
        return []
    compute_with(model, arrays)

    def test(x: torch.Tensor, y: torch.Tensor, counting: Task) -> tuple[dict[str, float], Arrays]:
        return measure(model, x, y, task=counting)

    device = next(model.parameters()).device
    return rates_on(config.groups, dataset, np.arange(rows.start, rows.stop), test, task, device)


def by_model(
    levels: Levels[str],
    sizes: Mapping[str, int],
    lines: Iterable[Mapping[str, Any]],
    clients: Iterable[str],
    found: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> list[dict[str, str | float | int | None]]:
    """Return the results of each kind of model.

    `sizes` are parameters by model, `lines` those of ``clients.jsonl``. Each row has "model", "parameters",
    "clients" (of those given), "accuracy" and "loss": those `found`, where the server has tested the models,
    else those of its clients in the last evaluation at clients, means over their test examples.
    """
    counts = Counter(map(levels.of, clients))
    tested = [line for line in lines if line["phase"] == EVALUATE]
    last = [line for line in tested if line["round"] == tested[-1]["round"]]
    rows: list[dict[str, str | float | int | None]] = []
    for name in levels.values:
        row: dict[str, str | float | int | None] = {"model": name, "parameters": sizes[name]}
        row["clients"] = counts[name]
        mine = [line for line in last if levels.of(line["name"]) == name]
        for metric in ("accuracy", "loss"):
            sent = [line for line in mine if metric in line["metrics"]]
            values, weights = [x["metrics"][metric] for x in sent], [x["examples"] for x in sent]
            row[metric] = weighted_mean(values, weights) if sent else None
            row[metric] = found.get(name, row).get(metric)
        rows.append(row)
    return rows


def by_level(
    family: Widths,
    model: torch.nn.Module,
    dataset: Dataset | None,
    task: Task,
    arrays: Arrays,
    server_round: int,
    clients: Iterable[str],
) -> list[dict[str, float | int | None]]:
    """Evaluate, for each width of the clients' models, that part of the model on the global test set.

    The part is the one that a client has in the next round. Each row has "width", "parameters", "clients" (of
    those given), "accuracy" and "loss", which are None without such a set or such a measure.
    """
    counts = Counter(map(family.levels.of, clients))
    parameters = {name for name, _ in model.named_parameters()}
    rows = dataset.test_rows if dataset else slice(0, 0)
    levels: list[dict[str, float | int | None]] = []
    load_into(model, arrays)
    data = (dataset.inputs(rows), task.targets(dataset, rows)) if dataset and rows.stop > rows.start else None
    for width in family.levels.values:
        small = smaller(model, family.part(width, server_round + 1))
        found = measure(small, *data, task=task)[0] if data else {}
        size = sum(a.numel() for name, a in small.state_dict().items() if name in parameters)
        row = {"width": width, "parameters": size, "clients": counts[width]}
        levels.append({**row, "accuracy": found.get("accuracy"), "loss": found.get("loss")})
    return levels
