"""The norm of each client's update, in ``clients.jsonl``."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import MODEL_UP, Scalar
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.refusals import hides_clients

NORM = Scalar("update-norm", "|w_k - w^t|, over the parameters that the client sends", required=False, low=0)


def _adds(_: Config, contract: Algorithm) -> Algorithm:
    return replace(contract, up_scalars=(*contract.up_scalars, NORM), stages=(*contract.stages, "norms"))


def _refuses(config: Config, entry: Algorithm) -> str:
    if why := hides_clients(config):
        return f'"norms": under "{why}" the server learns no client\'s own numbers; expected false; got true'
    sends = MODEL_UP.name in {record.name for record in entry.up}
    return "" if sends else f'"norms": the clients of "{entry.name}" send no model; expected false; got true'


FEATURE = Feature("norms", 140, lambda config, _: config.server.norms, _adds, refuses=_refuses)
