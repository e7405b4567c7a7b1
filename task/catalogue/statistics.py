"""The catalogue's part of descriptive statistics: what goes up are counts of cells and sums over rows.

What the numbers are stands in `task.classical.survey`, and what follows from them in
`strategies.rules.statistics`.
"""

from task.catalogue.exact_sums import analysis, numbers, question, sums
from task.catalogue.papers import paper

CLOSED_CELLS, CELL_SUMS = "closed-cells", "cell-sums"  # names of the records
ASKED, CLOSED = "asked", "closed"
_GAYE = paper("10.1093/ije/dyu188", "summaries without data, with cells of few persons closed")
_ASKED = numbers(
    ASKED, "parts of columns' ranges to halve, each a column, a depth and a place; none = the tables"
)
_CLOSED = numbers(CLOSED, "for each cell, how many sites must not show it")

ENTRIES = (
    analysis(
        "statistics",
        "Counts, means, quantiles and tables",
        _GAYE,
        "description",
        (_ASKED, _CLOSED),
        sums(CELL_SUMS, "counts of cells, sums and sums of squares and products, of the cells that are open"),
        {
            "closing": question(
                "statistics", "Counts, means, quantiles and tables, what is closed", _GAYE, "description",
                (_ASKED,), sums(CLOSED_CELLS, "for each cell, whether fewer persons are in it than allowed"),
            ),
        },
        about="Counts, missing values, means, deviations, quantiles, histograms, cross-tables and "
        "correlations of the pooled rows, by exact sums.",
        differs="Quantiles are found by cutting a declared range; counts of few persons never leave a site.",
        reads=("statistics.",),
        example='statistics.columns="age(0..120), sex(Female|Male)"',
        missing_values=True,
        noised_rows=True,
    ),
)  # fmt: skip
