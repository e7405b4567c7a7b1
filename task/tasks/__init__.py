"""Tasks: a model's outputs, a loss for each example, and metrics of its predictions.

The training loop and the rules know no task. This module has the names and needs no torch; `task.tasks.kinds`
computes. The form of targets:

==============  ============================  ==================================  =======================
task            targets                       outputs of the model                own loss
==============  ============================  ==================================  =======================
classification  class numbers int64 [N]       logits [B, C]                       cross-entropy
language        next characters or tokens     logits [B, C, T]                    cross-entropy
                int64 [N, T]
tagging         classes int64 [N, T]          logits [B, C, T]                    cross-entropy
segmentation    classes int64 [N, H, W]       logits [B, C, H, W]                 cross-entropy, dice
regression      float32 [N] or [N, d]         [B] or [B, 1]; [B, d]               mse
multi-label     0 or 1, float32 [N, C]        logits [B, C]                       bce
survival        time > 0 and event 0 or 1,    log of the scale and shape, [B, 2]  weibull
                float32 [N, 2]                (`task.tasks.lifetimes`)
reconstruction  the inputs, float32           like the inputs, or flat [B, p]; a  mse; elbo
                                              `task.models.elbo.Posterior`
==============  ============================  ==================================  =======================

A target of -100, or NaN among floats, does not count: it fills up a batch or a text.

**The unit of weight** is what n_k counts and what a batch's summed loss is divided by. It follows from the
targets' shape: each target of a sequence counts, as its loss is summed over the tokens that are predicted; a
map [H, W] counts once, as one example, whose loss is the mean over its pixels that count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from task.config.knobs import Config
from task.errors import ConfigError, choose_from
from task.inputs import SEQUENCES
from task.models import MODELS
from task.population import listed
from task.references import check_reference, is_reference, load_reference
from task.tasks.specs import TASKS, TaskSpec

if TYPE_CHECKING:  # importing torch takes seconds
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
    if attack.backdoor and attack.target >= classes:
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


def with_task(config: Config, found: str, form: str = "") -> Config:
    """Return a run config whose task is no longer "auto", nor its inputs if these have a form."""
    data = replace(
        config.data,
        task=found if config.data.task == "auto" else config.data.task,
        inputs=form or config.data.inputs,
    )
    if data == config.data:
        return config
    return replace(config, data=data, output=replace(config.output, run_name=config.run_name))


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
    fits = {found, "reconstruction"}
    if found in ("language", "segmentation"):
        fits = {"language": {*SEQUENCES}, "segmentation": {found}}[found]
    if found == "regression":
        fits.add("survival")
    if found == "multi-label":
        fits.add("regression")  # a matrix of zeros and ones may be numbers
    if name not in fits:
        raise ConfigError(
            f'run-config key "task": the targets of data set "{config.data.dataset}" are those of {found}; '
            f'expected {" or ".join(sorted(fits))}, or "auto"; got "{name}"'
        )


def check_goal(config: Config, name: str) -> None:
    """Refuse settings that have no meaning for a task.

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
    if name in (*SEQUENCES, "segmentation") and config.attack.backdoor:
        raise ConfigError(
            f'run-config key "attack.kind": "{config.attack.kind}" puts a patch into images or rows of '
            f'numbers; expected task = "classification"; got "{name}"'
        )
    _check_places(config, name)
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


def _check_places(config: Config, name: str) -> None:
    """Refuse algorithms and features that need one class an example, where the data have several."""
    if name == "segmentation" and (why := classes_only(config)):
        raise ConfigError(
            f'run-config key "task": {why}, one of each example; expected "classification"; got "{name}"'
        )
    if name not in SEQUENCES:
        return
    if any(record.weights for record in config.entry.up):
        raise ConfigError(
            f'run-config key "task": "{config.algorithm}" needs one class an example; expected '
            f'"classification"; got "{name}"'
        )
    if config.dp.local:
        raise ConfigError(
            'run-config key "dp.unit": it is not defined what one example of a text is, each of whose tokens '
            f'is predicted; expected "client", or task = "classification"; got "{config.dp.unit}"'
        )


def classes_only(config: Config) -> str:
    """Return why a run needs targets that are class numbers; "" = it does not."""
    if config.attack.kind == "label-flip" or config.attack.backdoor:
        return f'attack.kind = "{config.attack.kind}" trains on other classes'
    if (entry := config.entry).distils:
        return f"{entry.title} distils probabilities of classes"
    return "" if is_reference(entry.solver) else entry.classes  # the needs of a user's own are unknown
