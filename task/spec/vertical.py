"""The catalogue's third part: parties that hold other columns of the same people, one of them the labels.

No weights are averaged: each party has a net of its own, and embeddings and gradients of single rows travel.
What every record is and where it goes stands in `strategies.rules.splitnn`.
"""

from task.spec.entry import Algorithm
from task.spec.papers import paper
from task.spec.record import FREE, Layout, Record, Scalar

NUMBERS, BYTES, PLACES = Layout("rows", "float32"), Layout("rows", "uint8"), Layout("rows", "int32")
_SPLITNN = paper("1812.00564")
_POINTS = "a point of Curve25519 for each id and some for none, as 32 bytes, shuffled and masked"
POINTS = Record("points", BYTES, f"{_POINTS} by the party", "collect", of="row")
GIVEN = Record("points", BYTES, f"{_POINTS} by others, to be masked by this party too", to="each")
POSITIONS = Record("positions", PLACES, "places of the common rows among the party's own points", to="each")
EMBEDDINGS = Record("embeddings", NUMBERS, "A_k = f_k(X_k) of the window's rows", "collect", of="row")
JOINT = Record("embeddings", NUMBERS, "A_k of the window's rows, side by side in the order of the names")
GRADIENTS = Record("gradients", NUMBERS, "G_k = dL/dA_k, of the parties side by side", "collect", of="row")
OWN_GRADIENTS = Record("gradients", NUMBERS, "G_k = dL/dA_k of the last window's rows", to="each")
DIGEST = Record("digest", BYTES, "SHA-256 of the part of the model that stays at the party", "collect")

PART = Record("part", FREE, "theta_k, the party's bottom model; where the labels are, the top model too")
VELOCITY = Record("velocity", FREE, "momentum of its parameters")
STEP = Record("step", FREE, "the round, and how many of its windows the part has trained on")
ANSWER = Record("answer", FREE, "the gradients of the last window, for a message that comes twice")
SECRET = Record("secret", FREE, "the exponent and the points' order, until the rows are known", scope="start")
ALIGNED = Record("aligned", FREE, "the party's rows that all have, in the common order", scope="start")

_SESSION = Scalar("session", "which start of the run this is")
_WINDOW = Scalar("window", "how many windows of the round the part has trained on by then")


def _step(title: str, **fields: object) -> Algorithm:
    """Return the contract of one of the phases."""
    return Algorithm("splitnn", title, _SPLITNN, weight="uniform", vertical=True, **fields)  # type: ignore[arg-type]


_LABELS = Scalar("labels", "1 if the party has them, else 0", low=0, high=1, whole=True, reduce="collect")
_COLUMNS = Scalar(
    "columns", "p_k, inputs of the party's bottom model", low=0, high=2.0**31, whole=True, reduce="collect"
)
_PHASES = {
    "points": _step(
        "SplitNN, the parties' ids as masked points", work="points", down=(), up=(POINTS,),
        down_scalars=(_SESSION,), up_scalars=(_LABELS, _COLUMNS), keeps=(SECRET, ALIGNED),
    ),
    "mask": _step(
        "SplitNN, points masked once more", work="mask", down=(GIVEN,), up=(POINTS,),
        down_scalars=(_SESSION,), keeps=(SECRET, ALIGNED),
    ),
    "match": _step(
        "SplitNN, the common rows", work="match", down=(POSITIONS,), up=(),
        down_scalars=(_SESSION,), keeps=(SECRET, ALIGNED),
    ),
    "embed": _step(
        "SplitNN, bottom models", work="embed", down=(OWN_GRADIENTS,), up=(EMBEDDINGS, DIGEST),
        down_scalars=(_WINDOW, Scalar("tests", "1 if the rows are those of the test, else 0")),
        keeps=(PART, VELOCITY, STEP, ALIGNED),
    ),
}  # fmt: skip

VERTICAL = (
    Algorithm(
        "splitnn", "SplitNN", _SPLITNN,
        about="Parties with other columns of the same people train one model that is cut between them.",
        group="vertical",
        work="label",
        phases=_PHASES,
        down=(JOINT,),
        up=(GRADIENTS, DIGEST),
        down_scalars=(_WINDOW,),
        keeps=(PART, VELOCITY, STEP, ANSWER, ALIGNED),
        evaluation=(JOINT,),
        weight="uniform",
        private="all",
        personal=True,
        vertical=True,
        batched=False,
        sgd_only="parties keep the velocity of SGD from exchange to exchange, and no other optimizer's state",
        unclipped="no party has the gradient of the whole model, of which the norm is",
        newcomer="bottom and top models that the run's seed and the party's name draw",
        no_neutral="no two parties have the same columns, and no weights are averaged",
    ),
)  # fmt: skip
