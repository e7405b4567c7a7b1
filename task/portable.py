"""Portable bits: the environment under which any x86-64 processor with AVX2 computes the same bits.

torch, MKL, oneDNN, OpenBLAS and NumPy choose their kernels by the processor, and kernels differ in the last
bits. They read what may overrule that once, when they are loaded, so that it must be set before. This module
alone knows these variables, and imports none of those libraries. `task.numerics.kernels` checks the outcome.

MKL listens to ``AVX2`` on Intel's processors only; ``COMPATIBLE`` is the one branch that it has on all.
"""

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import NoReturn

from task.errors import ConfigError

CLASS = "x86-64-v3"  # of the processors that can: AVX2, FMA and what else came with them
SETTINGS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
    # Names of NumPy 1 and of NumPy 2; it ignores what it does not know.
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL "
    "AVX512_ICL AVX512_SPR X86_V4",
    # The number of threads decides how sums are split.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}  # fmt: skip
KERNELS = "kernels"  # what a node registers them as, and config.json
LOADED = ("numpy", "torch")  # what reads them
_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_KEY = 'run-config key "portable"'
_set_here = False  # whether this process took them over before it had loaded anything


@cache
def machine_class() -> str:
    """Return the class of this machine's processor, such as ``x86-64-v4`` or ``aarch64``.

    Those of x86-64 are the levels of its psABI, as far as they matter here: v4 has AVX-512, v3 AVX2 and FMA,
    and what has less is ``x86-64``.
    """
    name = platform.machine().lower()
    if name not in ("x86_64", "amd64"):
        return {"arm64": "aarch64"}.get(name, name) or "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "x86-64"
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return "x86-64-v4" if flags >= _V3 | _V4 else CLASS if flags >= _V3 else "x86-64"


def check_machine() -> None:
    """Refuse a machine that cannot compute portable bits.

    Raises:
        ConfigError: Its processor is of another class, or its system does not say.
    """
    found = machine_class()
    if sys.platform != "linux" or found not in (CLASS, "x86-64-v4"):
        raise ConfigError(
            f"{_KEY}: expected Linux on an x86-64 processor with AVX2 and FMA; got {platform.system()} on "
            f"{found}. Leave this machine out, or leave the key out: then results are those of one machine"
        )


def in_force() -> bool:
    """Return whether torch and NumPy were loaded in this process with the settings."""
    try:
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")  # as it was started, or its parent
    except OSError:
        return _set_here
    return _set_here or {f"{name}={value}".encode() for name, value in SETTINGS.items()} <= set(lines)


def cache_key() -> dict[str, str]:
    """Return the part of a cache key that depends on this process's kernels."""
    return {KERNELS: CLASS} if in_force() else {}


def check_in_force() -> None:
    """Refuse to compute a portable run in this process unless it was started for one.

    Raises:
        ConfigError: The machine cannot, or torch was loaded under other settings.
    """
    check_machine()
    if not in_force():
        words = " ".join(f"'{name}={value}'" for name, value in SETTINGS.items())
        raise ConfigError(
            f"{_KEY}: this process has loaded torch or NumPy under other settings, which they read once. Use "
            "`bouquet run`, or call bouquet.run(portable=True) before anything imports them, or start the "
            f"program with: env {words}"
        )


def set_up() -> None:
    """Set the variables in this process, which has loaded neither torch nor NumPy.

    Raises:
        ConfigError: The machine cannot, or it has.
    """
    global _set_here
    if in_force():
        return
    check_machine()
    if any(name in sys.modules for name in LOADED):
        check_in_force()
    os.environ.update(SETTINGS)
    _set_here = True


def start_again() -> None:
    """Replace this process by the same command under the settings, unless it has them.

    Raises:
        ConfigError: The machine cannot.
    """
    check_machine()
    if not in_force():
        replace_process([sys.executable, *sys.orig_argv[1:]])


def replace_process(command: list[str]) -> NoReturn:
    """Replace this process by a command under the settings."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, {**os.environ, **SETTINGS})
