"""Client side of the stock app."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.bench.stock.task import Net, client_loader, train

app = ClientApp()


@app.train()
def train_client(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    config = message.content["config"]
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = client_loader(config["root"], context.node_config["partition-id"])
    loss = train(net, loader, config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
