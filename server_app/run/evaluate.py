"""Central evaluation: the global model on the global test set."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from flwr.app import ArrayRecord, MetricRecord

from task.config.attack_section import ATTACK_SUCCESS
from task.datasets import Dataset
from task.datasets.trigger import stamped
from task.models.family import Widths
from task.models.units import smaller
from task.numerics.arrays import Arrays
from task.numerics.evaluate import measure
from task.spec.entry import Algorithm
from task.spec.record import MODEL_DOWN
from task.tasks.base import Task
from task.tasks.kinds import CLASSIFICATION
from task.wire import messages as wire


def central_evaluation(
    model: torch.nn.Module,
    dataset: Dataset,
    device: torch.device,
    task: Task = CLASSIFICATION,
    target: int | None = None,
) -> Callable[[int, ArrayRecord], MetricRecord | None] | None:
    """Return Flower's ``evaluate_fn`` for this data set, or None if it has no global test set.

    With the `target` class of a simulated backdoor it measures ``attack-success`` too.

    The test set is decoded into memory once. On a CPU this process's torch is set to one thread: the
    batches are shared among Python threads, one per core.
    """
    rows = dataset.test_rows
    if rows.stop <= rows.start:
        return None
    model = model.to(device)
    threads = 1
    if device.type == "cpu":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
    x, y = dataset.inputs(rows).to(device), task.targets(dataset, rows).to(device)

    one_at_a_time = threading.Lock()  # a round may measure models while the last one is being evaluated

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        received = wire.read_arrays(arrays)
        with one_at_a_time:
            with torch.no_grad():
                for name, tensor in model.state_dict().items():
                    tensor.copy_(torch.from_numpy(received[name]))
            found, sums = measure(model, x, y, threads=threads, task=task)
            if (
                target is not None
                and (share := attack_success(model, x, y, target, task, threads)) is not None
            ):
                found[ATTACK_SUCCESS] = share
        return MetricRecord({**task.measures.record(sums), **found})

    return evaluate_fn


def attack_success(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, target: int, task: Task, threads: int = 1
) -> float | None:
    """Return the share of the examples of other classes that a backdoor's trigger brings to its class.

    None if there are no such examples.
    """
    others = y != target
    if not bool(others.any()):
        return None
    wanted = torch.full_like(y[others], target)
    return measure(model, stamped(x[others]), wanted, threads=threads, task=task)[0]["accuracy"]


def global_model(
    entry: Algorithm, model: torch.nn.Module, dataset: Dataset, task: Task, arrays: ArrayRecord
) -> dict[str, float] | None:
    """Return how the final global model of a run of clients' own models does on the global test set.

    None if there is no such set, or the server has no whole model that clients receive.
    """
    if entry.private or MODEL_DOWN not in entry.down:
        return None
    evaluate_fn = central_evaluation(model, dataset, torch.device("cpu"), task)
    found = evaluate_fn(0, arrays) if evaluate_fn else None
    return None if found is None else {k: float(v) for k, v in found.items() if isinstance(v, int | float)}


def by_level(
    family: Widths,
    model: torch.nn.Module,
    dataset: Dataset | None,
    task: Task,
    arrays: Arrays,
    server_round: int,
    clients: Iterable[str],
) -> list[dict[str, float | int | None]]:
    """Return, for each width of the clients' models, how the part of it does on the global test set.

    The part is the one that a client has in the next round. Each row has "width", "parameters", "clients" (of
    those given), "accuracy" and "loss", which are None without such a set or such a measure.
    """
    counts = Counter(map(family.levels.of, clients))
    parameters = {name for name, _ in model.named_parameters()}
    rows = dataset.test_rows if dataset else slice(0, 0)
    levels: list[dict[str, float | int | None]] = []
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(arrays[name]))
    data = (dataset.inputs(rows), task.targets(dataset, rows)) if dataset and rows.stop > rows.start else None
    for width in family.levels.widths:
        small = smaller(model, family.part(width, server_round + 1))
        found = measure(small, *data, task=task)[0] if data else {}
        size = sum(a.numel() for name, a in small.state_dict().items() if name in parameters)
        row = {"width": width, "parameters": size, "clients": counts[width]}
        levels.append({**row, "accuracy": found.get("accuracy"), "loss": found.get("loss")})
    return levels
