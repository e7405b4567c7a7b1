"""What gradients give away of labels, with and without a defence; distance correlation by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message

from client_app.vertical.defence import dcor, defended
from task.config.algorithm_sections import VerticalConfig
from task.resolve.read import read_config
from task.vertical.rows import batches, epoch_order, in_common_order, num_tests
from tests.support import parties
from tests.support.federation import play


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Return the share of pairs in which the positive row has the higher score."""
    rank = score.argsort(kind="stable").argsort(kind="stable").astype(np.float64)
    n, m = int(positive.sum()), int((~positive).sum())
    return float((rank[positive].sum() - n * (n - 1) / 2) / (n * m))


def attacked(tmp_path: Path, defence: str) -> tuple[float, float]:
    """Return the AUC of the norm and the direction attack on the gradients of an epoch, 6 % positive."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 6)).astype(np.float32)
    score = x @ rng.normal(size=6) + 6 * rng.normal(size=500)  # hard to learn, as rare classes are
    y = (score > np.quantile(score, 0.94)).astype(np.int64)
    ids = [str(i) for i in range(500)]
    path, seen = parties.write(tmp_path / "rare.csv", ids, x, y), []

    def tamper(node: int, reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            seen.append(reply.content["gradients"]["rows"].numpy())  # type: ignore[index]
        return reply

    keys = parties.config(
        data_path=str(path), num_clients=2, num_classes=2, batch_size=125, vertical__defence=defence,
        num_server_rounds=6, client_evaluate_every=6, vertical__cut=8,
    )  # fmt: skip
    play(keys, nodes=1, tamper=tamper)
    config = read_config(keys)
    order = in_common_order(ids, config.seeds.data)[num_tests(500, config) :]
    norms, cosines = [], []
    for t, sent in enumerate(seen, 1):
        labels = y[order][epoch_order(len(order), config, t)] == 1
        for rows in batches(0, len(order), len(order), config):
            g, positive = sent[rows], labels[rows]
            norms.append(auc(np.linalg.norm(g, axis=1), positive))
            unit = g / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1e-30)
            known, rest = np.flatnonzero(positive)[0], np.ones(len(g), bool)
            rest[known] = False
            cosines.append(auc((unit @ unit[known])[rest], positive[rest]))
    return float(np.mean(norms[3:])), float(np.mean(cosines[3:]))  # from the second epoch on


@pytest.mark.parametrize(
    ("defence", "norm", "direction"),
    [
        ("none", (0.97, 1.0), (0.93, 1.0)),
        ("max-norm", (0.3, 0.72), (0.5, 0.93)),
        ("gaussian", (0.3, 0.7), (0.3, 0.7)),
    ],
)
def test_gradients_give_labels_away_unless_they_are_defended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    defence: str,
    norm: tuple[float, float],
    direction: tuple[float, float],
) -> None:
    """Max-norm hides the norms, not the directions; noise of three times the largest norm hides both."""
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    by_norm, by_direction = attacked(tmp_path, defence)
    assert norm[0] <= by_norm <= norm[1], by_norm
    assert direction[0] <= by_direction <= direction[1], by_direction


def test_max_norm_gives_all_rows_the_square_norm_of_the_largest() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    config = VerticalConfig(defence="max-norm")
    squares = torch.stack([defended(rows, config).square().sum(1) for _ in range(3000)]).mean(0)
    assert squares.tolist() == pytest.approx([25.0, 25.0, 0.0], rel=0.15)
    assert torch.equal(defended(rows, config)[0], rows[0])  # the largest stays as it is
    assert torch.equal(defended(rows, VerticalConfig()), rows)


def test_distance_correlation_by_hand() -> None:
    """Of two points d is [[0, 1], [1, 0]], centred -+1/2; two equal samples have 1, a constant one 0."""
    x = torch.tensor([[0.0], [1.0], [4.0]])
    assert float(dcor(x, 3 * x)) == pytest.approx(1.0, abs=1e-5)
    assert float(dcor(x, torch.ones(3, 2))) == pytest.approx(0.0, abs=1e-3)
    a = torch.tensor([[1.0], [0.0], [0.0]])

    def centred(d: np.ndarray) -> np.ndarray:
        return d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()

    one = centred(np.array([[0, 1, 4], [1, 0, 3], [4, 3, 0]], float))
    two = centred(np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]], float))
    want = np.sqrt((one * two).mean() / np.sqrt((one**2).mean() * (two**2).mean()))
    assert float(dcor(x, a)) == pytest.approx(want, rel=1e-5)
    y = torch.randn(6, 2, requires_grad=True)
    dcor(torch.randn(6, 3), y).backward()
    assert y.grad is not None
    assert torch.isfinite(y.grad).all()
