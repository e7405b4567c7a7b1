"""Do short runs of every algorithm and feature, and compare what they leave with what another version left.

Hashes differ between machines (BLAS, processor), so the folder is not part of the project: write it on one
machine before a change and compare after it, or compare two checkouts:

    python -m tests.golden --write /tmp/before --checkout ../the-old-one
    python -m tests.golden --against /tmp/before

A run is three rounds on the digits with seed 1. Compared are its rows, ``model_sha256`` and bytes sent
included, and the keys of its result files, of its clients' lines and of the run config; only measured times
are left out. Runs that are stopped and resumed leave their checkpoint in the folder: the later version
resumes those, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import SELECTIONS
from task.catalogue.stages import ALA_FITS

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3
COMMON = 'partition="shards" local-test-fraction=0.25 fraction-evaluate=1.0 progress="none"'
MAIN = "from server_app.cli.main import main; main()"
MEASURED = ("seconds",)  # keys of a row that differ between two runs of the same code
FOUND, HALTED, CONFIG = "found.json", "halted", "run config"  # in a folder that was written
OLD = ", from the other version's checkpoint"
# Keys of rows that no seed fixes: the bytes of random keys and of what is sealed, and what is encrypted.
SEALED = ("bytes_down", "bytes_up")
RANDOM = {"secagg": SEALED, "he": (*SEALED, "client_accuracy", "client_loss", "model_sha256")}
OF_TIME = ("step_seconds", "step-seconds", "seconds-spent")  # the same among a rule's metrics
DEPLOYED = ("fedavg", "scaffold", "fsvrg", "fedala", "fedfomo", "splitnn")
RESUMED = ("fedavg", "feddyn", "fedprox", "fedala", "apple", "splitnn")
MODELS = {"fedbn": "mlp-bn"}
# What a run has besides its algorithm; noise that protects privacy is never drawn from a seed, so only the
# simulated one is here.
FEATURES = {
    "secagg": "secagg=true",
    "secagg, 32 bits": "secagg=true secagg-bits=32 max-update-norm=5.0",
    "secagg, 100 clients": "secagg=true num-clients=100",
    "he": "he=true",
    "transcript": 'transcript="sums"',
    "secagg, whole transcript": 'secagg=true transcript="full"',
    "contribution": 'contribution.measure="leave-one-out"',
    "dissimilarity": "gradient-dissimilarity=true",
    "held-out": "fraction-heldout=0.2",
    "stream": "stream.start=0.5 stream.per-round=0.25",
    "drift": 'drift.kind="labels-swap" drift.round=2',
    "late joiners": "arrive.share=0.3 arrive.round=2",
    "width": 'width.levels="1,0.5"',
    "dropout-width": "dropout-width=0.5",
    "mask": 'structured.kind="mask"',
    "low-rank": 'structured.kind="low-rank"',
    "rand-k": 'codec.up="rand-k" codec.keep=0.1 codec.bits=4',
    "eden": 'codec.up="eden" codec.down="eden"',
    "int8, norm bound": 'codec.up="int8" max-update-norm=5.0',
    "clip-norm, sam": "clip-norm=1.0 sam.rho=0.05",
}
OTHERS = {  # name -> algorithm, keys
    "fedper, private layers": ("fedper", 'private-layers="3"'),
    "trimmed-mean, momentum": ("trimmed-mean", "robust.client-momentum=0.9"),
    "feddf, levels": ("feddf", 'models.levels="logistic,mlp" public.examples=100'),
    "fedmd, levels": ("fedmd", 'models.levels="logistic,mlp" public.examples=100'),
    "fedprox, plateau": ("fedprox", "plateau-rounds=1 plateau-delta=1.0"),
    "secagg, least squares of columns": ("fedavg", 'dataset="breast-cancer" standardise=true'),
}


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
    for name, keys in FEATURES.items():
        yield Run(f"fedavg, {name}", _keys("fedavg", keys))
    for name, (algorithm, keys) in OTHERS.items():
        yield Run(name, _keys(algorithm, keys))
    for name in RESUMED:
        yield Run(f"{name}, resumed", _keys(name), halt=1)
    for name in DEPLOYED:
        yield Run(f"{name}, gRPC", _keys(name), "federation")


def _keys(algorithm: str, more: str = "") -> str:
    if ALGORITHMS[algorithm].vertical:
        parties = 'num-clients=2 batch-size=64 local-test-fraction=0.25 progress="none"'
        data = "" if algorithm == "splitnn" else 'dataset="breast-cancer"'  # it has two classes
        return f'algorithm="{algorithm}" {parties} {data} {more}'
    model = f'model="{MODELS[algorithm]}"' if algorithm in MODELS else ""
    fraction = "" if "fraction-train" in more else "fraction-train=0.8"
    return f'algorithm="{algorithm}" {COMMON} {fraction} {model} {more}'


def left_by(run: Run, checkout: Path, folder: Path, saved: Path | None = None) -> dict[str, Any]:
    """Do a run with a checkout's code; return its rows without what is measured, and the keys of its files.

    Args:
        run: The run.
        checkout: Whose code runs.
        folder: Where the run's folders go.
        saved: With a halted run, the folder that its first rounds left, which are then not done again.

    Raises:
        RuntimeError: The command failed; with what it printed.
    """
    name = "".join(c if c.isalnum() else "-" for c in run.name)
    theirs = folder / name
    if saved:
        shutil.copytree(saved / name, theirs)
    kept = f'runs-dir="{theirs}" run-name="{name}"'
    if run.command == "run":  # a node's folders are not the run's to choose
        kept += f' state-dir="{theirs / "state"}"'
    for i, rounds in enumerate([run.halt, ROUNDS] if run.halt else [ROUNDS]):
        if i == 0 and saved:
            continue
        keys = f"{run.keys} {kept} num-server-rounds={rounds}"
        command = [sys.executable, "-c", MAIN, run.command, "-c", keys, *["--resume"] * (i > 0)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{run.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        if rounds == run.halt:
            shutil.copytree(theirs, folder / HALTED / name)
    (written,) = theirs.rglob(f"{name}/rounds.jsonl")
    rows = _lines(written)
    random = next((keys for feature, keys in RANDOM.items() if f"{feature}=true" in run.keys), ())
    for row in rows:
        for key in (*MEASURED, *random):
            row.pop(key, None)
        for key in OF_TIME:
            row.get("metrics", {}).pop(key, None)
    clients = written.with_name("clients.jsonl")
    keys_of = {
        "result.json": sorted(json.loads(written.with_name("result.json").read_text())),
        "config.json": sorted(json.loads(written.with_name("config.json").read_text())),
        "clients.jsonl": sorted({k for line in _lines(clients) for k in line}) if clients.exists() else [],
    }
    return {"rows": rows, "keys": keys_of}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_config_keys(checkout: Path) -> list[str]:
    """Return the run-config keys of a checkout, with their defaults."""
    table = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return sorted(f"{k} = {v!r}" for k, v in flatten(table))


def flatten(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested tables with dots between."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{before}{key}.")
        else:
            yield before + key, value


def compare(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each run that left something else, with the first round and key that differ."""
    lines = []
    for name in sorted(before.keys() | now.keys()):
        if name not in before or name not in now:
            lines.append(f"{name}: only {'now' if name in now else 'before'}")
            continue
        for file in before[name]["keys"]:
            old, new = (set(found[name]["keys"][file]) for found in (before, now))
            if old != new:
                lines.append(
                    f"{name}, {file}: keys that went {sorted(old - new)}, that came {sorted(new - old)}"
                )
        theirs, ours = before[name]["rows"], now[name]["rows"]
        for old, new in zip(theirs, ours, strict=False):
            keys = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)]
            if keys:
                where = f"{name}, round {old['round']}"
                shown = (f"{k} {old.get(k)!s:.16} -> {new.get(k)!s:.16}" for k in keys)
                lines.append(f"{where}: {'; '.join(shown)}")
                break
        else:
            if len(theirs) != len(ours):
                lines.append(f"{name}: {len(theirs)} rows before, {len(ours)} now")
    return lines


