"""The catalogue's third part: parties that hold other columns of the same people, one of them the labels.

No weights are averaged: each party has a net of its own, and embeddings and gradients of single rows travel.
What every record is and where it goes stands in `strategies.rules.splitnn`.
"""

from functools import partial
from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.papers import Paper, paper
from task.catalogue.record import FREE, Layout, Record, Scalar

NUMBERS, BYTES, PLACES = Layout("rows", "float32"), Layout("rows", "uint8"), Layout("rows", "int32")
_SPLITNN, _HARDY = paper("1812.00564"), paper("1711.10677")
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


_CIPHERS = "ciphertexts of a batch's r_k under party k's key, an integer of vertical.key-bits times 2 each"
_PRODUCTS = "packs of X_j^T r_k and a mask, under party k's key"
_OPENED = "the same decrypted, which is uniform without the mask"
_MODULI = "n_k, the public key"
RESIDUALS = Record("residuals", BYTES, _CIPHERS, "collect", of="row")
OTHER_RESIDUALS = Record("residuals", BYTES, _CIPHERS + ", of all others", to="each")
MODULI = Record("moduli", BYTES, _MODULI, "collect")
OTHER_MODULI = Record("moduli", BYTES, _MODULI + ", of all others", to="each")
PRODUCTS = Record("products", BYTES, _PRODUCTS + ", for each other k", "collect", of="batch")
SEALED = Record("products", BYTES, _PRODUCTS + ", from each other j", to="each")
OPENED = Record("opened", BYTES, _OPENED + ", for each other j", "collect", of="batch")
SUMS_OPENED = Record("opened", BYTES, _OPENED + ", of the last batch, from each other k", to="each")
_PROOFS = "certificate and signatures that say whose this record is (`task.vertical.proofs`)"
PROOF = Record("proof", BYTES, _PROOFS, "collect")
PROOFS = Record("proofs", BYTES, f"{_PROOFS}, for each other party", "collect")
OTHER_PROOFS = Record("proofs", BYTES, f"{_PROOFS}, of all others", to="each")
SCORES = Record("embeddings", NUMBERS, "u_k = X_k w_k of the test rows", "collect", of="row")
JOINT_SCORES = Record("embeddings", NUMBERS, "u_k of the test rows, side by side in the order of the names")
KEY = Record("key", FREE, "the primes p and q, and what masks follow from; new at each start", scope="start")
ASKED = Record("asked", FREE, "the SHA-256 of what was multiplied last, and under which moduli")


def step_of(name: str, source: Paper, title: str, work: str, **fields: Any) -> Algorithm:
    """Return the contract of a phase of an algorithm over parties."""
    return Algorithm(name, title, source, work=work, weight="uniform", vertical=True, **fields)


_step = partial(step_of, "splitnn", _SPLITNN)
_encrypted = partial(step_of, "vertical-logistic", _HARDY)


_LABELS = Scalar("labels", "1 if the party has them, else 0", low=0, high=1, whole=True, reduce="collect")
_COLUMNS = Scalar(
    "columns", "p_k, inputs of the party's bottom model", low=0, high=2.0**31, whole=True, reduce="collect"
)
_HOP = Scalar("hop", "how many parties have masked the points by then")


def alignment_of(name: str, title: str, source: Paper) -> dict[str, Algorithm]:
    """Return the phases before round 1 of an algorithm over parties."""

    def phase(what: str, **fields: Any) -> Algorithm:
        return step_of(name, source, f"{title}, {what}", keeps=(SECRET, ALIGNED), **fields)

    return {
        "points": phase(
            "the parties' ids as masked points", work="points", down=(), up=(POINTS, PROOF),
            down_scalars=(_SESSION,), up_scalars=(_LABELS, _COLUMNS),
        ),
        "mask": phase(
            "points masked once more", work="mask", down=(GIVEN, OTHER_PROOFS), up=(POINTS, PROOF),
            down_scalars=(_SESSION, _HOP),
        ),
        "match": phase(
            "the common rows", work="match", down=(POSITIONS,), up=(), down_scalars=(_SESSION,)
        ),
    }  # fmt: skip


