"""What stays between versions, as one object: ``docs/reference/promise.json``, which `make docs` writes.

A test compares it with the code, so whoever changes a public name, key or file sees it in the diff.
"""

from __future__ import annotations

import csv
import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

import bouquet
from server_app.cli import exits
from server_app.cli.main import app
from server_app.takeout.result import RunResult
from strategies import STRATEGIES
from strategies.engine.arguments import own_arguments, server_arguments
from task.catalogue.algorithms import ALGORITHMS
from task.config.read import knobs
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


def promise(result: Path) -> dict[str, Any]:
    """Return everything that the page of promises is about, given the result folder of `run_folder`."""
    functions = {name: signature(getattr(bouquet, name)) for name in bouquet.__all__}
    return {
        "python": functions | {"RunResult": members(RunResult)},
        "strategies": {
            "of all": arguments(server_arguments()),
            **{s.__name__: arguments(own_arguments(s.algorithm)) for s in STRATEGIES.values()},
        },
        "commands": {
            name: [" ".join(p.opts) if p.param_type_name == "option" else p.name for p in command.params]
            for name, command in commands()
        },
        "keys": {
            k.key: [k.type.__name__, k.default, *([list(k.choices)] if k.choices else [])] for k in knobs()
        },
        "exit codes": exits.MEANINGS,
        "error codes": {code.name: int(code) for code in ErrorCode},
        "transcript": PROTOCOL,
        "messages": {
            a.name: {"down": message(a.down, a.down_scalars), "up": message(a.up, a.up_scalars)}
            for a in ALGORITHMS.values()
        },
        "result files": files(result),
    }


def written(result: Path) -> str:
    """Return the text of the file."""
    return json.dumps(promise(result), indent=1, ensure_ascii=False) + "\n"


def write() -> None:
    """Write the file; it needs a short run."""
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(written(run_folder(Path(folder))), encoding="utf-8")
