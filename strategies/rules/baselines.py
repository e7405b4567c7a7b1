"""Baselines without federated averaging, server half: local training only, and training on the pooled data.

Local-only: nothing goes up, and the server has no model. Centralised: one client trains on the data of all
(`task.catalogue.entry.Algorithm.pooled`), and its model is the next one: FedAvg of a cohort of one.

Local-only leaves the state alone:

>>> nothing = AggregatedReplies({}, ("a", "b"), np.array([1, 3]))
>>> server_update(ServerState({"w": np.array([1.0])}), nothing, Config())[0].arrays["w"]
array([1.])
"""

from strategies.engine.rule import Rule
from strategies.engine.state import AggregatedReplies, S, Updated
from strategies.rules.fedavg import server_update as fedavg_update
from task.config.knobs import Config


def server_update(state: S, reduced: AggregatedReplies, config: Config) -> Updated[S]:
    """Return the state as it is."""
    return state, {}


class LocalOnly(Rule, algorithm="local-only", update=server_update):
    """Rounds in which every client trains for itself."""


class Centralised(Rule, algorithm="centralised", update=fedavg_update):
    """Rounds in which one client trains on all clients' data."""
