"""Central evaluation: the global model on the global test set."""

import threading
from collections.abc import Callable

import torch
from flwr.app import ArrayRecord, MetricRecord

from task.datasets import Dataset
from task.numerics.evaluate import measure
from task.spec.entry import Algorithm
from task.spec.record import MODEL_DOWN
from task.tasks.base import Task
from task.tasks.kinds import CLASSIFICATION
from task.wire import messages as wire


def central_evaluation(
    model: torch.nn.Module, dataset: Dataset, device: torch.device, task: Task = CLASSIFICATION
) -> Callable[[int, ArrayRecord], MetricRecord | None] | None:
    """Return Flower's ``evaluate_fn`` for this data set, or None if it has no global test set.

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
        return MetricRecord({**task.measures.record(sums), **found})

    return evaluate_fn


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
