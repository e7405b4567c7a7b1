"""The mean of each client's weights of adaptive local aggregation, in ``clients.jsonl`` and the report."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import Scalar
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.refusals import hides_clients

WEIGHT = Scalar(
    "ala-weight",
    "mean of W_i: 1 = the layers of the global model, 0 = its own",
    required=False,
    low=0,
    high=1,
)


def _adds(_: Config, contract: Algorithm) -> Algorithm:
    return replace(contract, up_scalars=(*contract.up_scalars, WEIGHT))


def _refuses(config: Config, _: Algorithm) -> str:
    why = hides_clients(config)
    return (
        f'"fedala.write-weights": under "{why}" the server learns no client\'s own numbers; expected false; '
        "got true"
        if why
        else ""
    )


FEATURE = Feature("ala_weights", 141, lambda config, _: config.fedala.write_weights, _adds, refuses=_refuses)