def main() -> int:
    """Run, write, compare; return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path, help="folder to write what the runs leave to")
    parser.add_argument("--against", type=Path, help="such a folder, to compare with")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose code runs (default: this one)")
    parser.add_argument("--only", default="", help="runs whose names contain this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    chosen = [r for r in runs() if options.only in r.name]
    before = json.loads((options.against / FOUND).read_text()) if options.against else {}
    saved = options.against / HALTED if options.against else None
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        made = {r.name: pool.submit(left_by, r, checkout, folder) for r in chosen}
        if saved:
            halted = [r for r in chosen if r.halt and r.name in before]
            made |= {
                f"{r.name}{OLD}": pool.submit(left_by, r, checkout, folder / "old", saved) for r in halted
            }
            before |= {f"{r.name}{OLD}": before[r.name] for r in halted}
        for title, rows in made.items():
            try:
                found[title] = rows.result()
                print(f"{title}: {found[title]['rows'][-1].get('model_sha256', '-')[:16]}", flush=True)
            except RuntimeError as err:
                print(err, flush=True)
        if options.write:
            options.write.mkdir(parents=True, exist_ok=True)
            (options.write / FOUND).write_text(
                json.dumps({**found, CONFIG: run_config_keys(checkout)}, indent=1)
            )
            if (folder / HALTED).exists():
                shutil.copytree(folder / HALTED, options.write / HALTED, dirs_exist_ok=True)
    failed = len(made) - len(found)
    if not options.against:
        return int(bool(failed))
    old, new = set(before.pop(CONFIG)), set(run_config_keys(checkout))
    before = {n: r for n, r in before.items() if options.only in n}
    lines = compare(before, found)
    if old != new:
        lines.append(f"run config: keys that went {sorted(old - new)}, that came {sorted(new - old)}")
    print("\n".join([f"{len(found)} runs compared, {len(lines)} differences", *lines]))
    return int(bool(lines or failed))


if __name__ == "__main__":
    sys.exit(main())
