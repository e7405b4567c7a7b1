"""W1 in pfl-research: ``SimulatedBackend`` and ``FederatedAveraging``; several processes under torchrun."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from tests.bench.peers import common


class Evaluate(TrainingProcessCallback):
    """Writes the line of a round; with several processes the first one does."""

    def __init__(self, task: common.Task) -> None:
        self.task = task
        self.accuracy = common.torch_accuracy(task)

    def _write(self, model: Any) -> None:
        if get_ops().distributed.global_rank == 0:
            self.task.write(self.accuracy(model.pytorch_model))

    def on_train_begin(self, *, model: Any) -> Metrics:
        self._write(model)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._write(model)
        return False, Metrics()


def loss(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(self(x), y)


def metrics(self: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {}  # nothing is evaluated on the clients


def main() -> None:
    task = common.Task()
    queue: list[int] = []

    def next_client() -> int:
        if not queue:
            queue.extend(task.draw())
        return queue.pop()

    def examples(client: int) -> Dataset:
        x, y = task.client(client)
        order = np.random.permutation(len(y))  # pfl takes batches in the order that it is given
        return Dataset((torch.from_numpy(x[order]), torch.from_numpy(y[order])), user_id=str(client))

    data = FederatedDataset(examples, next_client)
    net = common.torch_model(loss=loss, metrics=metrics)
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=common.COHORT,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=common.EPOCHS,
            local_learning_rate=common.LR,
            local_batch_size=common.BATCH,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=common.EVAL_BATCH),
        callbacks=[Evaluate(task)],
    )


if __name__ == "__main__":
    main()
