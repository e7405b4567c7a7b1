"""FedMD, server half. Li and Wang 2019, arXiv 1910.03581, Algorithm 1.

f~(x) = (1/m) sum_k f_k(x), for each public example x

======  ===========================  ==================  ===========================================
symbol  variable                     shape, dtype        where
======  ===========================  ==================  ===========================================
f_k     up ``logits``                float32 [P, C]      wire, summed over clients
m       up ``logits``, ``clients``   int64 [1]           wire, 1 of each client, summed
f~      state.arrays ``logits``      float32 [P, C]      server, down ``consensus``; ``clients`` is m
======  ===========================  ==================  ===========================================

These are the paper's steps Aggregate and Distribute. The server has no model, and reads no public example.

>>> sums = {"logits": np.array([[3.0, -1.0]], np.float32), "clients": np.array([2])}
>>> replies = AggregatedReplies({"logits": sums}, ("a", "b"), np.array([1, 2]))
>>> server_update(ServerState({"logits": np.zeros((1, 2))}), replies, Config())[0].arrays["logits"].tolist()
[[1.5, -0.5]]
"""

from dataclasses import replace

import numpy as np

from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.shared_table import SharedTable
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take the mean of the clients' logits, rounded once from float64."""
    sums, clients = reduced.arrays["logits"]["logits"], reduced.arrays["logits"]["clients"]
    mean = sums.astype(np.float64) / max(int(clients[0]), 1)
    return replace(state, arrays={"logits": mean.astype(np.float32), "clients": clients}), {}


class FedMD(SharedTable, algorithm="fedmd", update=server_update):
    """Averages logits of public examples; see `strategies.rules.fedmd`."""

    holds = ("logits", "clients")
