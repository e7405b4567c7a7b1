"""Several processes on one card, forked and spawned: one model, whatever their number."""

from pathlib import Path

import pytest
import torch

from tests.gpu.rounds import rows_of

KEYS = {"dataset": "digits", "model": "mlp", "num-clients": 6, "fraction-train": 1.0, "stack": 1}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_two_contexts_on_one_gpu_end_in_the_model_of_one(tmp_path: Path) -> None:
    runs = [
        rows_of(KEYS, 1, 2, tmp_path / "one"),
        rows_of(KEYS, 2, 2, tmp_path / "forked"),
        rows_of(KEYS, 2, 2, tmp_path / "spawned", "--gpus", "1"),
    ]
    assert len({rows[-1]["model_sha256"] for rows in runs}) == 1
    assert runs[0][-1]["quarantined"] == runs[1][-1]["quarantined"] == runs[2][-1]["quarantined"] == []
