"""Which program trains a model, and how many clients it takes at once.

On one CPU thread a perceptron's client gets the same bytes whatever K is and whichever clients are in the
stack; a test holds it to that. It needs hidden layers of a multiple of `ALIGNED` units: otherwise each client
but the first is at an address for which MKL's kernels round differently, so these train one by one.
"""

from torch import nn

from client_app.training.precision import in_precision
from client_app.training.programs import Program, Single
from client_app.training.recurrent import Recurrent
from client_app.training.stacked import Layers, Perceptron
from task.config.sections import TrainConfig
from task.references import is_reference
from task.tasks.base import Task
from task.tasks.kinds import CLASSIFICATION

STACKED = (Perceptron, Layers, Recurrent)
# The best number of clients on one CPU thread: a perceptron's step gains until its weights leave the cache;
# convolutions of several clients take longer there than one client after another (``make bench``, "stack").
STACK_CPU: dict[type[Program], int] = {Perceptron: 8}
STACK_GPU = 128
ALIGNED = 4  # numbers of 4 bytes in 16


def program_of(model: nn.Module, stack: int, task: Task = CLASSIFICATION) -> tuple[Program, int]:
    """Return the program for a model and the most clients that it should take at once.

    A `Single` program trains this very instance. `stack` is the run-config key: 0 = automatic, 1 = one
    client after another through autograd. Other losses than cross-entropy are taken so, too: their last bits
    would depend on how many clients are in the stack, and so on the nodes.
    """
    kind = next((p for p in STACKED if p.takes(model)), None)
    if kind is None or not task.plain:
        return Single(model, task), 1
    on_gpu = next(model.parameters()).device.type == "cuda"
    size = stack or (STACK_GPU if on_gpu else STACK_CPU.get(kind, 1))
    hidden = [m.out_features for m in model.children() if isinstance(m, nn.Linear)][:-1]
    if kind is Perceptron and size > 1 and not on_gpu and any(units % ALIGNED for units in hidden):
        return kind(model, task), 1
    return (kind(model, task), size) if size > 1 else (Single(model, task), 1)


def program_for(
    model: nn.Module, config: TrainConfig, task: Task, *, batched: bool = True
) -> tuple[Program, int]:
    """Return the program that a run's keys ask for, and the most clients that it should take at once.

    Args:
        model: What it trains.
        config: The keys: of a user's own optimizer the clients train one by one.
        task: The loss.
        batched: Whether clients may train together.
    """
    together = batched and not is_reference(config.optimizer)
    program, size = program_of(model, config.stack if together else 1, task)
    return in_precision(program, config.precision), size
