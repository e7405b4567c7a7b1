"""A party's work in a round: embed rows, and train its part of the model on a window of batches.

At the party with the labels, the part is the top model and the party's own bottom, trained together by
ordinary back-propagation on the other parties' embeddings, which are fixed. At other parties it is a bottom,
trained on the gradients of its embeddings, with the forward pass done again. `strategies.rules.splitnn` has
the round as a whole and the symbols.

Each part is kept with the number of windows of the round that it has trained on, so that a message that comes
twice, or a round that begins again, changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from client_app.data.node import Node
from client_app.stages.stage import Outcome, each
from client_app.vertical.defence import dcor, defended
from client_app.vertical.party import AlignedParty, Kept, PartyModel, PartyWork, aligned
from task.catalogue.entry import TRAIN_LOSS, Algorithm
from task.models.split import bottom_of, top_of
from task.numerics import seeds
from task.numerics.arrays import Arrays
from task.numerics.tensors import seed_drawing
from task.vertical.rows import batches, windows
from task.wire import messages as wire
from task.wire.layouts import ROWS


class SplitPart(torch.nn.Module):
    """One party's part of the model: a bottom, a top, or both."""

    def __init__(self, bottom: torch.nn.Module | None, top: torch.nn.Module | None) -> None:
        super().__init__()
        self.bottom, self.top = bottom, top

    def forward(self, x: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the top, of own columns and the others' embeddings."""
        assert self.top is not None
        found = [others] if self.bottom is None else [self.bottom(x), others]
        outputs: torch.Tensor = self.top(torch.cat(found, dim=1))
        return outputs


class _Joined(torch.nn.Module):
    """A part that reads own columns and embeddings as one tensor, for `measure`."""

    def __init__(self, part: SplitPart, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.part, self.shape, self.size = part, shape, int(np.prod(shape))

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        own, others = joined[:, : self.size], joined[:, self.size :]
        outputs: torch.Tensor = self.part(own.reshape(len(own), *self.shape), others)
        return outputs


@dataclass
class _Trained(PartyModel):
    """A party's part as it stands, ready to go on."""

    part: SplitPart

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.part.parameters() if p.requires_grad]

    def step(self, gradients: tuple[torch.Tensor, ...], lr: float) -> None:
        """Take one step of SGD."""
        with torch.no_grad():
            parameters = self.parameters
            self.optimizer.step([p.data for p in parameters], [g.clone() for g in gradients], lr)

    def arrays(self) -> Arrays:
        """Return the part's parameters and buffers."""
        return {name: t.detach().cpu().numpy().copy() for name, t in self.part.state_dict().items()}


class SplitWork(PartyWork):
    """What the parties among an order's clients do in one phase of a round."""

    def __init__(self, node: Node, entry: Algorithm, order: wire.TrainOrder) -> None:
        super().__init__(node, entry, order)
        self.window = int(order.scalars["window"])

    def opened(self, client: str, top: int = -1) -> _Trained:
        """Return a party as it was left; with a top model over `top` numbers of others, if not negative.

        Raises:
            StateError: It has not trained on the windows that this phase goes on from.
        """
        order, window = self.order, self.window
        (kept,) = self.memory.load([client], order.round + (window > 0))
        done = self._windows(kept)
        if done not in (window, window - 1) and window == 1:  # of a round that begins again
            (kept,) = self.memory.load([client], order.round)
            done = 0
        if done not in (window, window - 1):
            raise self.wrong_step(client, "part of the model", window - 1, done)
        step = kept.get("step", {"round": np.array(0)})
        if int(step["round"]) < order.round - 1:
            raise self.wrong_round(client, order.round - 1, kept)
        data = aligned(self.node, client, kept.get("aligned", {}))
        part = self._part(data, top)
        if "part" in kept:
            part.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in kept["part"].items()})
        part.to(self.node.device)
        optimizer = self.optimizer([p.data for p in part.parameters() if p.requires_grad], kept)
        return _Trained(data, optimizer, done, kept, part.train())

    def _windows(self, kept: Kept) -> int:
        """Return how many windows of the order's round a kept part has trained on."""
        step = kept.get("step", {})
        return int(step["windows"]) if step and int(step["round"]) == self.order.round else 0

    def _part(self, data: AlignedParty, top: int) -> SplitPart:
        party, config, classes = data.party, self.config, self.node.dataset.num_classes
        bottom = bottom_of(config, party.shape, party.name) if party.inputs else None
        if top < 0:
            return SplitPart(bottom, None)
        return SplitPart(bottom, top_of(config, config.vertical.cut * bool(party.inputs) + top, classes))

    def span(self, data: AlignedParty, window: int) -> tuple[np.ndarray, list[slice]]:
        """Return the rows of a window, and its batches as places among them."""
        rows = data.epoch(self.order.round)
        start, stop = windows(len(rows), self.config)[window]
        return rows[start:stop], batches(start, stop, len(rows), self.config)

    def seeded(self, client: str, window: int, batch: int) -> None:
        """Let dropout and the like draw the same for a batch whenever it is passed forward."""
        name = f"{client}/{window}/{batch}"
        seed = seeds.seed_for(self.config.seeds.train, seeds.TORCH, self.order.round, name)
        seed_drawing(seed, self.node.device)

    def embed(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Train on the last window's gradients, if they came, and send embeddings of the next rows."""
        order, window = self.order, self.window
        held, keep = self.opened(client), Kept()
        data = held.data
        if held.windows < window:
            gradients = torch.from_numpy(self.given(client, "gradients"))
            self.follow(held, client, gradients.to(self.node.device))
            held.windows = window
            keep = held.keep(order.round)
        count, width = order.rows["embeddings"]
        found = np.zeros((0, width), np.float32)
        if order.scalars["tests"]:
            held.part.eval()
            with torch.inference_mode():
                assert held.part.bottom is not None
                found = held.part.bottom(data.x(data.tests)).cpu().numpy()
        elif count:
            found = self.forward(held, client)
        numbers = {wire.NUM_EXAMPLES: float(len(data.rows))}
        return wire.ClientUpdate({"embeddings": {ROWS: found}, "digest": held.digest()}, numbers), keep

    def forward(self, held: _Trained, client: str) -> np.ndarray:
        """Return the embeddings of the window, batch after batch."""
        rows, spans = self.span(held.data, self.window)
        x, parts = held.data.x(rows), []
        assert held.part.bottom is not None
        with torch.no_grad():
            for i, span in enumerate(spans):
                self.seeded(client, self.window, i)
                parts.append(held.part.bottom(x[span]))
        found: np.ndarray = torch.cat(parts).cpu().numpy()
        return found

    def follow(self, held: _Trained, client: str, gradients: torch.Tensor) -> None:
        """Train a bottom on the gradients of the last window, Q times over."""
        last, vertical = self.window - 1, self.config.vertical
        rows, spans = self.span(held.data, last)
        x, bottom = held.data.x(rows), held.part.bottom
        assert bottom is not None
        for _ in range(vertical.local):
            for i, span in enumerate(spans):
                self.seeded(client, last, i)
                found = bottom(x[span])
                # Its gradient by A_k is G_k; passing G_k to autograd would import sympy, 3 s per process.
                total = (found * gradients[span]).sum()
                if vertical.nopeek:
                    total = total + vertical.nopeek * dcor(x[span].flatten(1), found)
                held.step(torch.autograd.grad(total, held.parameters), self.order.scalars["lr"])

    def label(self, client: str) -> tuple[wire.ClientUpdate, Kept]:
        """Train top and own bottom on a window, and send the gradients of the others' embeddings."""
        given = self.embeddings()
        self.window += 1  # the part will have trained on it
        held = self.opened(client, given.shape[1])
        if held.windows == self.window:
            answer = held.kept["answer"]
            numbers = {wire.NUM_EXAMPLES: len(given), TRAIN_LOSS.name: float(answer["loss"])}
            up = {"gradients": {ROWS: answer["gradients"]}, "digest": held.digest()}
            return wire.ClientUpdate(up, numbers), {}
        others, loss = torch.from_numpy(given).to(self.node.device), 0.0
        rows, spans = self.span(held.data, self.window - 1)
        x, y = held.data.x(rows), held.data.y(rows)
        back = torch.zeros_like(others)
        for turn in range(self.config.vertical.local):
            for i, span in enumerate(spans):
                self.seeded(client, self.window - 1, i)
                came = others[span].clone().requires_grad_()
                batch = self.node.task.each(held.part(x[span], came), y[span]).mean()
                total = batch
                if self.config.vertical.nopeek and held.part.bottom is not None:
                    own = held.part.bottom(x[span])
                    total = batch + self.config.vertical.nopeek * dcor(x[span].flatten(1), own)
                *steps, of_others = torch.autograd.grad(total, [*held.parameters, came], allow_unused=True)
                held.step(tuple(steps), self.order.scalars["lr"])
                if turn == 0:
                    loss += float(batch.detach()) * (span.stop - span.start)
                    if of_others is not None:
                        back[span] = defended(of_others, self.config.vertical)
        held.windows, loss = self.window, loss / len(rows)
        gradients = back.cpu().numpy()
        keep = held.keep(self.order.round)
        keep["answer"] = {"gradients": gradients, "loss": np.array(loss)}
        numbers = {wire.NUM_EXAMPLES: len(rows), TRAIN_LOSS.name: loss}
        return wire.ClientUpdate({"gradients": {ROWS: gradients}, "digest": held.digest()}, numbers), keep

    def score(self, client: str) -> wire.ClientUpdate:
        """Measure the whole model on the common test rows."""
        held = self.opened(client, self.embeddings().shape[1])
        data = held.data
        given = self.embeddings(data.tests)
        own = data.x(data.tests)
        joined = torch.cat([own.flatten(1), torch.from_numpy(given).to(own.device)], dim=1)
        return self.measured(_Joined(held.part, data.party.shape), joined, data.y(data.tests))


def embed_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Embed rows at the parties of an order, after a step along the gradients that came with it."""
    work = SplitWork(node, entry, order)
    return work.run(work.embed)


def train_labels(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Train on a window where the labels are."""
    work = SplitWork(node, entry, order)
    return work.run(work.label)


def score_rows(node: Node, entry: Algorithm, order: wire.TrainOrder) -> Iterator[Outcome]:
    """Measure the whole model where the labels are."""
    return each(order.clients, partial(SplitWork.score, SplitWork(node, entry, order)))
