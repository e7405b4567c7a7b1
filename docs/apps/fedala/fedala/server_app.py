"""The ServerApp: FedALA's server is FedAvg's, here Bouquet's."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from bouquet.strategies import FedAvg
from fedala.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; after each, all clients test their own models."""
    config = context.run_config
    torch.manual_seed(1)
    strategy = FedAvg(fraction_evaluate=1.0, seed=1)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: {dict(metrics)}")
