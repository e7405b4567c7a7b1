"""What a model is trained for: its outputs, a loss for each example, and how its predictions are judged.

The training loop and the rules know no task. This module has the names and needs no torch; `task.tasks.kinds`
computes. The form of targets:

==============  ============================  ==================================  =======================
task            targets                       outputs of the model                own loss
==============  ============================  ==================================  =======================
classification  class numbers int64 [N]       logits [B, C]                       cross-entropy
language        next characters int64 [N, T]  logits [B, C, T]                    cross-entropy
regression      float32 [N] or [N, d]         [B] or [B, 1]; [B, d]               mse
multi-label     0 or 1, float32 [N, C]        logits [B, C]                       bce
reconstruction  the inputs, float32           like the inputs, or flat [B, p]; a  mse; elbo
                                              `task.models.elbo.Posterior`
==============  ============================  ==================================  =======================

A target of -100, or NaN among floats, does not count: it fills up a batch or a text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from task.config.attack_section import BACKDOORS
from task.config.knobs import Config
from task.errors import ConfigError, choose_from
from task.models import MODELS
from task.population import listed
from task.references import check_reference, is_reference, load_reference
from task.tasks.specs import TASKS, TaskSpec

if TYPE_CHECKING:  # torch costs seconds
    from task.tasks.base import Task

__all__ = ["TASKS", "TaskSpec", "check_goal", "check_goal_names", "metrics_of", "task_of", "with_task"]


def task_of(config: Config, found: str, classes: int) -> Task:
    """Return the run's task with its loss and its metrics.

    Args:
        config: The run.
        found: The task that the data are of by themselves (`task.datasets.base.Dataset.task`).
        classes: Outputs of the model.

    Raises:
        ConfigError: The task does not fit the data or the algorithm, or loss or metrics do not fit the task.
    """
    from task.tasks.kinds import make_task
    from task.tasks.metrics import Measures

    name = config.data.task if config.data.task != "auto" else found
    _check_data(config, name, found)
    check_goal(config, name)
    attack = config.attack
    if attack.kind in BACKDOORS and attack.target >= classes:
        raise ConfigError(
            f'run-config key "attack.target": expected a class of the data, 0 to {classes - 1}; got '
            f"{attack.target}"
        )
    measures, losses = Measures(name, metrics_of(config, name), classes), TASKS[name].losses
    loss = config.loss or _of_model(config, name)[0] or losses[0]
    if is_reference(loss):
        return make_task(name, loss, load_reference("loss", loss), measures)
    if loss not in losses:
        raise ConfigError(
            choose_from(f'run-config key "loss": of task = "{name}", or package.module:name', loss, losses)
        )
    return make_task(name, loss, measures=measures)


def metrics_of(config: Config, task: str) -> tuple[str, ...]:
    """Return the names of a run's further metrics: those of the key, else the task's own."""
    usual = _of_model(config, task)[1] or (TASKS[task].metrics if task in TASKS else ())
    return tuple(listed(config.metrics)) or usual


def _of_model(config: Config, task: str) -> tuple[str, tuple[str, ...]]:
    """Return loss and metrics that come with the run's model, rather than with its task; "" and () = none."""
    spec = MODELS.get(config.model)
    return (spec.loss, spec.metrics) if spec and task == "reconstruction" else ("", ())


def with_task(config: Config, found: str) -> Config:
    """Return a run config whose task is no longer "auto"; the run's name stays."""
    if config.data.task != "auto":
        return config
    output = replace(config.output, run_name=config.run_name)
    return replace(config, data=replace(config.data, task=found), output=output)


def check_goal_names(config: Config) -> None:
    """Refuse a loss that is neither one of ours nor a reference, and metrics with a wrong reference.

    Raises:
        ConfigError: Naming the losses there are, or the form of a reference.
    """
    for name in filter(is_reference, listed(config.metrics)):
        check_reference("metrics", name)
    loss = config.loss
    known = {name for spec in TASKS.values() for name in spec.losses}
    if loss and not is_reference(loss) and loss not in known:
        raise ConfigError(choose_from('run-config key "loss": or package.module:name', loss, known))


def _check_data(config: Config, name: str, found: str) -> None:
    """Refuse a task that the targets of the data are not made for."""
    fits = {found} if found == "language" else {found, "reconstruction"}
    if found == "multi-label":
        fits.add("regression")  # a matrix of zeros and ones may be numbers
    if name not in fits:
        raise ConfigError(
            f'run-config key "task": the targets of data set "{config.data.dataset}" are those of {found}; '
            f'expected {" or ".join(sorted(fits))}, or "auto"; got "{name}"'
        )


def check_goal(config: Config, name: str) -> None:
    """Refuse what has no meaning under a task.

    Raises:
        ConfigError: Naming the key, the algorithm or attack, and the tasks that go.
    """
    spec, model = TASKS[name], MODELS.get(config.model)
    if model and model.loss and name != "reconstruction":
        raise ConfigError(
            f'run-config key "task": model = "{config.model}" learns to draw its inputs; expected '
            f'"reconstruction"; got "{name}"'
        )
    if not spec.classes and (why := classes_only(config)):
        fits = " or ".join(n for n, s in TASKS.items() if s.classes)
        raise ConfigError(f'run-config key "task": {why}; expected {fits}; got "{name}"')
    if name == "language" and config.attack.kind in BACKDOORS:
        raise ConfigError(
            f'run-config key "attack.kind": "{config.attack.kind}" puts a patch into images or rows of '
            'numbers; expected task = "classification"; got "language"'
        )
    plain = config.loss in ("", "cross-entropy")
    if config.entry.owns("fedrod.gamma") and config.fedrod.gamma and not plain:
        raise ConfigError(
            'run-config key "loss": FedRoD balances the classes within a softmax, where one without examples '
            f'has no probability; expected "cross-entropy", or fedrod.gamma=0; got "{config.loss}"'
        )
    if config.server.target_accuracy and not spec.accuracy:
        raise ConfigError(
            f'run-config key "target-accuracy": no prediction of task = "{name}" is right or wrong, so there '
            f"is no accuracy; expected the key left out; got {config.server.target_accuracy:g}"
        )


def classes_only(config: Config) -> str:
    """Return why a run needs targets that are class numbers; "" = it does not."""
    if config.attack.kind in ("label-flip", *BACKDOORS):
        return f'attack.kind = "{config.attack.kind}" trains on other classes'
    if (entry := config.entry).distils:
        return f"{entry.title} distils probabilities of classes"
    return "" if is_reference(entry.solver) else entry.classes  # what a user's own needs is not known
