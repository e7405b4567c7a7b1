"""Model, data, training and evaluation, shared by both sides of the stock app."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor

CLIENTS = 100


class Net(nn.Module):
    """McMahan's 2NN."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 200)
        self.fc2 = nn.Linear(200, 200)
        self.fc3 = nn.Linear(200, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(x, 1)
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


@cache
def mnist(root: str, train: bool) -> MNIST:
    return MNIST(root, train=train, transform=ToTensor())


def client_loader(root: str, client: int) -> DataLoader:
    data = mnist(root, train=True)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1)).tolist()
    return DataLoader(Subset(data, order[client::CLIENTS]), batch_size=10, shuffle=True)


@cache
def test_loader(root: str) -> DataLoader:
    return DataLoader(mnist(root, train=False), batch_size=256)


def train(net: nn.Module, loader: DataLoader, lr: float) -> float:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(loader)


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    criterion = nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    net.eval()
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(loader), correct / len(loader.dataset)
