"""The ClientApp: it trains with the mu that the strategy sends, as `proximal-mu`."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedprox.task import Net, load_data
from fedprox.task import test as test_fn
from fedprox.task import train as train_fn

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
    """Train the received model and return it."""
    net, loader, _ = _opened(msg, context)
    config = msg.content["config"]
    loss = train_fn(net, loader, context.run_config["local-epochs"], config["lr"], config["proximal-mu"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the received model on the client's test data."""
    net, _, loader = _opened(msg, context)
    loss, accuracy = test_fn(net, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
