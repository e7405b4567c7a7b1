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
