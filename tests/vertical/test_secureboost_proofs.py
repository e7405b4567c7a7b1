"""A server that swaps what parties send each other to grow trees: what it would learn; it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.vertical.encrypted import from_rows, to_rows
from client_app.vertical.tree_columns import quantiles
from task.errors import BouquetError
from task.resolve.read import read_config
from task.vertical.paillier import SecretKey, widths
from task.vertical.rows import in_common_order, num_tests
from tests.support import parties
from tests.vertical.test_proofs import Lying, Proofs, lying, proofs
from tests.vertical.test_secureboost import config, place, table, write

assert place  # fixtures of this module, too
assert proofs
ROWS = 8
KEYS = config(
    num_server_rounds=1, vertical__key_bits=2048, gbdt__max_bins=2, gbdt__max_depth=1,
    gbdt__min_child_weight=0.0,
)  # fmt: skip
CIPHER, PLAIN = widths(2048)
OWN = SecretKey.new(2048)  # the server's
Records = dict[str, np.ndarray]
Seen = Mapping[str, list[np.ndarray]]


def owners(folder: Path) -> dict[str, Path]:
    """Write files of ada, who has the labels, and of cyd with one column."""
    ids, x, y = table(ROWS)
    x = np.nan_to_num(x)
    ada = write(folder / "ada.csv", ids, x[:, :1], y)
    return {"ada": ada, "cyd": write(folder / "cyd.csv", ids, x[:, 5:], None)}


def swap(kind: str, seen: Seen, records: Records) -> None:
    """Give cyd numbers of rows that show in a sum which rows it is of, under the server's key."""
    if kind == "train.histograms":
        m = len(records["ciphers.cyd"])
        records["ciphers.cyd"][:] = to_rows([OWN.encrypt(1 << i) for i in range(m)], CIPHER)
        records["moduli.cyd"][:] = to_rows([OWN.public.modulus], PLAIN)


def guess(kind: str, seen: Seen, records: Records) -> None:
    """Ask cyd which rows go left at a cut of the server's choice."""
    if kind == "train.divide":
        records["splits.cyd"][0] = 0, 0, 0, 0


def steer(kind: str, seen: Seen, records: Records) -> None:
    """Give ada other sums."""
    if kind == "train.search":
        records["histograms.ada"][..., -1] ^= 1


def turn(kind: str, seen: Seen, records: Records) -> None:
    """Give ada other directions."""
    if kind == "train" and len(records["directions.ada"]):
        records["directions.ada"][:] = 2


def test_without_proofs_a_lying_server_reads_the_order_of_a_column(tmp_path: Path) -> None:
    files = owners(tmp_path)
    with pytest.raises(BouquetError, match="histograms"):  # too late
        parties.play_own(files, KEYS, grid_type=lying(swap))
    (sums,) = OWN.decrypt(from_rows(Lying.last.seen["train.histograms histograms"][0].reshape(1, -1)))
    ids, x, _ = table(ROWS)
    settings = read_config(KEYS)
    column = np.nan_to_num(x[:, 5])[in_common_order(ids, settings.seeds.data)][num_tests(ROWS, settings) :]
    (cut,) = quantiles(column, 2)
    rows = sums & (1 << len(column)) - 1  # of the first bin
    assert [bool(rows >> i & 1) for i in range(len(column))] == (column < cut).tolist()


@pytest.mark.parametrize(
    ("lie", "client", "what"),
    [
        (swap, "cyd", "gradients"),
        (guess, "cyd", "splits"),
        pytest.param(steer, "ada", "histograms", marks=pytest.mark.full),
        pytest.param(turn, "ada", "sides", marks=pytest.mark.full),
    ],
)
def test_a_lying_server_is_refused(lie: Any, client: str, what: str, proofs: Proofs, tmp_path: Path) -> None:
    other = {"ada": "cyd", "cyd": "ada"}[client]
    with pytest.raises(BouquetError, match="every party is needed") as refused:
        parties.play_own(owners(tmp_path), KEYS, grid_type=lying(lie), proofs=proofs)
    assert f"client {client}: field '{what}': expected those that party {other} has signed" in str(
        refused.value
    )


@pytest.mark.full
def test_proofs_change_no_tree(proofs: Proofs, tmp_path: Path) -> None:
    files = owners(tmp_path)
    proved = parties.play_own(files, KEYS, proofs=proofs)
    clear = parties.play_own(files, KEYS | {"vertical.key-bits": 0})
    assert [r["model_sha256"] for r in proved.rows] == [r["model_sha256"] for r in clear.rows]
