"""What stays between versions, as one object: ``docs/reference/promise.json``, which `make docs` writes.

A test compares it with the code, so whoever changes a public name, key or file sees it in the diff.
"""

from __future__ import annotations

import csv
import inspect
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from typer.main import get_command

import bouquet
import bouquet.extend
from server_app.cli import exits
from server_app.cli.catalogue import example
from server_app.cli.main import app
from server_app.deploy.calls.control import NodeState
from server_app.deploy.host.app_integrity import App
from server_app.deploy.host.processes import Child
from server_app.deploy.kits.kit import Policy, read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import status
from server_app.deploy.link.jobs import ENDED, QUEUED, RUNNING, Jobs
from server_app.results.folder import RunFolder
from strategies import STRATEGIES, Strategy
from strategies.engine.arguments import own_arguments, server_arguments
from strategies.engine.rule import EVALUATE, TRAIN
from strategies.membership.stock_clients import why_stock_clients_cannot_join
from strategies.stages.held_out import LINES
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.selections import SELECTIONS
from task.config import paths
from task.config.options import parse_options
from task.config.read import Knob, knobs
from task.config.sections import AUGMENTATIONS, OPTIMIZERS, TRACKERS
from task.datasets.catalogue import DATASETS
from task.datasets.partition import PARTITIONS
from task.models import MODELS
from task.references import CODE
from task.resolve.read import read_config
from task.tasks.metrics import METRICS
from task.wire.commitments import PROTOCOL
from task.wire.error_codes import ErrorCode

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/reference/promise.json"


