"""THE CATALOGUE: one entry per algorithm. Read this first.

An entry names the paper, the server rule (``strategies/``), the client half (``client_app/solvers/``)
and the contract between them: which array records and scalars go **down** with every training message,
which come **up**, how each upward record is reduced, and what the client **keeps** between rounds. It is
the registry, the privacy sheet (nothing else leaves a client), the source of the README's table and the
parameter list of the tests.

A downward record other than ``arrays`` is the field of that name of the rule's server state.

Every message also carries the common fields: down ``server-round``, ``run`` (the run's identity), ``lr``
(eta_t of this round) and, to nodes that host several clients, ``clients`` and ``epochs``; up
``num-examples`` (> 0) and ``train-loss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Holds = Literal["state", "trainable"]


@dataclass(frozen=True)
class ArrayField:
    """One array record of a message or of a client's kept state.

    Attributes:
        name: Name of the record on the wire.
        holds: Which arrays of the model: ``trainable`` (parameters) or ``state`` (and buffers).
        meaning: What the record is, with the paper's symbol. Dtypes are those of the model.
        reduce: How the server folds the clients' records: ``mean`` and ``sum`` are weighted by
            `Algorithm.weight`; ``stack`` keeps every client's. Unused for downward fields.
    """

    name: str
    holds: Holds
    meaning: str
    reduce: Literal["mean", "sum", "stack"] = "mean"


@dataclass(frozen=True)
class ScalarField:
    """One number of a message: name, meaning with unit, and whether a message without it is refused."""

    name: str
    meaning: str
    required: bool = True


@dataclass(frozen=True)
class Paper:
    """Where an algorithm comes from."""

    authors: str
    year: int
    title: str
    arxiv: str
    where: str  # algorithm or equation number in the paper


@dataclass(frozen=True)
class Algorithm:
    """One algorithm; see the module's docstring."""

    name: str
    title: str
    paper: Paper
    rule: str  # server half, key of strategies.STRATEGIES
    solver: str  # client half, key of client_app.solvers.SOLVERS
    down: tuple[ArrayField, ...]
    up: tuple[ArrayField, ...]
    down_scalars: tuple[ScalarField, ...] = ()
    up_scalars: tuple[ScalarField, ...] = ()
    keeps: tuple[ArrayField, ...] = ()
    before: Algorithm | None = None
    """Contract of an exchange with the same clients before the training of each round, if there is one."""

    weight: Literal["examples", "uniform"] = "examples"
    stacks: bool = True
    """Whether the solver can train several clients as one program; else each trains alone."""

    neutral: Mapping[str, bool | int | float | str] = field(default_factory=lambda: MappingProxyType({}))
    """Run-config keys at whose values the algorithm is FedAvg."""


MODEL_DOWN = ArrayField("arrays", "state", "global model w^t")
MODEL_UP = ArrayField("arrays", "state", "local model w_k after local training", "mean")

NUM_EXAMPLES = ScalarField("num-examples", "n_k, training examples of the client")
TRAIN_LOSS = ScalarField("train-loss", "mean loss over the examples as they were trained on", False)

_MCMAHAN = Paper(
    "McMahan, Moore, Ramage, Hampson, Agüera y Arcas",
    2017,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    "1602.05629",
    "Algorithm 1",
)

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": Algorithm(
        name="fedavg",
        title="FedAvg",
        paper=_MCMAHAN,
        rule="fedavg",
        solver="sgd",
        down=(MODEL_DOWN,),
        up=(MODEL_UP,),
    ),
    "fedprox": Algorithm(
        name="fedprox",
        title="FedProx",
        paper=Paper(
            "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith",
            2020,
            "Federated Optimization in Heterogeneous Networks",
            "1812.06127",
            "Algorithm 2",
        ),
        rule="fedprox",
        solver="fedprox",
        down=(MODEL_DOWN,),
        up=(MODEL_UP,),
        down_scalars=(ScalarField("proximal-mu", "mu of the proximal term mu/2 |w - w^t|^2"),),
        up_scalars=(
            ScalarField("gamma", "gamma_k^t, inexactness |grad h(w_k; w^t)| / |grad F_k(w^t)|", False),
            ScalarField("loss-before", "F_k(w^t), mean loss of the received model", False),
        ),
        neutral=MappingProxyType({"fedprox.mu": 0.0}),
    ),
    "fedsgd": Algorithm(
        name="fedsgd",
        title="FedSGD",
        paper=_MCMAHAN,
        rule="fedsgd",
        solver="fedsgd",
        down=(MODEL_DOWN,),
        up=(ArrayField("gradient", "trainable", "g_k, full-batch gradient of F_k at w^t", "mean"),),
        neutral=MappingProxyType({"local-epochs": 1, "batch-size": 0}),
    ),
}


def evaluation_of(entry: Algorithm) -> Algorithm:
    """Return the contract of the entry's evaluation messages: the model down, metrics up, nothing kept."""
    return replace(entry, down=(MODEL_DOWN,), down_scalars=(), up=(), up_scalars=(), keeps=())
