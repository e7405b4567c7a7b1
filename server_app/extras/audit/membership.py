"""Membership inference: separate a model's training examples from others by their loss.

The attacker has an example, its label and the final model, and says "member" where the loss is below a
threshold (Yeom et al. 2018, arXiv 1709.01604). How well that works over all thresholds is the area under the
curve of true against false positives (0.5 = not at all); how well it works on a few examples for certain,
which is what matters to them, the true positives at few false ones (Carlini et al. 2022, arXiv 2112.03570).

An attacker who trains models of the same kind, *shadows*, on data of their own knows how hard an example is:
LiRA offline (the same paper, section V) takes log(p / (1 - p)) of the example's label, p = e^-loss, and asks
how unlikely that is of a Gaussian around what shadows without the example say. The variance is one for all
examples, as the paper has it for few shadows. A shadow is a run of the same keys on other examples: those
that another ``data-seed`` draws of the training set, as many, or half of it if the run has all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from server_app.run.repeat import keys_of_run
from server_app.takeout.model import TakenModel, take
from server_app.takeout.model_file import find
from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.columns import with_moments
from task.datasets.partition import load_partition
from task.datasets.skew import load_partitioned
from task.errors import ConfigError
from task.resolve.contract import contract_of
from task.tasks import task_of
from task.tasks.evaluate import BATCH

FALSE = (0.01, 0.001)  # rates of false positives
LEAST = 20  # examples of a client whose AUC is not mostly chance
Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """How well members can be distinguished from others."""

    auc: float
    rates: tuple[float, ...]  # of true positives, at each of `FALSE`


def told(members: Losses, others: Losses) -> Told:
    """Return how well a threshold on the loss separates members from others.

    At a rate of false positives the threshold is the largest loss that this share of the others stay below.
    """
    order = np.sort(others)
    below, upto = (np.searchsorted(order, members, side) for side in ("left", "right"))
    auc = 1.0 - float((below + upto).mean()) / (2 * len(others))
    rates = []
    for rate in FALSE:
        allowed = math.floor(rate * len(others))
        rates.append(float((members < order[allowed]).mean()) if allowed < len(others) else 1.0)
    return Told(auc, tuple(rates))


def _figures(of: Told) -> dict[str, float]:
    return {"auc": of.auc, **{f"tpr_at_{rate:g}": tpr for rate, tpr in zip(FALSE, of.rates, strict=True)}}


def losses_of(taken: TakenModel, data: Dataset, rows: np.ndarray) -> Losses:
    """Return the loss of each example, of a text the mean over its positions, float64 [n]."""
    config = replace(taken.card.config, metrics="")
    task = task_of(config, taken.card.task, taken.card.num_classes)
    found = []
    with torch.inference_mode():
        for i in range(0, len(rows), BATCH):
            some = rows[i : i + BATCH]
            loss = task.single(taken.model(data.inputs(some)), task.targets(data, some))
            found.append(loss.double().flatten(1).mean(1) if loss.dim() > 1 else loss.double())
    return np.asarray(torch.cat(found).numpy())


def confidence(losses: Losses) -> Losses:
    """Return log(p / (1 - p)) of probabilities p = e^-loss."""
    losses = np.maximum(losses, 1e-12)
    return np.asarray(-losses - np.log(-np.expm1(-losses)))


def likelihood(found: Losses, shadows: Losses, without: NDArray[np.bool_]) -> Losses:
    """Return by how many standard deviations a model is surer of each example than models without it.

    Args:
        found: Confidence of the model by example, [n].
        shadows: That of each shadow, [S, n].
        without: Whether the shadow was trained without the example, [S, n]. An example that all shadows were
            trained on is compared with the mean of all.
    """
    counts = without.sum(0)
    sums = np.where(without, shadows, 0.0).sum(0)
    mean = np.where(counts > 0, sums / np.maximum(counts, 1), sums.sum() / counts.sum())
    spread = np.where(without, shadows - mean, 0.0)
    variance = (spread**2).sum() / max(int(counts.sum() - (counts > 0).sum()), 1)
    return np.asarray((found - mean) / math.sqrt(variance))


def shadow_keys(run: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    """Return the run configs of a finished run's shadows.

    Raises:
        BouquetError: There is no such run, or its data or its loss do not allow the attack.
    """
    taken = take(run)
    config, data = taken.config, _data(taken, taken.config)
    if taken.card.task != "classification" or config.loss:
        raise ConfigError(
            "--shadows: expected a classification run with the usual loss, from which LiRA computes "
            f"probabilities; got task {taken.card.task!r}, loss {config.loss!r}"
        )
    own: dict[str, Any] = {"max-examples": config.data.max_examples or data.num_train // 2}
    own |= {"runs-dir": str(folder), "state-dir": str(folder / "state"), "progress": "none"}
    first = config.seeds.data + 1
    return [
        {**keys_of_run(run)[0], **own, "run-name": f"shadow-{i}", "data-seed": first + i}
        for i in range(count)
    ]


def _by_likelihood(taken: TakenModel, data: Dataset, rows: np.ndarray, shadows: Sequence[Path]) -> Losses:
    """Return how likely each example is a member, by what shadows make of it."""
    found, without = [], []
    for path in shadows:
        shadow = take(path)
        trained = _data(shadow, shadow.config)
        seen = {trained.x[i].tobytes() for i in range(trained.num_train)}
        found.append(confidence(losses_of(shadow, data, rows)))
        without.append([data.x[i].tobytes() not in seen for i in rows])
    return likelihood(confidence(losses_of(taken, data, rows)), np.array(found), np.array(without))


def _data(taken: TakenModel, config: Config) -> Dataset:
    if taken.card.kind == "":
        raise ConfigError(
            "audit membership: expected a run whose data are on this machine; only its nodes have them"
        )
    if contract_of(config).personal:
        raise ConfigError(
            f"audit membership: expected a run of one global model; the models of {config.algorithm} are the "
            "clients' own"
        )
    if config.stream.on or config.drift.kind != "none" or config.arrive.share:
        raise ConfigError(
            "audit membership: expected data that don't change; those of this run change by "
            "stream.*, drift.* or arrive.*, so membership depends on the round"
        )
    data = load_partitioned(config)[0]
    data = with_moments(data, taken.card.moments) if taken.card.moments and data.preparation else data
    if data.num_train == len(data.y):
        raise ConfigError(
            "audit membership: expected a test set, of examples that no client trained on; got none"
        )
    return data


def attack(run: Path, shadows: Sequence[Path] = ()) -> dict[str, Any]:
    """Return how well a finished run's training examples can be distinguished from its test set.

    With `shadows`, folders of finished runs of `shadow_keys`, also how well LiRA does it.

    Raises:
        BouquetError: There is no such run, its data are not here, or it has no test set.
    """
    taken = take(run)
    config = taken.config
    data = _data(taken, config)
    clients = load_partition(data, config.data, config.seeds.data)
    rows = [np.asarray(clients.train(i)) for i in range(clients.num_clients)]
    tests = np.arange(data.num_train, len(data.y))
    others = losses_of(taken, data, tests)
    by_client = np.split(losses_of(taken, data, np.concatenate(rows)), np.cumsum([len(r) for r in rows])[:-1])
    members = np.concatenate(by_client)
    whole = told(members, others)
    single = {name: told(mine, others).auc for name, mine in zip(clients.names, by_client, strict=True)}
    sizes = dict(zip(clients.names, map(len, by_client), strict=True))
    enough = [name for name in single if sizes[name] >= LEAST]
    worst = max(enough, key=single.__getitem__, default=None)
    lira: dict[str, Any] = {}
    if shadows:
        scores = -_by_likelihood(taken, data, np.concatenate([*rows, tests]), shadows)
        lira = {
            "lira": {
                "shadows": len(shadows),
                **_figures(told(scores[: len(members)], scores[len(members) :])),
            }
        }
    return {
        "run": str(find(run).parent.resolve()),
        "members": len(members),
        "others": len(others),
        "member_loss": float(members.mean()),
        "other_loss": float(others.mean()),
        **_figures(whole),
        **lira,
        "worst_client": {"name": worst, "auc": single[worst]} if worst else None,
        "clients": single,
    }
