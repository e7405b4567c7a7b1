"""A ClientApp as Flower's PyTorch quickstart teaches to write it, in few lines and with its habits.

It knows nothing of Bouquet: the names of its records and metrics are those of the quickstart.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp


class Net(torch.nn.Module):
    """Four numbers in, three classes out, with a normalisation layer (float and integer buffers)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.norm(x))
        return out


def load_data(partition_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(40 + 10 * partition_id, 4, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    x, y = load_data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(msg.content["config"]["lr"]), momentum=0.9)  # type: ignore[arg-type,index]
    running_loss = 0.0
    for _ in range(int(context.run_config["local-epochs"])):
        for i in range(0, len(x), 10):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[i : i + 10]), y[i : i + 10])
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    metrics = MetricRecord({"train_loss": running_loss, "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    model.eval()
    x, y = load_data(int(context.node_config["partition-id"]))
    with torch.no_grad():
        logits = model(x)
    loss = torch.nn.functional.cross_entropy(logits, y).item()
    accuracy = (logits.argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
