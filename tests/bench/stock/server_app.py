"""Server side of the stock app; it also writes the rounds.jsonl that the benchmarks watch."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from tests.bench.stock.task import Net, test, test_loader


def make_app(root: str, folder: Path, rounds: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder.mkdir(parents=True)
        last = time.perf_counter()

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            nonlocal last
            net = Net()
            net.load_state_dict(arrays.to_torch_state_dict())
            loss, accuracy = test(net, test_loader(root))
            now = time.perf_counter()
            row = {"round": server_round, "accuracy": accuracy, "seconds": {"total": now - last}}
            last = now
            with (folder / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            return MetricRecord({"accuracy": accuracy, "loss": loss})

        FedAvg(fraction_train=0.1, fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord(Net().state_dict()),
            train_config=ConfigRecord({"lr": 0.1, "root": root}),
            num_rounds=rounds,
            evaluate_fn=evaluate,
        )

    return app
