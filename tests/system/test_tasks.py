"""Other tasks than classification on a link with three nodes: models and metrics are those of one process.

A regression of tables is in `tests.system.test_tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from server_app.engines.federation import federation
from tests.own_folder import found
from tests.support.federation import in_one_process

pytestmark = pytest.mark.system
SITES = {"site-1": 60, "site-2": 80, "site-3": 100}
KEYS: dict[str, str | int | float] = {
    "num-server-rounds": 2, "local-test-fraction": 0.25, "fraction-evaluate": 1.0, "device": "cpu",
    "progress": "none", "data-seed": 3,
}  # fmt: skip


def write_sites(folder: Path) -> None:
    """Write a file of each site's examples, and `pool.npz` of all: numbers [N, 6], four labels each.

    The server's test set stands in the pool, which would else give a tenth of all examples for it.
    """
    rng = np.random.default_rng(5)
    owners = np.repeat(list(SITES), list(SITES.values()))
    x = rng.normal(size=(len(owners), 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 4)) > 0.3).astype(np.int64)
    for site in SITES:
        np.savez(folder / f"{site}.npz", x=x[owners == site], y=y[owners == site])
    np.savez(folder / "pool.npz", x=x, y=y, client=owners, x_test=x[:6], y_test=y[:6])


def hold(
    tmp_path: Path, nodes: dict[str, Sequence[str]], pooled: dict[str, str | int], **more: str | float
) -> None:
    """Hold a run on nodes to that of one process, whose data `pooled` names; `more` are keys of both."""
    keys = KEYS | {key.replace("__", ".").replace("_", "-"): value for key, value in more.items()}
    runs = tmp_path / "runs"
    with federation(nodes, runs) as fed:
        fed.run(keys | {"run-name": "nodes"})
    here = in_one_process(keys | pooled | {"run-name": "here"}, tmp_path / "here")
    assert found(runs / "nodes") == found(here)


def on_sites(tmp_path: Path, **more: str | float) -> None:
    write_sites(tmp_path)
    nodes = {site: ["--data", str(tmp_path / f"{site}.npz")] for site in SITES}
    pooled: dict[str, str | int] = {
        "data-path": str(tmp_path / "pool.npz"), "partition": "natural", "num-clients": 0,
    }  # fmt: skip
    hold(tmp_path, nodes, pooled, dataset="npz", num_classes=4, **more)


def test_labels_of_each_site_s_own(tmp_path: Path) -> None:
    on_sites(tmp_path, task="multi-label", algorithm="ditto", metrics="f1-macro,auroc")


@pytest.mark.full
def test_reconstruction_of_each_site_s_own(tmp_path: Path) -> None:
    on_sites(
        tmp_path,
        task="reconstruction",
        algorithm="scaffold",
        model="autoencoder",
        loss="mae",
        metrics="mae,rmse",
    )


@pytest.mark.full
def test_the_next_characters_of_roles(tmp_path: Path, data_folder: Path) -> None:
    nodes = {f"node-{i}": ["--partition", f"{i}/3"] for i in range(3)}
    hold(
        tmp_path, nodes, {}, dataset="shakespeare", model="char-lstm", partition="natural", num_clients=3,
        metrics="perplexity", local_steps=5, algorithm="fedprox", fedprox__mu=0.1,
    )  # fmt: skip
