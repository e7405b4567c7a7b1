from io import StringIO

import pytest
from rich.console import Console

from server_app.cli.data import describe
from task.resolve.read import read_config


@pytest.mark.parametrize(
    ("pool_test", "what", "examples"),
    [
        (False, "1442 training", "1,442 in the training pool, 355 in the global test set"),
        (True, "pooled: 1442 training", "1,797 in the training pool, no global test set"),
    ],
)
def test_card_tells_whether_there_is_a_global_test_set(tmp_path, pool_test, what, examples):
    plot = tmp_path / "counts.png"
    table, _ = describe(read_config({"dataset": "digits", "pool-test": pool_test}), plot)
    out = StringIO()
    Console(file=out, width=200).print(table)
    assert what in out.getvalue()
    assert examples in out.getvalue()
    assert plot.stat().st_size > 1000


def test_owners_that_a_partition_pools_are_a_warning_and_each_figure_says_what_it_means(tmp_path):
    """The page promised the warning, and `label_tv_mean` and `coverage` explained nothing."""
    lines = [f"{i % 7},{i % 2},{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["age,label,client", *lines]))
    keys = {"dataset": "csv", "data-path": str(tmp_path / "t.csv"), "partition": "iid", "num-clients": 3}
    table, warning, _ = describe(read_config(keys | {"cache-dir": str(tmp_path)}), tmp_path / "counts.png")
    assert warning.startswith("warning: the data say who owns each example (2 owners")
    out = StringIO()
    Console(file=out, width=300).print(table)
    for words in ("0 = the same mix", "of the training pool, clients' own tests included", "held out"):
        assert words in out.getvalue()
    assert "_mean" not in out.getvalue()
    own = describe(read_config(keys | {"partition": "natural", "num-clients": 0}), tmp_path / "own.png")
    assert not [line for line in own if isinstance(line, str) and "owns" in line]
