"""The ServerApp: Bouquet's FedProx in place of Flower's."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from bouquet.strategies import FedProx
from fedprox.task import Net, load_test_data
from fedprox.task import test as test_fn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and save the last model."""
    config = context.run_config
    torch.manual_seed(1)
    strategy = FedProx(mu=config["mu"], fraction_train=config["fraction-train"], seed=1)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        evaluate_fn=central_test,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def central_test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a round's model on the test data of all clients."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test_fn(net, load_test_data())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
