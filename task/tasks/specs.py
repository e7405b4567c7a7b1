"""The list of tasks, without torch, for code that needs only the names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskSpec:
    """One entry of `TASKS`."""

    description: str  # one line for listings
    losses: tuple[str, ...]  # by name, the task's own first
    classes: bool = False  # whether targets are numbers of classes
    accuracy: bool = False  # whether a prediction is right or wrong
    metrics: tuple[str, ...] = ()  # measured unless the run names others


_CLASSES = ("cross-entropy", "label-smoothing", "focal")
TASKS: dict[str, TaskSpec] = {
    "classification": TaskSpec("one class of each example", _CLASSES, classes=True, accuracy=True),
    "language": TaskSpec(
        "the next character or token of each one in a text", _CLASSES, classes=True, accuracy=True
    ),
    "multi-label": TaskSpec("each label of an example, 0 or 1", ("bce", "focal"), accuracy=True),
    "reconstruction": TaskSpec("the example itself", ("mse", "bce", "mae", "huber", "elbo")),
    "regression": TaskSpec("numbers", ("mse", "mae", "huber"), metrics=("mae", "r2")),
    "segmentation": TaskSpec(
        "the class of each pixel or voxel",
        ("cross-entropy", "dice", "focal"),
        classes=True,
        metrics=("miou", "dice", "pixel-accuracy"),
    ),
    "survival": TaskSpec(
        "the time until an event, or until someone was last seen without it", ("weibull",), accuracy=True
    ),
    "tagging": TaskSpec("the class of each token in a text", _CLASSES, classes=True, accuracy=True),
}
