"""The ClientApp: the first clients are malicious, and send the opposite of what they have learnt."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from robust.task import Net, load_data
from robust.task import test as test_fn
from robust.task import train as train_fn

app = ClientApp()


def _opened(msg: Message, context: Context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    place = context.node_config
    return net, *load_data(place["partition-id"], place["num-partitions"])


@app.query("roll_call")
def registration(msg: Message, context: Context) -> Message:
    """Register nothing, so that the node counts as one client; without an answer Flower prints an error."""
    return Message(content=RecordDict(), reply_to=msg)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model and return it, or a model that does harm."""
    net, loader, _ = _opened(msg, context)
    received = msg.content["arrays"].to_torch_state_dict()
    loss = train_fn(net, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    state = net.state_dict()
    if context.node_config["partition-id"] < context.run_config["byzantine"]:
        state = {name: received[name] - 5 * (state[name] - received[name]) for name in state}
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(state), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the received model on the client's test data."""
    net, _, loader = _opened(msg, context)
    loss, accuracy = test_fn(net, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
