"""The catalogue's part of gradient-boosted trees: what goes up are histograms over rows, as exact sums.

What the rows of each record are stands in `task.trees.orders`, and what follows from the sums in
`strategies.rules.gbdt`.
"""

from task.catalogue.exact_sums import analysis, numbers, question, sums
from task.catalogue.papers import paper
from task.catalogue.xgb import MODEL

BASE, COUNTS, HISTOGRAMS, LOSSES = "base-sums", "value-counts", "histograms", "loss-sums"  # names of records
PIVOTS, KNOWN, CUTS, ASKED, COLUMNS = "pivots", "known", "cuts", "asked-nodes", "drawn-columns"
_CHEN = paper("10.1145/2939672.2939785", "Algorithms 1 and 3, with exact quantiles and bins")
_TITLE = "Gradient-boosted trees"
_TREES = (
    numbers(KNOWN, "the round, how many trees no longer grow, and a digest of the trees that clients have"),
    numbers(CUTS, "cuts of columns"),
    *MODEL,
    numbers(ASKED, "nodes whose histograms are asked for"),
    numbers(COLUMNS, "columns that the round's trees may split"),
)
# Keys of the section that parties with other columns of the same rows do not read.
_OF_SITES = (
    "columns", "target", "cuts", "grid", "subsample", "colsample", "row-key", "held-out", "patience"
)  # fmt: skip

ENTRIES = (
    analysis(
        "gbdt", _TITLE, _CHEN, "boosting", _TREES,
        sums(HISTOGRAMS, "by node, column and bin: sums of gradients and hessians, number of rows"),
        {
            "base": question(
                "gbdt", f"{_TITLE}, base", _CHEN, "boosting", (),
                sums(BASE, "rows, sum of the target or rows by class, values of each column, rows held out"),
            ),
            "counts": question(
                "gbdt", f"{_TITLE}, cuts", _CHEN, "boosting",
                (numbers(PIVOTS, "candidates for cuts, each a column and a value"),),
                sums(COUNTS, "how many values are at most each candidate"),
            ),
            "losses": question(
                "gbdt", f"{_TITLE}, losses", _CHEN, "boosting", _TREES,
                sums(LOSSES, "rows, losses and wrong classes, of rows trees grow from and of those held out"),
            ),
        },
        about="Boosted trees of which every split is that of the pooled rows, by exact sums: squared error, "
        "logistic, softmax.",
        differs="Cuts are exact quantiles or declared; derivatives are whole numbers of a declared grid; no "
        "row is left out for sparsity.",
        missing_values=True,
        noised_rows=True,
        more_questions="gbdt.max-depth",
        tested="asked",
        measuring="tree-test",
        evaluation=MODEL,
        reads=("gbdt.", *(f"gbdt.{key}" for key in _OF_SITES)),
        example='gbdt.columns="age(0..120), sex(Female|Male)" gbdt.target="ill(no|yes)"',
    ),
)  # fmt: skip
