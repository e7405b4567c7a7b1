"""W1 in fluke: ``CentralizedFL``, which is its FedAvg, with the evaluation that all peers share."""

from __future__ import annotations

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver

from tests.bench.peers import common


class Evaluate(FederationObserver, ServerObserver):
    def __init__(self, task: common.Task, algorithm: FedAVG) -> None:
        self.task = task
        self.algorithm = algorithm
        self.accuracy = common.torch_accuracy(task)

    def end_round(self, round: int) -> None:
        self.task.write(self.accuracy(self.algorithm.server.model))


def main() -> None:
    task = common.Task()
    net = common.torch_model()
    env = FlukeENV()
    env.set_seed(common.SEED)
    env.set_device("cpu")
    env.set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    tensors: list[Any] = [torch.from_numpy(a) for pair in (task.train, task.test) for a in pair]
    splitter = DataSplitter(DataContainer(*tensors, num_classes=10), distribution="iid")
    client = {
        "batch_size": common.BATCH,
        "local_epochs": common.EPOCHS,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": common.LR},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
    }
    algorithm = FedAVG(
        n_clients=common.CLIENTS,
        data_splitter=splitter,
        hyper_params=DDict(client=client, server={"weighted": True}, model=net),
    )
    observer = Evaluate(task, algorithm)
    algorithm.set_callbacks(observer)
    observer.end_round(0)
    algorithm.run(n_rounds=task.rounds, eligible_perc=common.COHORT / common.CLIENTS)


if __name__ == "__main__":
    main()
