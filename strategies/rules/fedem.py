"""FedEM, server half. Marfoq, Neglia, Bellet, Kameni and Vidal, NeurIPS 2021, arXiv 2108.10252, Algorithm 1.

theta_m <- sum_k (n_k / n_S) theta_km, for each component m, over the round's clients

=========  ============================  ==================  ======================
symbol     variable                      shape, dtype        where
=========  ============================  ==================  ======================
theta_m    state.models, see `several`   as the model        server, down ``model-m``
theta_km   up ``model-m``                as the model        wire
M          ``fedem.components``          >= 1                run config
=========  ============================  ==================  ======================

Each component is averaged as FedAvg's model is, by the engine. (The authors' code averages all clients',
those that were not selected with the model that they got, which is a damped step.) ``arrays``, which a
central evaluation measures, is the first component: only a client knows how to mix them.

>>> state = SeveralState({"w": np.array([0.0])}, {"model-0/w": np.array([0.0])})
>>> replies = AggregatedReplies({"model-0": {"w": np.array([2.0])}}, ("a",), np.array([1]))
>>> server_update(state, replies, Config())[0].models
{'model-0/w': array([2.])}
"""

from dataclasses import replace

from strategies.engine.state import AggregatedReplies, Updated
from strategies.rules.several import SeveralModels, SeveralState
from task.catalogue.several import model_name
from task.config.knobs import Config
from task.numerics.arrays import flattened


def server_update(state: SeveralState, reduced: AggregatedReplies, config: Config) -> Updated[SeveralState]:
    """Replace each component by the weighted mean of the clients'."""
    models = flattened(reduced.arrays)
    return replace(state, arrays=reduced.arrays[model_name(0)], models=models), {}


class FedEM(SeveralModels, algorithm="fedem", update=server_update):
    """Federated expectation maximisation; see `strategies.rules.fedem`."""

    def count(self) -> int:
        """Return M."""
        return self.config.fedem.components
