"""Tells the examples that a model was trained on from others, by their loss: membership inference.

The attacker has an example, its label and the final model, and says "member" where the loss is below a
threshold (Yeom et al. 2018, arXiv 1709.01604). How well that works over all thresholds is the area under the
curve of true against false positives (0.5 = not at all); how well it works on a few examples for certain,
which is what matters to them, the true positives at few false ones (Carlini et al. 2022, arXiv 2112.03570).
An attacker with models of the same kind of their own would do better: this is a lower bound.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from server_app.takeout.model import TakenModel, find, take
from task.config.knobs import Config
from task.datasets import Dataset
from task.datasets.columns import with_moments
from task.datasets.partition import load_partition
from task.datasets.skew import load_dealt
from task.errors import ConfigError
from task.numerics.evaluate import BATCH
from task.resolve.contract import contract_of
from task.tasks import task_of

FALSE = (0.01, 0.001)  # rates of false positives
LEAST = 20  # examples of a client whose AUC is not mostly chance
Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """How well members are told from others."""

    auc: float
    rates: tuple[float, ...]  # of true positives, at each of `FALSE`


def told(members: Losses, others: Losses) -> Told:
    """Return how well a threshold on the loss tells members from others.

    At a rate of false positives the threshold is the largest loss that so many of the others stay below.
    """
    order = np.sort(others)
    below, upto = (np.searchsorted(order, members, side) for side in ("left", "right"))
    auc = 1.0 - float((below + upto).mean()) / (2 * len(others))
    rates = []
    for rate in FALSE:
        allowed = math.floor(rate * len(others))
        rates.append(float((members < order[allowed]).mean()) if allowed < len(others) else 1.0)
    return Told(auc, tuple(rates))


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


def _data(taken: TakenModel, config: Config) -> Dataset:
    if taken.card.kind == "":
        raise ConfigError("audit membership: expected a run whose data are here; only its nodes have them")
    if contract_of(config).personal:
        raise ConfigError(
            f"audit membership: expected a run of one global model; the models of {config.algorithm} are the "
            "clients' own"
        )
    data = load_dealt(config)[0]
    data = with_moments(data, taken.card.moments) if taken.card.moments and data.preparation else data
    if data.num_train == len(data.y):
        raise ConfigError(
            "audit membership: expected a test set, of examples that nobody trained on; got none"
        )
    return data


def attack(run: Path) -> dict[str, Any]:
    """Return how well the training examples of a finished run's clients are told from its test set.

    Raises:
        BouquetError: There is no such run, its data are not here, or it has no test set.
    """
    taken = take(run)
    config = taken.config
    data = _data(taken, config)
    clients = load_partition(data, config.data, config.seeds.data)
    rows = [np.asarray(clients.train(i)) for i in range(clients.num_clients)]
    others = losses_of(taken, data, np.arange(data.num_train, len(data.y)))
    by_client = np.split(losses_of(taken, data, np.concatenate(rows)), np.cumsum([len(r) for r in rows])[:-1])
    members = np.concatenate(by_client)
    whole = told(members, others)
    single = {name: told(mine, others).auc for name, mine in zip(clients.names, by_client, strict=True)}
    sizes = dict(zip(clients.names, map(len, by_client), strict=True))
    enough = [name for name in single if sizes[name] >= LEAST]
    worst = max(enough, key=single.__getitem__, default=None)
    return {
        "run": str(find(run).parent.resolve()),
        "members": len(members),
        "others": len(others),
        "member_loss": float(members.mean()),
        "other_loss": float(others.mean()),
        "auc": whole.auc,
        **{f"tpr_at_{rate:g}": tpr for rate, tpr in zip(FALSE, whole.rates, strict=True)},
        "worst_client": {"name": worst, "auc": single[worst]} if worst else None,
        "clients": single,
    }
