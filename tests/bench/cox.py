"""Cox's regression on the splits of the table silos-survival: ``python -m tests.bench.cox``.

It prints the concordance at the sites' own tests of coefficients that statsmodels fits to the pooled training
rows of all sites, and to each site's own: over the seeds, the mean over sites and the lowest. It reads
``trial.csv`` of `tests.bench.sites` in ``$BOUQUET_DATA``.
"""

from __future__ import annotations

import statistics
import warnings

import numpy as np
import numpy.typing as npt
import statsmodels.api as sm
import torch

from server_app.extras.reproduce.tables import read_table
from task.datasets import load_dataset
from task.datasets.partition import load_partition
from task.numerics.metrics import mean_and_std
from task.resolve.read import read_config
from task.tasks.lifetimes import ordered_pairs


def concordance(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], beta: npt.NDArray[np.float64]
) -> float:
    """Return the concordance of the risk x @ beta, the higher the sooner."""
    scores = torch.from_numpy(np.stack([-x @ beta, np.zeros(len(x))], 1))
    right, known = ordered_pairs(scores, torch.from_numpy(y))
    return right / known


def fitted(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the coefficients, 0 of columns that are the same for all."""
    varies, beta = x.std(0) > 0, np.zeros(x.shape[1])
    with warnings.catch_warnings(action="ignore"):
        beta[varies] = sm.PHReg(y[:, 0], x[:, varies], status=y[:, 1], ties="efron").fit().params
    return beta


def main() -> None:
    """Print the concordances."""
    cell = read_table("silos-survival").cells["fedavg-mean"]
    found: dict[str, list[list[float]]] = {"pooled": [], "local": []}
    for seed in cell.seeds:
        config = read_config(cell.keys_of(cell.start, seed))
        data = load_dataset(config.data, config.synthetic, config.seeds.data)
        deal = load_partition(data, config.data, config.seeds.data)
        x, y = np.asarray(data.x, np.float64), np.asarray(data.y, np.float64)
        x = (x - x.mean(0)) / x.std(0)  # so that Newton's steps converge; the order of risks is the same
        x = x[:, :-1]  # the arms have an input each, and the last follows from the others
        sites = range(deal.num_clients)
        rows = np.concatenate([deal.train(k) for k in sites])
        pooled = fitted(x[rows], y[rows])
        betas = {
            "pooled": [pooled for _ in sites],
            "local": [fitted(x[deal.train(k)], y[deal.train(k)]) for k in sites],
        }
        for way, each in betas.items():
            tests = [deal.test(k) for k in sites]
            found[way].append([concordance(x[t], y[t], beta) for t, beta in zip(tests, each, strict=True)])
    for way, by_seed in found.items():
        for word, of in (("mean over sites", statistics.fmean), ("lowest", min)):
            mean, sd = mean_and_std([100 * of(sites) for sites in by_seed])
            print(f"{way}, {word}: {mean:.1f} ± {sd:.1f}")


if __name__ == "__main__":
    main()
