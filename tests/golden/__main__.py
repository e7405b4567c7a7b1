"""Write the rows of short runs of every algorithm, or compare them with rows written before.

Hashes differ between machines (BLAS, processor), so the file is not part of the project: write it on one
machine before a change and compare after it, or compare two checkouts:

    python -m tests.golden --write /tmp/before.json --checkout ../the-old-one
    python -m tests.golden --against /tmp/before.json

A run is three rounds on the digits with seed 1. Its rows are compared whole, ``model_sha256`` and bytes sent
included; only measured times are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.spec.algorithms import ALGORITHMS
from task.spec.selections import SELECTIONS
from task.spec.stages import ALA_FITS

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3
COMMON = 'partition="shards" local-test-fraction=0.25 fraction-evaluate=1.0 progress="none"'
MAIN = "from server_app.cli.main import main; main()"
MEASURED = ("seconds",)  # keys of a row that differ between two runs of the same code
OF_TIME = ("step_seconds", "step-seconds", "seconds-spent")  # the same among a rule's metrics
DEPLOYED = ("fedavg", "scaffold", "fsvrg", "fedala", "fedfomo", "splitnn")
RESUMED = ("fedavg", "feddyn", "fedprox", "fedala", "apple", "splitnn")
MODELS = {"fedbn": "mlp-bn"}


@dataclass(frozen=True)
class Run:
    """One short run.

    Attributes:
        name: What the file calls it.
        keys: Run-config keys in Flower's form.
        command: ``run`` or ``federation``.
        halt: Rounds after which it is stopped and resumed; 0 = never.
    """

    name: str
    keys: str
    command: str = "run"
    halt: int = 0


def runs() -> Iterator[Run]:
    """Yield every run: all algorithms, then policies, attacks and ALA, resumed and deployed runs."""
    for name in sorted(ALGORITHMS):
        yield Run(name, _keys(name))
    for selection in sorted(SELECTIONS):
        yield Run(f"fedavg, {selection}", _keys("fedavg", f'selection="{selection}" fraction-train=0.5'))
    for kind in ("sign-flip", "scale", "gaussian", "label-flip", "little-is-enough"):
        yield Run(f"fedavg, {kind}", _keys("fedavg", f'attack.kind="{kind}"'))
    for name in ALA_FITS:
        if "ala" not in ALGORITHMS[name].stages:
            yield Run(f"{name}, ala", _keys(name, "ala=true"))
    for codec in ("stc", "top-k"):
        keys = f'codec.up="{codec}" codec.down="{codec}" codec.keep=0.05'
        yield Run(f"fedavg, {codec} both ways, resumed", _keys("fedavg", keys), halt=1)
    yield Run("fedprox, stragglers", _keys("fedprox", "stragglers=0.5 local-epochs=3 fedprox.adaptive=true"))
    yield Run("scaffold, cnn-bn", _keys("scaffold", 'model="cnn-bn" num-clients=4 max-examples=200'))
    for name in RESUMED:
        yield Run(f"{name}, resumed", _keys(name), halt=1)
    for name in DEPLOYED:
        yield Run(f"{name}, gRPC", _keys(name), "federation")


def _keys(algorithm: str, more: str = "") -> str:
    if ALGORITHMS[algorithm].vertical:
        parties = 'num-clients=2 batch-size=64 local-test-fraction=0.25 progress="none"'
        data = 'dataset="breast-cancer"' if algorithm == "vertical-logistic" else ""  # it has two classes
        return f'algorithm="{algorithm}" {parties} {data} {more}'
    model = f'model="{MODELS[algorithm]}"' if algorithm in MODELS else ""
    fraction = "" if "fraction-train" in more else "fraction-train=0.8"
    return f'algorithm="{algorithm}" {COMMON} {fraction} {model} {more}'


def rows_of(run: Run, checkout: Path, folder: Path) -> list[dict[str, Any]]:
    """Do a run with a checkout's code; return its rows without what is measured.

    Raises:
        RuntimeError: The command failed; with what it printed.
    """
    name = "".join(c if c.isalnum() else "-" for c in run.name)
    kept = f'runs-dir="{folder}" run-name="{name}"'
    if run.command == "run":  # a node's folders are not the run's to choose
        kept += f' state-dir="{folder / "state" / name}"'
    for i, rounds in enumerate([run.halt, ROUNDS] if run.halt else [ROUNDS]):
        keys = f"{run.keys} {kept} num-server-rounds={rounds}"
        command = [sys.executable, "-c", MAIN, run.command, "-c", keys, *["--resume"] * (i > 0)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{run.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    (written,) = folder.rglob(f"{name}/rounds.jsonl")
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    for row in rows:
        for key in MEASURED:
            row.pop(key, None)
        for key in OF_TIME:
            row.get("metrics", {}).pop(key, None)
    return rows


def compare(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each run whose rows differ, with the first round and key that do."""
    lines = []
    for name in sorted(before.keys() | now.keys()):
        if name not in before or name not in now:
            lines.append(f"{name}: only {'now' if name in now else 'before'}")
            continue
        for old, new in zip(before[name], now[name], strict=False):
            keys = [k for k in old if k in new and old[k] != new[k]]
            if keys:
                where = f"{name}, round {old['round']}"
                lines.append(f"{where}: {'; '.join(f'{k} {old[k]!s:.16} -> {new[k]!s:.16}' for k in keys)}")
                break
        else:
            if len(before[name]) != len(now[name]):
                lines.append(f"{name}: {len(before[name])} rows before, {len(now[name])} now")
    return lines


def main() -> int:
    """Run, write, compare; return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path, help="file to write the rows to")
    parser.add_argument("--against", type=Path, help="file of rows to compare with")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose code runs (default: this one)")
    parser.add_argument("--only", default="", help="runs whose names contain this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    options = parser.parse_args()
    chosen = [r for r in runs() if options.only in r.name]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        made = [pool.submit(rows_of, r, options.checkout.resolve(), Path(folder)) for r in chosen]
        for run, rows in zip(chosen, made, strict=True):
            try:
                found[run.name] = rows.result()
                print(f"{run.name}: {found[run.name][-1]['model_sha256'][:16]}", flush=True)
            except RuntimeError as err:
                found[run.name] = []
                print(err, flush=True)
    if options.write:
        options.write.write_text(json.dumps(found, indent=1))
    failed = [name for name, rows in found.items() if not rows]
    if not options.against:
        return int(bool(failed))
    before = {n: r for n, r in json.loads(options.against.read_text()).items() if options.only in n}
    lines = compare(before, found)
    print("\n".join([f"{len(found) - len(lines)} of {len(found)} runs are equal", *lines]))
    return int(bool(lines or failed))


if __name__ == "__main__":
    sys.exit(main())
