"""A package of an extra of pyproject.toml is missing: the error names the extra, wherever it is needed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from server_app.run.trackers import check_trackers
from server_app.takeout.export import importable
from task.config.knobs import Config
from task.encryption.ckks import tenseal
from task.errors import ConfigError
from task.models.lora import Adapters
from task.models.pretrained import Pretrained
from task.privacy.accounting import epsilon
from task.trees.xgb import library

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("bouquet", "task", "strategies", "client_app", "server_app")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
PACKAGES = {re.split("[>=<]", d)[0].replace("-", "_"): extra for extra, some in EXTRAS.items() for d in some}
CHECKED = {"server_app/run/trackers.py"}  # imports what `check_trackers` has found before the run


def track(name: str) -> None:
    config = Config()
    check_trackers(replace(config, output=replace(config.output, tracker=name)))


USES: dict[str, Callable[[], Any]] = {
    "dp_accounting": lambda: epsilon([(0.123, 1.0)], 1e-5),  # of no other test: answers are kept
    "mlflow": lambda: track("mlflow"),
    "onnx": lambda: importable("onnxruntime", "onnx"),
    "onnxruntime": lambda: importable("onnxruntime", "onnx"),
    "peft": lambda: Adapters(2, 0.0, (), (), 0.0, 1).add(nn.Linear(2, 2)),
    "tenseal": tenseal,
    "tensorboard": lambda: track("tensorboard"),
    "transformers": lambda: Pretrained(ROOT)(2),
    "wandb": lambda: track("wandb"),
    "xgboost": library,
}


@pytest.mark.parametrize("package", PACKAGES)
def test_an_error_names_the_extra_that_is_missing(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [package, *(n for n in sys.modules if n.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'bouquet[{PACKAGES[package]}]'")):
        USES[package]()


def test_packages_of_extras_are_imported_by_from_extra_alone() -> None:
    found, wrong = set[str](), []
    for path in (p for room in ROOMS for p in (ROOT / room).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[Any] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                names = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "from_extra":
                extra, module = (getattr(arg, "value", None) for arg in node.args[:2])
                found.add(str(extra))
                if module and PACKAGES.get(module.partition(".")[0]) != extra:
                    wrong.append(f"{where}:{node.lineno}: {module} is not in the extra {extra}")
            if where not in CHECKED:
                wrong += [
                    f"{where}:{node.lineno}: {n}" for n in names if n and n.partition(".")[0] in PACKAGES
                ]
    assert not wrong
    assert found == EXTRAS.keys() - {"mlflow", "tensorboard", "wandb"}
