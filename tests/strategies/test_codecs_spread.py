"""Under codes both ways ten clients end in one model, on one, three or ten nodes and under any rule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from task.codecs import CODECS
from task.config.sections import SPARSE
from tests.support.federation import owners_config, play, write_owners

SMALL = {"dataset": "digits", "partition": "iid", "data-path": "", "num-clients": 10, "max-examples": 60}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"model": "cnn-bn"},
    "fedbn": {"model": "cnn-bn"},
    "moon": {},
    "fedper": {},
    "scaffold": {},
    "feddyn": {},
    "fednova": {},
    "qfedavg": {},
}


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, sizes={f"c{i}": 5 + i for i in range(10)}, features=12)
    return path


def cells() -> Iterator[Any]:
    """Yield all of them; half of them for every commit."""
    for (i, algorithm), (j, codec) in product(enumerate(CASES), enumerate(CODECS)):
        yield pytest.param(algorithm, codec, marks=pytest.mark.full if (i + j) % 2 else ())


@pytest.mark.parametrize(("algorithm", "codec"), list(cells()))
def test_one_model_on_one_three_or_ten_nodes(algorithm: str, codec: str, owners: Path) -> None:
    sent = {"codec.up": codec, "codec.down": codec, **({"codec.keep": 0.2} if codec in SPARSE else {})}
    base = owners_config(owners, algorithm=algorithm, num_server_rounds=2, fraction_train=0.5)
    picture = SMALL if "model" in CASES[algorithm] else {"model": "2nn"}
    run = base | sent | picture | CASES[algorithm] | {"state-dir": str(owners.parent / "state")}
    played = [play(run, nodes=n, seed=n) for n in (1, 3, 10)]
    assert not any(p.keep.lines for p in played)
    assert len({p.rows[2]["model_sha256"] for p in played}) == 1
    assert len({p.rows[t]["model_sha256"] for p in played for t in (0, 1, 2)}) == 3
