"""The model, the data of a client, training and testing."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DIGITS = load_digits()


class Net(nn.Module):
    """A perceptron for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, [B, 10], of images, [B, 8, 8]."""
        return self.layers(x)


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:
    """Return training and test data of a client, which has two to four of the ten classes."""
    _, rows = _test_and_training()
    by_class = rows[np.argsort(DIGITS.target[rows], kind="stable")]
    shards = np.array_split(by_class, 2 * num_partitions)
    mine = np.concatenate([shards[partition_id], shards[partition_id + num_partitions]])
    rows = np.random.default_rng(partition_id).permutation(mine)
    cut = len(rows) // 5
    return _loader(rows[cut:], shuffle=True), _loader(rows[:cut])


def load_test_data() -> DataLoader:
    """Return the server's test data, which no client has."""
    return _loader(_test_and_training()[0])


def _test_and_training() -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(0).permutation(len(DIGITS.target))
    return rows[: len(rows) // 5], rows[len(rows) // 5 :]


def _loader(rows: np.ndarray, shuffle: bool = False) -> DataLoader:
    x = torch.tensor(DIGITS.images[rows] / 16, dtype=torch.float32)
    data = TensorDataset(x, torch.tensor(DIGITS.target[rows]))
    order = torch.Generator().manual_seed(int(rows[0])) if shuffle else None
    return DataLoader(data, batch_size=10 if shuffle else 100, shuffle=shuffle, generator=order)


def train(net: Net, loader: DataLoader, epochs: int, lr: float, mu: float) -> float:
    """Train with the proximal term mu/2 |w - w_global|^2; return the mean loss."""
    received = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            away = sum((w - w0).pow(2).sum() for w, w0 in zip(net.parameters(), received, strict=True))
            (loss + mu / 2 * away).backward()
            optimizer.step()
            total += loss.item() * len(y)
    return total / (epochs * len(loader.dataset))


@torch.no_grad()
def test(net: Net, loader: DataLoader) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    loss, correct = 0.0, 0
    for x, y in loader:
        out = net(x)
        loss += nn.functional.cross_entropy(out, y, reduction="sum").item()
        correct += int((out.argmax(1) == y).sum())
    return loss / len(loader.dataset), correct / len(loader.dataset)
