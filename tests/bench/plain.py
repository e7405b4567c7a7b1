"""R2: the plainest PyTorch loop that takes the same SGD steps as a Bouquet run, on both cores.

Two worker processes with one torch thread each train half of the cohort with ``torch.optim.SGD``; the
parent averages and evaluates with all cores. There is no Flower in it. What it shares with Bouquet is
what makes the steps the same: the data, the first model, who is drawn and in which order the examples come.
``python -m tests.bench.plain FOLDER KEYS ROUNDS WORKERS`` runs it as a command.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from task import trust
from task.config.knobs import Config
from task.datasets import load_dataset
from task.datasets.partition import load_partition
from task.models import build_model
from task.numerics.seeds import rng_for
from task.references import references_in
from task.resolve.read import read_config
from task.tasks.evaluate import measure

WORKERS = 2
SPAWN = get_context("spawn")


def work(pipe: Connection, keys: Mapping[str, Any]) -> None:
    """Train the clients that come through the pipe; send back their sum weighted by examples."""
    torch.set_num_threads(1)
    trust.user_named(references_in(keys))
    config = read_config(keys)
    dataset = load_dataset(config.data, config.synthetic, config.seed)
    partition = load_partition(dataset, config.data, config.seed)
    pool = slice(0, dataset.num_train)
    inputs, targets = dataset.inputs(pool), dataset.targets(pool)
    model = build_model(config.model, dataset.input_shape, dataset.num_classes, config.seed)
    pipe.send(list(partition.names))
    while (job := pipe.recv()) is not None:
        server_round, arrays, clients = job
        state = {name: torch.from_numpy(a) for name, a in arrays.items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        count = 0
        for client in clients:
            rows = torch.from_numpy(partition.train(partition.index(client)).copy())
            model.load_state_dict(state)
            train(model, inputs[rows], targets[rows], config, server_round, client)
            with torch.no_grad():
                for name, tensor in model.state_dict().items():
                    total[name] += len(rows) * tensor
            count += len(rows)
        pipe.send(({name: tensor.numpy() for name, tensor in total.items()}, count))


def train(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, config: Config, server_round: int, client: str
) -> None:
    """Run E epochs of SGD in the order of examples that Bouquet draws for this client and round."""
    rng = rng_for(config.seed, "batches", server_round, client)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.train.learning_rate)
    model.train()
    for _ in range(config.train.local_epochs):
        order = torch.from_numpy(rng.permutation(len(x)))
        for rows in order.split(config.train.batch_size):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


class PlainLoop:
    """The loop, with workers that stay alive between calls of `run`.

    Args:
        keys: Run-config keys of the Bouquet run; those of plain FedAvg with SGD count.
        worker: What a worker is; a test takes threads, which start at once.
        workers: How many; one makes it R.
    """

    def __init__(
        self, keys: Mapping[str, Any], worker: Callable[..., Any] = SPAWN.Process, workers: int = WORKERS
    ) -> None:
        trust.user_named(references_in(keys))
        self.config = config = read_config(keys)
        # Before there are threads: drawing the first weights sets torch's one generator.
        dataset = load_dataset(config.data, config.synthetic, config.seed)
        self.model = build_model(config.model, dataset.input_shape, dataset.num_classes, config.seed)
        pairs = [SPAWN.Pipe() for _ in range(workers)]
        self.pipes = [ours for ours, _ in pairs]
        self.workers = [worker(target=work, args=(theirs, dict(keys)), daemon=True) for _, theirs in pairs]
        for each in self.workers:
            each.start()
        self.test = dataset.inputs(dataset.test_rows), dataset.targets(dataset.test_rows)
        self.names = sorted([pipe.recv() for pipe in self.pipes].pop())  # both are ready then
        self.selected: list[list[str]] = []
        self.accuracies: list[float] = []
        self.round = 0

    def draw(self, server_round: int) -> list[str]:
        """Return the clients of a round."""
        population = len(self.names)
        size = max(int(self.config.server.fraction_train * population + 1e-9), 1)
        rng = rng_for(self.config.seed, "selection", server_round)
        picked = rng.choice(population, size=size, replace=False, shuffle=False)
        return [self.names[i] for i in sorted(picked.tolist())]

    def run(self, rounds: int) -> list[float]:
        """Run so many more rounds and return the seconds of each."""
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            self.round += 1
            clients = self.draw(self.round)
            state = {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}
            for i, pipe in enumerate(self.pipes):
                pipe.send((self.round, state, clients[i :: len(self.pipes)]))
            parts = [pipe.recv() for pipe in self.pipes]
            examples = sum(count for _, count in parts)
            total = {name: sum(t[name] for t, _ in parts) / examples for name in state}
            self.model.load_state_dict({name: torch.from_numpy(a) for name, a in total.items()})
            self.accuracies.append(measure(self.model, *self.test)[0]["accuracy"])
            self.selected.append(clients)
            seconds.append(time.perf_counter() - start)
        return seconds

    def __enter__(self) -> PlainLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe, worker in zip(self.pipes, self.workers, strict=True):
            if worker.is_alive():
                pipe.send(None)
            worker.join(10)


def command(folder: Path, keys: Mapping[str, Any], rounds: int, workers: int = WORKERS) -> list[str]:
    """Return the command line of the loop."""
    words = [str(folder), json.dumps(dict(keys)), str(rounds), str(workers)]
    return [sys.executable, "-m", "tests.bench.plain", *words]


def main() -> None:
    """Run the loop and append a line a round to FOLDER/rounds.jsonl, the untrained model first."""
    folder, keys, rounds, workers = sys.argv[1:]
    file = Path(folder) / "rounds.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with PlainLoop(json.loads(keys), workers=int(workers)) as loop, file.open("a", encoding="utf-8") as lines:
        for server_round in range(int(rounds) + 1):
            if server_round:
                loop.run(1)
            else:
                loop.accuracies.append(measure(loop.model, *loop.test)[0]["accuracy"])
            lines.write(json.dumps({"round": server_round, "accuracy": loop.accuracies[-1]}) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
