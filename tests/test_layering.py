"""server_app -> strategies -> task <- client_app: the import rule, by reading the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("task", "strategies", "client_app", "server_app")
MAY_IMPORT = {
    "task": {"task"},
    "strategies": {"strategies", "task"},
    "client_app": {"client_app", "task"},
    # simulate.py starts both halves; the rest of the server does not know the client.
    "server_app": {"server_app", "strategies", "task"},
}
EXCEPTIONS = {("server_app/engines/simulate.py", "client_app")}


def modules() -> list[Path]:
    return sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    package = relative.split("/")[0]
    tops = {name.split(".")[0] for name in imported(path)} & {*PACKAGES, "tests"}
    wrong = {t for t in tops - MAY_IMPORT[package] if (relative, t) not in EXCEPTIONS}
    assert not wrong, f"{relative} must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_flowers_bundle_would_not_drop_the_file(path: Path) -> None:
    assert not path.name.startswith("test_")
    assert not path.name.endswith("_test.py")


def test_only_the_wire_touches_records() -> None:
    for path in modules():
        if path.parts[-2] == "task" and path.name not in ("wire.py", "packing.py"):
            assert not {n for n in imported(path) if n.split(".")[0] == "flwr"}, path
