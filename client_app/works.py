"""Table of the work that a node can do for a message's clients, by the contract's ``work``.

The modules of `client_app.classical` declare theirs as ``WORK``, and as ``TERMS`` what is checked before.
"""

from collections.abc import Callable, Iterable

from client_app.data.node import Node
from client_app.own_models import adapt_clients, evaluate_clients, send_own_models
from client_app.stages.columns import sum_columns
from client_app.stages.loss import query_clients
from client_app.stages.stage import Outcome
from client_app.vertical.align import align_parties
from client_app.vertical.boosting import run_trees
from client_app.vertical.logistic import run_logistic
from client_app.vertical.training import embed_rows, score_rows, train_labels
from client_app.work import train_clients
from task.catalogue.declared import declared_in
from task.catalogue.entry import Algorithm
from task.wire import messages as wire

Work = Callable[[Node, Algorithm, wire.TrainOrder], Iterable[Outcome]]
WORK: dict[str, Work] = {
    "train": train_clients,
    "evaluate": evaluate_clients,
    "loss": query_clients,
    "columns": sum_columns,
    "adapt": adapt_clients,
    "own": send_own_models,
    **declared_in("WORK", "client_app.classical"),
    **dict.fromkeys(("points", "mask", "match"), align_parties),
    "embed": embed_rows,
    "label": train_labels,
    "score": score_rows,
    **dict.fromkeys(("residuals", "products", "open", "finish", "scores", "tally"), run_logistic),
    **dict.fromkeys(
        ("bins", "gradients", "histograms", "search", "divide", "grow", "close", "weigh"), run_trees
    ),
}
# What a node checks before it registers: reasons that a masked answer could not give.
TERMS: dict[str, Callable[[Node], None]] = declared_in("TERMS", "client_app.classical")