def commands(
    command: click.Command | None = None, name: str = "bouquet"
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name, in the order of the help."""
    command = command or get_command(app)
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from commands(inner, f"{name} {word}")
    elif not command.hidden:
        yield name, command


def parameter(p: Any) -> list[Any]:
    """Return an argument's or option's type and default, and its choices if they are listed."""
    kind = p.type
    name = p.metavar.lower() if isinstance(kind, click.types.FuncParamType) else kind.name
    bounds = [f"{sign} {limit}" for sign, limit in (
        (">=", getattr(kind, "min", None)), ("<=", getattr(kind, "max", None))
    ) if limit is not None]  # fmt: skip
    words = "flag" if getattr(p, "is_flag", False) else " ".join([name.removesuffix(" range"), *bounds])
    words += ", several" if p.multiple or p.nargs == -1 else ""
    default = "required" if p.required else str(p.default) if isinstance(p.default, Path) else p.default
    return [words, default, *([list(kind.choices)] if isinstance(kind, click.Choice) else [])]


def parameters(command: click.Command) -> dict[str, list[Any]]:
    """Return a command's arguments by name and its options with all their spellings."""
    found = {}
    for p in command.params:
        if not getattr(p, "hidden", False):
            name = " ".join(p.opts) + "".join(f" / {o}" for o in p.secondary_opts)
            found[name if p.param_type_name == "option" else p.name] = parameter(p)
    return found


# The names that keys without a fixed list of choices take; code of the user's own comes besides.
NAMES: dict[str, Collection[str]] = {
    "algorithm": ALGORITHMS,
    "augment": AUGMENTATIONS,
    "dataset": DATASETS,
    "metrics": {name for metrics in METRICS.values() for name in metrics},
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "partition": PARTITIONS,
    "selection": SELECTIONS,
    "tracker": TRACKERS,
}


def choices(k: Knob) -> list[Any]:
    """Return the choices of a key in a list of one, [] = there are none."""
    some = list(k.choices) or sorted(NAMES.get(k.key, ()))
    return [some] if some else []


def arguments(knobs_by_name: dict[str, Any]) -> dict[str, Any]:
    return {name: [k.type.__name__, k.default] for name, k in knobs_by_name.items()}


def signature(call: Any) -> str:
    """Return what a function takes and gives, as every version of Python writes it."""
    return str(inspect.signature(call)).replace("pathlib._local.", "pathlib.")


def members(cls: type) -> dict[str, str]:
    """Return the public methods and properties that a class itself has, with what they take and give."""
    found = {}
    for name, member in vars(cls).items():
        if not name.startswith("_"):
            call = getattr(member, "fget", None) or getattr(member, "func", None) or member
            found[name] = signature(call)
    return found


def public(name: str) -> Any:
    """Return a function's signature, an error's base or a result's members."""
    found = getattr(bouquet, name)
    if not isinstance(found, type):
        return signature(found)
    if issubclass(found, Exception):
        return f"error, {found.__base__.__name__}"
    result = found(Path())
    attributes = {a: "Path" for a, value in vars(result).items() if not a.startswith("_") and value.is_dir()}
    return attributes | members(found)


def stock_classes() -> list[str]:
    """Return the strategies that work, by their default keys, with a ClientApp that is not Bouquet's.

    One whose server distils needs public examples, which Bouquet's ServerApp has.
    """
    made = [cls() for cls in STRATEGIES.values() if not ALGORITHMS[cls.algorithm].distils]
    return sorted(type(s).__name__ for s in made if not why_stock_clients_cannot_join(s.entry, s.config))


def of_flower(call: Any, flowers: Any) -> dict[str, Any]:
    """Return the arguments that a method shares with Flower's of that name, with their defaults."""
    shared = inspect.signature(flowers).parameters.keys() - {"self"}
    found = {name: p.default for name, p in inspect.signature(call).parameters.items() if name in shared}
    assert found.keys() == shared
    return {n: "required" if value is inspect.Parameter.empty else value for n, value in found.items()}


def message(fields: tuple[Any, ...], scalars: tuple[Any, ...]) -> list[str]:
    """Return the records and numbers of a message in words: name, layout, reduction."""
    records = [f"{r.name}: {r.layout.kind} {r.layout.of}, {r.reduce}" for r in fields]
    return records + [f"{s.name}: number, {s.reduce}{'' if s.required else ', optional'}" for s in scalars]


def shape(value: Any) -> Any:
    """Return the names and JSON types of a value: a list is its first item, all numbers as names are one."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"[\d.]+", name) for name in value):
        return {"a number": sorted({json.dumps(shape(inner)) for inner in value.values()} - {'"null"'})}
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return {bool: "boolean", str: "string", type(None): "null"}[type(value)]


def files(folder: Path) -> dict[str, Any]:
    """Return what is in a run's result folder: files of JSON by their shape, the others by name."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix):
        text = path.read_text("utf-8") if path.suffix in (".json", ".jsonl", ".csv") else ""
        if path.suffix == ".json":
            found[path.name] = shape(json.loads(text))
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in text.splitlines()]
            found[path.name] = {name: shape(value) for line in lines for name, value in line.items()}
        elif path.suffix == ".csv":
            found[path.name] = next(csv.reader(text.splitlines()))
        else:
            found[path.name] = path.suffix
    config = found["config.json"]
    config["run"] = "every run-config key"
    config["environment"] = list(config["environment"])  # outside a checkout some are null
    return found


def run_folder(folder: Path) -> Path:
    """Run FedAvg for two rounds; return its result folder."""
    from tests.server_app.test_takeout import trained

    return trained(folder, fraction_evaluate=1.0)


def rows_for(columns: str, path: Path) -> None:
    """Write a table of drawn rows at four sites, with the columns of an analysis's example."""
    rng, found = random.Random(1), {}
    for name, of in re.findall(r"(\w+)\(([^)]*)\)", columns):
        low, dots, high = of.partition("..")
        typed = name if dots else f"{name}:category({of})"
        found[typed] = [
            str(rng.randint(int(low), int(high))) if dots else rng.choice(of.split("|")) for _ in range(80)
        ]
    found["label"] = [str(i % 2) for i in range(80)]  # which no analysis reads, and a table must have
    found["client"] = [f"site-{i % 4}" for i in range(80)]
    lines = [",".join(row) for row in zip(*found.values(), strict=True)]
    path.write_text("\n".join([",".join(found), *lines, ""]), encoding="utf-8")


