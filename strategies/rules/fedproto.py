"""FedProto, server half. Tan et al., AAAI 2022, arXiv 2105.00243, Algorithm 1.

C^(j) = sum_i w_i^(j) C_i^(j) / sum_i w_i^(j), over the clients i of the round that have class j

=========  ================================  ======================  ======================================
symbol     variable                          shape, dtype            where
=========  ================================  ======================  ======================================
C^(j)      state.arrays ``features``         float32 [C, f]          server, down ``prototypes``
           state.arrays ``counts``           int64 [C]               the same: sum_i w_i^(j), 0 = none yet
w_i C_i    up ``prototypes``, ``features``   float32 [C, f]          wire, summed over clients
w_i        up ``prototypes``, ``counts``     int64 [C]               wire, summed over clients
=========  ================================  ======================  ======================================

The server has no model: its state is the table of prototypes, which is what a run's ``model.safetensors``
holds. w_i^(j) is the number of the client's examples of class j (``fedproto.weights = "examples"``, as in the
paper's text), or 1 (``"clients"``, as in the authors' code). Clients send w_i C_i, so that the server needs
sums only and a client without the class adds nothing. A class that no client of the round has keeps its
prototype.

Two clients with class 0, means 1 of one example and 4 of two; no client has class 1:

>>> sums = {"features": np.array([[1.0 + 8.0], [0.0]], np.float32), "counts": np.array([3, 0])}
>>> replies = AggregatedReplies({"prototypes": sums}, ("a", "b"), np.array([1, 2]))
>>> before = {"features": np.array([[0.0], [7.0]], np.float32), "counts": np.array([0, 5])}
>>> after, told = server_update(ServerState(before), replies, Config())
>>> after.arrays["features"].tolist(), after.arrays["counts"].tolist(), told
([[3.0], [7.0]], [3, 5], {'classes': 2})
"""

from dataclasses import replace

import numpy as np

from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.shared_table import SharedTable
from task.config.knobs import Config
from task.numerics.prototypes import COUNTS, FEATURES


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Take the means of the classes that clients have; keep the others' prototypes."""
    sums, counts = (reduced.arrays["prototypes"][name] for name in (FEATURES, COUNTS))
    has = counts > 0
    means = sums.astype(np.float64) / np.where(has, counts, 1)[:, None]
    features = np.where(has[:, None], means, state.arrays[FEATURES]).astype(np.float32)
    behind = np.where(has, counts, state.arrays[COUNTS])
    return replace(state, arrays={FEATURES: features, COUNTS: behind}), {"classes": int((behind > 0).sum())}


class FedProto(SharedTable, algorithm="fedproto", update=server_update):
    """Averages class prototypes; see `strategies.rules.fedproto`."""

    holds = (FEATURES, COUNTS)
