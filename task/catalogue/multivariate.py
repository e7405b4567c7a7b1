"""The catalogue's part of clusters and principal components, both from exact sums over rows.

What the numbers of each question are stands in `task.classical.clusters` and `task.classical.moments`.
"""

from task.catalogue.exact_sums import analysis, numbers, question, sums
from task.catalogue.papers import paper

OPENING, STEP, PRODUCTS = "moment-sums", "cluster-sums", "product-sums"  # names of the records
CENTRES, WEIGHTS = "centres", "weights"
_LLOYD = paper("10.1109/TIT.1982.1056489", "Method I, with a start that is declared or drawn by seed")
_PEARSON = paper("10.1080/14786440109462720", "Sections 3 and 4")
_CENTRES = numbers(CENTRES, "a row of numbers for each cluster")
_WEIGHTS = numbers(WEIGHTS, "what each column is multiplied by before distances are taken")
_OPENING = sums(OPENING, "n, sum and sum of squares of each column")

ENTRIES = (
    analysis(
        "k-means", "k-means", _LLOYD, "clusters", (_CENTRES, _WEIGHTS),
        sums(STEP, "of each cluster: rows, sum of each column, squared distances to the centre"),
        {"opening": question("k-means", "k-means, moments", _LLOYD, "clusters", (), _OPENING)},
        about="Clusters of the pooled rows by Lloyd's algorithm and exact sums.",
        differs="No row is a first centre, as it is somebody's. A cluster without rows keeps its centre.",
        example='k-means.columns="age(0..120), bmi(10..80)" k-means.clusters=3',
    ),
    analysis(
        "pca", "Principal components", _PEARSON, "components", (),
        sums(PRODUCTS, "n, sum of each column, sum of the product of every two"), {},
        about="Principal components of the pooled rows: variances and loadings by exact sums.",
        example='pca.columns="age(0..120), bmi(10..80)"',
    ),
)  # fmt: skip
