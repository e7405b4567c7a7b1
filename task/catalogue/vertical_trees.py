"""The catalogue's part of trees over parties with other columns of the same people, one of them the labels.

What every record is and where it goes stands in `strategies.rules.secureboost`.
"""

from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.papers import paper
from task.catalogue.record import FREE, Record, Scalar
from task.catalogue.vertical import (
    ALIGNED,
    BYTES,
    DIGEST,
    KEY,
    OTHER_PROOFS,
    PLACES,
    PROOF,
    alignment_of,
    over_parties,
    step_of,
)

_CHENG = paper("1901.08755", "Algorithms 1 and 2, with XGBoost's handling of missing values and ties")
_NAME, _TITLE = "secureboost", "SecureBoost"
_CIPHERS = "ciphertexts of g and h of the training rows under the key of the party with the labels"
_HISTOGRAMS = "ciphertexts of the sums of g, h and 1 by column and bin of the nodes asked for"
_BINS = "number of cuts of each column"
_SPLITS = "by node that is split, its number and the party's column, cut and default direction by theirs"
_ASKED = "nodes whose sums are asked for next"
_SIDES = "whether a common row goes left (1) or right (2) in a node that the party's column splits, else 0"
CIPHERS = Record("ciphers", BYTES, _CIPHERS, "collect", of="row")
MODULI = Record("moduli", BYTES, "n_L, the public key", "collect")
HISTOGRAMS = Record("histograms", BYTES, _HISTOGRAMS, "collect", of="row")
BINS = Record("bins", PLACES, _BINS, "collect", of="all")
SPLITS = Record("splits", PLACES, f"{_SPLITS}, for each other party", "collect", of="all")
ASKED = Record("asked", PLACES, _ASKED, "collect", of="all")
SIDES = Record("sides", BYTES, _SIDES, "collect", of="row")
OTHER_CIPHERS = Record("ciphers", BYTES, _CIPHERS, to="each")
OTHER_MODULI = Record("moduli", BYTES, "n_L, the public key", to="each")
OTHER_HISTOGRAMS = Record("histograms", BYTES, f"{_HISTOGRAMS}, of all others", to="each")
OTHER_BINS = Record("bins", PLACES, f"{_BINS}, of all others", to="each")
OWN_SPLITS = Record("splits", PLACES, f"{_SPLITS}; of another party's split only the node", to="each")
OTHER_ASKED = Record("asked", PLACES, _ASKED, to="each")
DIRECTIONS = Record("directions", BYTES, f"{_SIDES}, of all others, in the last step", to="each")

TREES = Record("part", FREE, "trees, or which of the party's columns and cuts split which of their nodes")
MARGINS = Record("margins", FREE, "where the labels are, the trees' sums for the common rows")
ROUND = Record("step", FREE, "the round")
OPEN = Record("open", FREE, "the tree that grows: where the rows are, and the sums so far", scope="round")

_STEP = Scalar("step", "how many times the tree has been split by then")
_LABEL = Scalar("label", "which of the parties, in the order of their names, has the labels")
_SPLIT = Scalar(
    "splits", "nodes that are split in the step", low=0, high=2.0**20, whole=True, reduce="collect"
)
_NEXT = Scalar(
    "asked", "nodes whose sums are asked for next", low=0, high=2.0**20, whole=True, reduce="collect"
)
_HELD_OUT = Scalar("held-out-loss", "loss of the rows held out", required=False, low=0, reduce="collect")
_ENDED = Scalar(
    "ended", "1 = further trees no longer help", required=False, low=0, high=1, whole=True, reduce="collect"
)
_DRAWN = ("gbdt.subsample", "gbdt.colsample", "gbdt.held-out", "gbdt.patience")
_OF_TREE, _OF_MODEL = (OPEN, ALIGNED), (TREES, ROUND, OPEN, ALIGNED)
_OF_LABEL = (TREES, MARGINS, ROUND, OPEN, KEY, ALIGNED)


def _step(title: str, work: str, **fields: Any) -> Algorithm:
    return step_of(_NAME, _CHENG, f"{_TITLE}, {title}", work, **fields)


_PHASES = {
    **alignment_of(_NAME, _TITLE, _CHENG),
    "bins": _step(
        "bins of the columns", "bins", down=(), up=(BINS,),
        down_scalars=(_STEP,), keeps=(ALIGNED,),
    ),
    "gradients": _step(
        "encrypted gradients of a new tree", "gradients", down=(), up=(CIPHERS, MODULI, PROOF),
        down_scalars=(_STEP, _LABEL), keeps=_OF_LABEL,
    ),
    "histograms": _step(
        "encrypted sums by column and bin", "histograms",
        down=(OTHER_CIPHERS, OTHER_MODULI, DIRECTIONS, OTHER_PROOFS), up=(HISTOGRAMS, PROOF),
        down_scalars=(_STEP, _LABEL), keeps=_OF_TREE,
    ),
    "search": _step(
        "split search", "search", down=(OTHER_HISTOGRAMS, OTHER_BINS, DIRECTIONS, OTHER_PROOFS),
        up=(SPLITS, ASKED, SIDES, PROOF), up_scalars=(_SPLIT, _NEXT),
        down_scalars=(_STEP, _LABEL), keeps=(OPEN, KEY, ALIGNED),
    ),
    "divide": _step(
        "directions of rows", "divide", down=(OWN_SPLITS, OTHER_ASKED, OTHER_PROOFS), up=(SIDES, PROOF),
        down_scalars=(_STEP, _LABEL), keeps=_OF_TREE,
    ),
    "close": _step(
        "the end of a tree", "close", down=(), up=(DIGEST,), down_scalars=(_STEP, _LABEL), keeps=_OF_MODEL
    ),
}  # fmt: skip

ENTRIES = (
    over_parties(
        _NAME, _TITLE, _CHENG,
        about="Parties with different columns of the same people grow boosted trees on ciphertexts.",
        differs="Bins have the columns' own order, by which ties are broken, as their sums would show it in "
        "any other; sums and splits are those of one table to the bit; g and h share a ciphertext.",
        reads=("vertical.", "vertical.key-bits", "gbdt.", *_DRAWN),
        fixed_model=True,
        work="grow",
        measuring="weigh",
        phases=_PHASES,
        down=(DIRECTIONS, OTHER_BINS, OTHER_PROOFS),
        up=(DIGEST,),
        up_scalars=(_HELD_OUT, _ENDED),
        down_scalars=(_STEP, _LABEL),
        keeps=_OF_LABEL,
        evaluation=(),
        steps=False,
        sgd_only="trees are grown, without an optimizer",
        unclipped="no party has the gradient of a model, whose norm is clipped",
        newcomer="no trees",
        missing_values=True,
    ),
)  # fmt: skip
