"""Runs with ``portable = true``: unlike processors end in the same bytes, in simulations and on nodes.

Unlike processors are emulated by what makes the libraries choose the kernels of a lesser one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from server_app.engines import federation as engine
from server_app.results.folder import RunFolder

pytestmark = [pytest.mark.system, pytest.mark.data]
BOUQUET = str(Path(sys.executable).with_name("bouquet"))
LESSER = {  # of a processor without AVX-512 and AVX2, as far as libraries let themselves be told
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3 AVX512_ICL AVX512_SPR", "MKL_CBWR": "SSE2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL",
}  # fmt: skip
COMMON: dict[str, Any] = {
    "num-clients": 4, "num-server-rounds": 2, "batch-size": 10, "progress": "none", "evaluate-every": 2,
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {
    "2nn": {"model": "2nn", "dataset": "mnist", "max-examples": 600, "learning-rate": 0.1},
    "cnn": {"model": "cnn", "dataset": "mnist", "max-examples": 200, "learning-rate": 0.1},
    "char-lstm": {
        "model": "char-lstm", "dataset": "shakespeare", "partition": "natural", "local-steps": 3,
        "learning-rate": 1.0,
    },
}  # fmt: skip


def simulated(keys: dict[str, Any], runs: Path, nodes: int = 2, **environment: str) -> Path:
    """Run keys by `bouquet run`, in a process of its own; return the result folder."""
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in keys.items())
    line = [BOUQUET, "run", "-c", pairs, "--run-name", "simulated", "--runs-dir", str(runs)]
    line += ["--nodes", str(nodes)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=os.environ | environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return runs / "simulated"


def deployed(keys: dict[str, Any], runs: Path) -> Path:
    """Run keys on a node with this processor's kernels and one with those of a lesser one."""

    def unlike(self: engine.Federation, nodes: dict[str, list[str]]) -> None:
        for name, options in nodes.items():
            with patch.dict(os.environ, LESSER if name == "lesser" else {}):
                self.start(name, "node", str(self.kit.path.parent / name), *options)

    shares = {"own": ["--partition", "0/2"], "lesser": ["--partition", "1/2"]}
    with patch.object(engine.Federation, "start_nodes", unlike), engine.federation(shares, runs) as fed:
        fed.run({**keys, "run-name": "deployed"})
    return runs / "deployed"


def test_a_simulation_on_a_lesser_processor_ends_in_the_same_bytes(tmp_path: Path, data_folder: Path) -> None:
    keys = COMMON | KEYS["2nn"] | {"portable": True}
    own = simulated(keys, tmp_path / "own", nodes=1)
    lesser = simulated(keys, tmp_path / "lesser", nodes=1, **LESSER)
    results = [RunFolder(folder).result() or {} for folder in (own, lesser)]
    assert [result["portable"] for result in results] == [True] * 2
    assert results[0]["kernels"] == results[1]["kernels"]
    assert (own / "model.safetensors").read_bytes() == (lesser / "model.safetensors").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("model", KEYS)
def test_nodes_with_unlike_kernels_end_in_the_bytes_of_a_simulation_where_they_are_portable(
    model: str, tmp_path: Path, data_folder: Path
) -> None:
    models = {}
    for fixed in (False, True):
        keys = COMMON | KEYS[model] | {"portable": fixed}
        folders = [run(keys, tmp_path / str(fixed)) for run in (simulated, deployed)]
        models[fixed] = [(folder / "model.safetensors").read_bytes() for folder in folders]
        results = [RunFolder(folder).result() or {} for folder in folders]
        assert [result["portable"] for result in results] == [fixed] * 2
        assert results[0]["kernels"] == results[1]["kernels"]
    assert models[True][0] == models[True][1]
    assert models[False][0] != models[False][1]  # so that these nodes are unlike
