"""Portable bits: which machine and which process may compute them, and who is refused before round 1."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from server_app.results.folder import machine_of, machine_words
from strategies.membership.client_identity import Claim, OnlineNode, admit
from task import portable
from task.datasets import load_dataset
from task.datasets.partition import load_partition
from task.errors import ConfigError
from task.resolve.read import read_config
from task.wire.registration import Registration
from tests.support.brought import imported_from

ROOT = Path(__file__).resolve().parents[2]
SAY = "from task.numerics.kernels import kernels; print(kernels())"
LESSER = {
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL",
}  # fmt: skip
needs_v3 = pytest.mark.skipif(
    portable.machine_class() not in (portable.CLASS, "x86-64-v4"), reason="needs x86-64 with AVX2"
)


def say(program: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    return done.stdout + done.stderr


@needs_v3
def test_a_process_set_up_for_it_computes_the_same_on_a_lesser_processor_and_others_are_refused() -> None:
    first = f"from task import portable; portable.set_up(); {SAY}"
    ours, theirs = say(first), say(first, **LESSER)
    assert re.fullmatch(r"x86-64-v3 [0-9a-f]{64}\n", ours)
    assert theirs == ours
    late = say(f"import torch; from task import portable; portable.set_up(); {SAY}")
    assert "has loaded torch or NumPy under other settings" in late
    assert "MKL_CBWR=COMPATIBLE" in late


def test_this_process_was_not_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    if portable.in_force():
        pytest.skip("the tests run under the settings themselves")
    monkeypatch.setattr(portable, "machine_class", lambda: "x86-64-v4")
    for check in (portable.check_in_force, portable.set_up):
        with pytest.raises(ConfigError, match="under other settings"):
            check()


@pytest.mark.parametrize("machine", ["x86-64", "aarch64", "riscv64"])
def test_a_machine_of_another_class_is_refused_by_name(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "machine_class", lambda: machine)
    for check in (portable.check_machine, portable.start_again, portable.check_in_force):
        with pytest.raises(ConfigError, match=f'"portable": expected .* AVX2 and FMA; got .* on {machine}'):
            check()


def test_a_node_with_other_kernels_is_refused_also_one_whose_app_is_not_ours() -> None:
    def claim(node: int, kernels: str, stock: bool = False) -> Claim:
        code = {portable.KERNELS: kernels} if kernels else {}
        said = Registration([f"c{node}"], [9], f"pool{node}", code=code, stock=stock)
        return Claim(OnlineNode(node), said, node)

    run = f"x86-64-v3 {'a' * 64}"
    claims = [claim(1, run), claim(2, f"x86-64-v3 {'b' * 64}"), claim(3, ""), claim(4, "", stock=True)]
    done = admit(claims, {}, code={portable.KERNELS: run})
    assert set(done.refused) == {2, 3, 4}
    assert done.deviating == {2, 3, 4}
    assert "expected kernels x86-64-v3 aaaaaaaaaaaa..." in done.refused[2]
    assert "got x86-64-v3 bbbbbbbbbbbb..." in done.refused[2]
    assert "got none" in done.refused[3]


def test_results_say_what_computed_them() -> None:
    plain = {"environment": {"processor": "aarch64"}}
    fixed = {
        "environment": {"processor": "x86-64-v4"},
        "code": {portable.KERNELS: "x86-64-v3 0123456789abcdef"},
    }
    assert machine_of(plain) == {"processor": "aarch64", "portable": False, "kernels": None}
    assert machine_of(fixed)["portable"] is True
    assert machine_words(plain) == "kernels of a processor aarch64"
    assert machine_words(fixed) == "portable kernels x86-64-v3 0123456789ab..."
    assert machine_words({}) == ""  # of an earlier version


def test_what_other_kernels_computed_is_not_taken_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import numpy as np\ndef data():\n    return np.eye(40), np.arange(40) % 4, None, None\n"
    (tmp_path / "computed.py").write_text(code)
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))

    def made(dataset: str, **keys: str | int) -> set[str]:
        before = {path.name for path in (tmp_path / "cache").glob("*/*")}
        config = read_config({"dataset": dataset, "num-clients": 2, **keys})
        load_partition(load_dataset(config.data, config.synthetic, 1), config.data, 1)
        return {path.name for path in (tmp_path / "cache").glob("*/*")} - before

    runs = {
        "synthetic": {"partition": "natural"},
        "computed:data": {"partition": "quantity"},
        "digits": {"partition": "quantity"},
    }
    with imported_from(tmp_path):
        for fixed in (False, True):
            monkeypatch.setattr(portable, "in_force", lambda fixed=fixed: fixed)
            found = {name: made(name, **keys) for name, keys in runs.items()}
            assert [len(new) for new in found.values()] == [2, 2, 1 if fixed else 2]  # pixels are only read
            assert not any(made(name, **keys) for name, keys in runs.items())
