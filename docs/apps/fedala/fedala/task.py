"""The model, the data of a client, training and testing."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

State = dict[str, torch.Tensor]
MIXED = ("layers.3.weight", "layers.3.bias")  # the last layer


class Net(nn.Module):
    """A perceptron for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, [B, 10], of images, [B, 8, 8]."""
        return self.layers(x)


def load_data(partition_id: int, num_partitions: int) -> tuple[DataLoader, DataLoader]:
    """Return training and test data of a client, which has few of the ten classes."""
    digits = load_digits()
    by_class = np.argsort(digits.target, kind="stable")
    shards = np.array_split(by_class, 2 * num_partitions)
    mine = np.concatenate([shards[partition_id], shards[partition_id + num_partitions]])
    rows = np.random.default_rng(partition_id).permutation(mine)
    x = torch.tensor(digits.images[rows] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[rows])
    cut = len(rows) * 4 // 5
    train, test = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    shuffle = torch.Generator().manual_seed(partition_id)
    return DataLoader(train, batch_size=10, shuffle=True, generator=shuffle), DataLoader(test, batch_size=100)


def train(net: Net, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model; return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
    return total / (epochs * len(loader.dataset))


def mix(net: Net, own: State, weights: State, loader: DataLoader, lr: float, share: float) -> State:
    """Mix the model of `net`, the global one, into a client's own; return the new weights of the mixture.

    ALA: Zhang et al., AAAI 2023, arXiv 2212.01197. In the last layer w = own + (global - own) * weight, and
    each weight, between 0 and 1, takes steps against the gradient of the loss on a share of the data. The
    other layers are the global model's. `net` has the mixture at the end.
    """
    params = dict(net.named_parameters())
    received = {name: params[name].detach().clone() for name in weights}
    away = {name: received[name] - own[name] for name in weights}
    for number, (x, y) in enumerate(loader):
        if number >= share * len(loader):
            break
        with torch.no_grad():
            for name, weight in weights.items():
                params[name].copy_(own[name] + away[name] * weight)
        loss = nn.functional.cross_entropy(net(x), y)
        grads = torch.autograd.grad(loss, [params[name] for name in weights])
        for (name, weight), grad in zip(list(weights.items()), grads, strict=True):
            weights[name] = (weight - lr * grad * away[name]).clamp(0, 1)
    with torch.no_grad():
        for name, weight in weights.items():
            params[name].copy_(own[name] + away[name] * weight)
    return weights


@torch.no_grad()
def test(net: Net, loader: DataLoader) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    loss, correct = 0.0, 0
    for x, y in loader:
        out = net(x)
        loss += nn.functional.cross_entropy(out, y, reduction="sum").item()
        correct += int((out.argmax(1) == y).sum())
    return loss / len(loader.dataset), correct / len(loader.dataset)
