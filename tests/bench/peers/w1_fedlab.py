"""W1 in FedLab: its standalone pipeline with the serial trainer and the synchronous handler."""

from __future__ import annotations

import random
from typing import Any

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader

from tests.bench.peers import common


class Clients(FedDataset):
    """FedLab's view of the clients: a ``DataLoader`` each."""

    def __init__(self, task: common.Task) -> None:
        super().__init__()
        self.sets = [BaseDataset(*map(torch.from_numpy, task.client(k))) for k in range(common.CLIENTS)]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        return DataLoader(self.sets[id], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def __init__(self, task: common.Task, *args: Any) -> None:
        super().__init__(*args)
        self.task = task
        self.accuracy = common.torch_accuracy(task)
        self.evaluate()

    def evaluate(self) -> None:
        self.task.write(self.accuracy(self.handler.model))


def main() -> None:
    task = common.Task()
    random.seed(common.SEED)
    net = common.torch_model()
    share = common.COHORT / common.CLIENTS
    handler = SyncServerHandler(net, global_round=task.rounds, sample_ratio=share)
    trainer = SGDSerialClientTrainer(net, num_clients=common.CLIENTS)
    trainer.setup_dataset(Clients(task))
    trainer.setup_optim(common.EPOCHS, common.BATCH, common.LR)
    Pipeline(task, handler, trainer).main()


if __name__ == "__main__":
    main()
