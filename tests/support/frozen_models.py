"""Models with a frozen part, as users bring them: BERT's shape with low-rank factors, and small nets.

Frozen values are multiples of 2^-20, which the exact mean leaves as they are; so a run whose frozen part
travels has the same bytes.
"""

from __future__ import annotations

import torch
from torch import nn

WORDS, PLACES = 60, 6


def on_grid(model: nn.Module) -> nn.Module:
    """Round a module's parameters to multiples of 2^-20, and freeze them."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p * 2**20).round() / 2**20 + 0.0)
    return model.requires_grad_(False)


class LowRank(nn.Module):
    """W x + B A x, of which W is frozen."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = on_grid(nn.Linear(inputs, outputs))
        self.lora_A, self.lora_B = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x) + self.lora_B(self.lora_A(x))
        return out


class Attention(nn.Module):
    """A block with factors in its queries and values."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__()
        self.query, self.value = LowRank(size, size, rank), LowRank(size, size, rank)
        self.key, self.out = on_grid(nn.Linear(size, size)), on_grid(nn.Linear(size, size))
        self.norm = on_grid(nn.LayerNorm(size))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        q, k, v = (m(h).unflatten(-1, (2, -1)).transpose(1, 2) for m in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.norm(h + self.out(mixed))
        return out


class Bert(nn.Module):
    """Words, two blocks of 128 with factors of rank 4 in queries and values, and a head.

    Numbers that are trained: 2 * 2 * 2 * 4 * 128 + 128 classes + classes.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.words = on_grid(nn.Embedding(WORDS, 128))
        self.register_buffer("places", torch.arange(64))
        self.blocks = nn.ModuleList([Attention(128, 4), Attention(128, 4)])
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(ids(x.flatten(1)))
        for block in self.blocks:
            h = block(h)
        out: torch.Tensor = self.classifier(h.mean(1))
        return out


def ids(x: torch.Tensor) -> torch.Tensor:
    """Return ids of words for made-up numbers."""
    return (x.abs() * 20).long().clamp(max=WORDS - 1)


class Net(nn.Module):
    """A frozen body and a constant, two layers that are trained."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = on_grid(nn.Linear(input_shape[0], 8))
        self.mid, self.head = nn.Linear(8, 8), nn.Linear(8, num_classes)
        self.register_buffer("const", torch.tensor([0.5, 2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.body(x)) * self.const[0]
        out: torch.Tensor = self.head(torch.relu(self.mid(h)))
        return out


class Odd(Net):
    """A `Net` with frozen values that the exact mean would change."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        with torch.no_grad():
            self.body.weight[0, :3] = torch.tensor([1e-9, -0.0, 2.0**-52])


class Constant(nn.Module):
    """A `Net` whose body is a constant of its code, so that there is nothing frozen: the oracle."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        whole = Net(input_shape, num_classes)
        self.mid, self.head, self.fixed = whole.mid, whole.head, [whole.body, whole.const]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        body, const = self.fixed
        out: torch.Tensor = self.head(torch.relu(self.mid(torch.relu(body(x)) * const[0])))
        return out


class Normed(Net):
    """A `Net` with batch normalisation whose weight and bias are frozen: its statistics move."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.body = nn.Sequential(self.body, nn.BatchNorm1d(8).requires_grad_(False))


class Quiet(Normed):
    """A `Normed` whose body stays in evaluation mode."""

    def train(self, mode: bool = True) -> Quiet:
        super().train(mode)
        self.body.eval()
        return self


class Half(Net):
    """A `Net` whose body has 16 bits."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(input_shape, num_classes)
        self.body = self.body.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.body(x.bfloat16())).float()
        out: torch.Tensor = self.head(torch.relu(self.mid(h)))
        return out


class Late(Net):
    """A `Net` with a buffer that moves only in batches of more than two examples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > 2:
            self.const += 1
        return super().forward(x)


class Tied(nn.Module):
    """A model of language shapes whose head is its embedding, all of it trained."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.classifier = nn.Linear(WORDS, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.body(self.words(ids(x)).mean(1)))
        out: torch.Tensor = self.classifier(self.head(h))
        return out
