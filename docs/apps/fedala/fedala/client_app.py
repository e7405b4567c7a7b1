"""The ClientApp: it keeps its own model from round to round, and mixes the global one into it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedala.task import MIXED, Net, load_data, mix
from fedala.task import test as test_fn
from fedala.task import train as train_fn

app = ClientApp()


@app.query("roll_call")
def registration(msg: Message, context: Context) -> Message:
    """Register nothing, so that the node counts as one client; without an answer Flower prints an error."""
    return Message(content=RecordDict(), reply_to=msg)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Mix the received model into the client's own, train the mixture, keep it and return it."""
    place, config = context.node_config, context.run_config
    loader, _ = load_data(place["partition-id"], place["num-partitions"])
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    if "own" in context.state:
        own = context.state["own"].to_torch_state_dict()
        weights = context.state["weights"].to_torch_state_dict()
        weights = mix(net, own, weights, loader, config["ala-learning-rate"], config["ala-share"])
    else:
        weights = {name: torch.ones_like(net.state_dict()[name]) for name in MIXED}
    loss = train_fn(net, loader, config["local-epochs"], msg.content["config"]["lr"])
    context.state["own"] = ArrayRecord(net.state_dict())
    context.state["weights"] = ArrayRecord(weights)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the client's own model on its test data, and the received one to compare."""
    place = context.node_config
    _, loader = load_data(place["partition-id"], place["num-partitions"])
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, of_global = test_fn(net, loader)
    if "own" in context.state:
        net.load_state_dict(context.state["own"].to_torch_state_dict())
    loss, accuracy = test_fn(net, loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "global_acc": of_global}
    content = RecordDict({"metrics": MetricRecord(metrics | {"num-examples": len(loader.dataset)})})
    return Message(content=content, reply_to=msg)
