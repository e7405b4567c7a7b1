"""The catalogue's part of boosted trees that clients grow with XGBoost, each from its own rows."""

from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.exact_sums import numbers, question, sums
from task.catalogue.papers import paper
from task.catalogue.record import Layout, Record

BASE_SUMS, TREES, BASE, NEW = "base-sums", "trees", "base", "new-trees"  # names of the records
_CHEN = paper("10.1145/2939672.2939785", "Section 2")
_BAGGING = replace(_CHEN, where="Section 2; joined as by Flower's FedXgbBagging")
_CYCLIC = replace(_CHEN, where="Section 2; in turns as in Flower's FedXgbCyclic")
_NODES = Layout("rows", "int32")  # `task.trees.packed`
# How a model of trees goes down, of whichever algorithm.
MODEL = (
    Record(TREES, _NODES, "nodes of trees: all so far, or those that a client may lack"),
    numbers(BASE, "margins before the first tree"),
)
_NEW = Record(NEW, _NODES, "nodes of the trees that the client has grown in the round", "collect")


def _entry(name: str, title: str, about: str, differs: str, reads: tuple[str, ...]) -> Algorithm:
    opening = question(
        name, f"{title}, base", _CHEN, "trees", (),
        sums(BASE_SUMS, "rows, and the sum of the target or the rows of each class"),
    )  # fmt: skip
    return Algorithm(
        name,
        title,
        _CYCLIC if "cyclic" in name else _BAGGING,
        about=about,
        differs=differs,
        down=MODEL,
        up=(_NEW,),
        phases={"opening": opening},
        evaluation=MODEL,
        work="trees",
        measuring="tree-test",
        weight="uniform",
        batched=False,
        fixed_model=True,
        statistics=True,
        missing_values=True,
        tested="always",
        group="trees",
        reads=reads,
        example='xgb.columns="age(0..120), sex(Female|Male)" xgb.target="ill(no|yes)"',
        no_neutral="it grows trees, so that it is never FedAvg",
        biased="each client's trees follow its own rows alone, so that the result depends on the partition",
    )


ENTRIES = (
    _entry(
        "xgb-bagging",
        "XGBoost, bagging",
        "Each round every client grows trees with XGBoost on top of the model, and all of them join it.",
        "Trees join in the order of client names, with their classes; the base margins are of all rows.",
        ("xgb.",),
    ),
    _entry(
        "xgb-cyclic",
        "XGBoost, in turns",
        "Each round one client grows trees with XGBoost on top of the model, and the next client goes on.",
        "The order is that of client names, or drawn by seed; a turn that is lost passes to the next client.",
        ("xgb.", "xgb.order"),
    ),
)
