"""The catalogue's rules that weigh clients by their losses, so that none is left behind.

See `task.catalogue.algorithms`, where q-FedAvg and q-FedSGD stand.
"""

from dataclasses import replace
from functools import partial

from task.catalogue.entry import Algorithm
from task.catalogue.papers import paper
from task.catalogue.record import MODEL_UP, Scalar

LOSS_BEFORE = Scalar("loss-before", "F_k(w^t), mean loss of the received model", low=0)
_fair = partial(
    Algorithm,
    group="fair",
    solver="loss-before",
    up=(replace(MODEL_UP, reduce="collect"),),
    up_scalars=(replace(LOSS_BEFORE, reduce="collect"),),
)

ENTRIES = (
    _fair(
        "afl", "AFL", paper("1902.00146", "section 4"),
        about="Learns the mixture of clients with the largest loss, and trains for that mixture.",
        neutral={"afl.lambda-lr": 0.0},
        converges=False,
        biased="it is a game for the largest loss of a mixture of the clients, which circles at fixed steps",
    ),
    _fair(
        "term", "TERM", paper("2007.01162", "Algorithm 2"),
        about="Weights each client by e^(t loss): up for fairness, or down against outliers.",
        weight="uniform",
        neutral={"term.t": 0.0},
        equal_sizes=True,
        biased="it minimises the logarithm of a mean of exponentials of the clients' losses",
    ),
)  # fmt: skip