_PHASES = {
    **alignment_of("splitnn", "SplitNN", _SPLITNN),
    "embed": _step(
        "SplitNN, bottom models", work="embed", down=(OWN_GRADIENTS,), up=(EMBEDDINGS, DIGEST),
        down_scalars=(_WINDOW, Scalar("tests", "1 if the rows are those of the test, else 0")),
        keeps=(PART, VELOCITY, STEP, ALIGNED),
    ),
}  # fmt: skip


def over_parties(name: str, title: str, source: Paper, **fields: Any) -> Algorithm:
    """Return the contract of an algorithm over parties, each with a part of the model of its own."""
    return Algorithm(
        name, title, source,
        group="vertical",
        weight="uniform",
        private="all",
        personal=True,
        vertical=True,
        batched=False,
        no_neutral="no two parties have the same columns, and no weights are averaged",
        **fields,
    )  # fmt: skip


_LINEAR = (PART, VELOCITY, STEP, ASKED, KEY, ALIGNED)
_LOGISTIC = {
    **alignment_of("vertical-logistic", "Vertical logistic regression", _HARDY),
    "residuals": _encrypted(
        "Vertical logistic regression, residuals", "residuals", down=(SUMS_OPENED, OTHER_PROOFS),
        up=(RESIDUALS, MODULI, PROOF),
        down_scalars=(_WINDOW,), keeps=_LINEAR,
    ),
    "products": _encrypted(
        "Vertical logistic regression, products", "products",
        down=(OTHER_RESIDUALS, OTHER_MODULI, OTHER_PROOFS), up=(PRODUCTS, PROOFS), down_scalars=(_WINDOW,),
        keeps=_LINEAR,
    ),
    "open": _encrypted(
        "Vertical logistic regression, decryption", "open", down=(SEALED, OTHER_PROOFS), up=(OPENED, PROOFS),
        down_scalars=(_WINDOW,), keeps=_LINEAR,
    ),
    "scores": _encrypted(
        "Vertical logistic regression, scores of the test rows", "scores", down=(), up=(SCORES,),
        down_scalars=(_WINDOW,), keeps=_LINEAR,
    ),
}  # fmt: skip

ENTRIES = (
    over_parties(
        "splitnn", "SplitNN", _SPLITNN,
        about="Parties with different columns of the same people train one model that is split among them.",
        reads=(
            "vertical.",
            "vertical.cut",
            "vertical.hidden",
            "vertical.window",
            "vertical.local",
            "vertical.defence",
            "vertical.noise",
            "vertical.nopeek",
            "vertical.standardise",
        ),
        work="label",
        measuring="score",
        phases=_PHASES,
        down=(JOINT,),
        up=(GRADIENTS, DIGEST),
        down_scalars=(_WINDOW,),
        keeps=(PART, VELOCITY, STEP, ANSWER, ALIGNED),
        evaluation=(JOINT,),
        sgd_only="parties keep the velocity of SGD from exchange to exchange, and no other optimizer's state",
        unclipped="no party has the gradient of the whole model, whose norm is clipped",
        newcomer="bottom and top models drawn from the run's seed and the party's name",
    ),
    over_parties(
        "vertical-logistic", "Vertical logistic regression", _HARDY,
        about="Parties with different columns of the same people train logistic regression on ciphertexts.",
        reads=("vertical.", "vertical.key-bits", "vertical.standardise"),
        fixed_model=True,
        work="finish",
        measuring="tally",
        phases=_LOGISTIC,
        down=(SUMS_OPENED, OTHER_PROOFS),
        up=(DIGEST,),
        down_scalars=(_WINDOW,),
        keeps=_LINEAR,
        evaluation=(JOINT_SCORES,),
        sgd_only="parties keep the velocity of SGD from step to step, and no other optimizer's state",
        unclipped="no party has the gradient of the whole model, whose norm is clipped",
        newcomer="weights of zero",
    ),
)  # fmt: skip