def tables(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return the columns of all files of csv in result folders, by what writes them.

    Each analysis runs its own example; the columns `age` and `bmi` of some are those of the user's table.
    """
    from client_app.app import make_app
    from server_app.app import run
    from tests.support.grid import LocalGrid

    def made(name: str, keys: dict[str, Any]) -> dict[str, list[str]]:
        keys |= {"run-name": name, "runs-dir": str(folder), "state-dir": str(folder / "state")}
        keys |= {"num-server-rounds": 10, "progress": "none"}
        result = run(LocalGrid(make_app(keys), [{}]), read_config(keys))
        return {
            p.name: next(csv.reader(p.read_text("utf-8").splitlines())) for p in sorted(result.glob("*.csv"))
        }

    found = {"cross-evaluation": made("own", {"algorithm": "local-only", "cross-evaluation": True})}
    for entry in ALGORITHMS.values():
        if entry.statistics and entry.work not in found:
            rows_for(entry.example, data := folder / f"{entry.name}.csv")
            keys = {"data-path": str(data), "partition": "natural", "num-clients": 0}
            found[entry.work] = made(entry.name, parse_options([example(entry)]) | keys)
    return found


def link_status(folder: Path) -> Any:
    """Return the shape of what `bouquet status --json` prints of a link with a node and a run.

    What may be null, such as the process of a link that has stopped, has its value here.
    """
    provision(folder, "127.0.0.1:9092", ["ward"])
    kit, process = read_link_kit(folder / "link"), Child("superlink", ["true"])
    jobs, result = Jobs(kit.jobs, kit.runs), RunFolder(kit.runs / "demo")
    job = jobs.submit("demo", {"num-server-rounds": 20, "nodes": "ward"})
    jobs.update(job, state=RUNNING, runs=(1,), attempts=1)
    result.path.mkdir(parents=True)
    result.write_nodes([{"node": "5", "clients": 2, "examples": 345, "version": "1.0.0"}])
    process.process = cast(Any, SimpleNamespace(pid=os.getpid(), poll=lambda: None))
    node, made, line = NodeState(5, "ward", b"", True, True, 1.0), App("1.0.0", "abc", "1.39"), ["a line"]
    seen = status.Seen(time.monotonic(), nodes=[node], warnings=line, flower=line, app=made, apps={"5": made})
    status.write_status(kit, seen, [process], jobs)
    return shape(status.read_status(kit))


def promise(result: Path) -> dict[str, Any]:
    """Return everything that the page of promises is about, given the result folder of `run_folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        of_csv, of_link = tables(Path(scratch) / "runs"), link_status(Path(scratch) / "kits")
    policy = {name.replace("_", "-"): value for name, value in asdict(Policy()).items()}
    return {
        "python": {name: public(name) for name in bouquet.__all__},
        "extend": [name for name in bouquet.extend.__all__ if getattr(bouquet.extend, name) is not None],
        "strategies": {
            "start": of_flower(Strategy.start, FlowerStrategy.start),
            "with any ClientApp": stock_classes(),
            "of all": arguments(server_arguments()),
            **{s.__name__: arguments(own_arguments(s.algorithm)) for s in STRATEGIES.values()},
        },
        "commands": {name: parameters(command) for name, command in commands()},
        "keys": {k.key: [k.type.__name__, k.default, *choices(k)] for k in knobs()},
        "environment variables": [paths.DATA, paths.CACHE, CODE],
        "policy of a node": {name: [type(value).__name__, value] for name, value in policy.items()},
        "status": {
            "states": [status.GREEN, status.YELLOW, status.RED],
            "states of runs": [QUEUED, RUNNING, *ENDED],
            "--json": of_link,
        },
        "exit codes": exits.MEANINGS,
        "error codes": {code.name: int(code) for code in ErrorCode},
        "transcript": PROTOCOL,
        "messages": {
            a.name: {"down": message(a.down, a.down_scalars), "up": message(a.up, a.up_scalars)}
            for a in ALGORITHMS.values()
        },
        "result files": files(result),
        "phases in clients.jsonl": [TRAIN, EVALUATE, *LINES.values()],
        "columns of csv": of_csv,
    }


def written(result: Path) -> str:
    """Return the text of the file."""
    return json.dumps(promise(result), indent=1, ensure_ascii=False) + "\n"


def text() -> str:
    """Return what the file should have; it needs a short run."""
    with tempfile.TemporaryDirectory() as folder:
        return written(run_folder(Path(folder)))
