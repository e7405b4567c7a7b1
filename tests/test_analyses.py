"""An analysis is named in its own files: no registry lists the modules that belong to it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from client_app.works import WORK
from server_app.results.tables import result_table
from server_app.results.written import ResultTable
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.declared import declared_in
from task.catalogue.entry import Algorithm
from task.errors import ConfigError
from task.resolve.analyses import ANALYSES
from task.resolve.read import read_config

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = [entry for entry in ALGORITHMS.values() if entry.statistics]
# Lists in which an analysis stands by hand: its file of entries, its paper, its section of keys.
LISTS = ("task/catalogue/algorithms.py", "task/catalogue/papers.py", "task/config/algorithm_sections.py")
OWN = (
    "task/catalogue/",
    "task/classical/",
    "task/trees/",
    "strategies/rules/",
    "client_app/classical/",
    "server_app/results/",
)
TRUNK = (
    "client_app/works.py", "task/resolve/analyses.py", "task/resolve/validate.py",
    "server_app/results/tables.py", "server_app/run/finish.py", "server_app/cli/catalogue.py",
)  # fmt: skip
ROOMS = {"WORK": "client_app.classical", "ANALYSES": "task.classical", "TABLES": "server_app.results"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_each_analysis_has_all_its_parts(entry: Algorithm) -> None:
    assert callable(ANALYSES[entry.work])
    assert isinstance(result_table(entry.work), ResultTable)
    assert all(callable(WORK[part.work]) for part in (entry, *entry.phases.values()))
    parsed = parse_config_args([entry.example])
    read_config({"algorithm": entry.name, "dataset": "csv", **parsed})


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_no_other_file_names_an_analysis(entry: Algorithm) -> None:
    """So that a new one touches its own files and three lists."""
    named = {path for path, texts in constants().items() if entry.name in texts}
    others = {path for path in named if path not in LISTS and not path.startswith(OWN)}
    assert not others
    works = {path for path, texts in constants().items() if entry.work in texts}
    assert not works & set(TRUNK)


@cache
def constants() -> dict[str, set[str]]:
    """Return the strings of each module by its path; public names in `bouquet` are words of their own."""
    found = {}
    for package in ("task", "strategies", "client_app", "server_app"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            found[path.relative_to(ROOT).as_posix()] = texts
    return found


def toy(folder: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Add a module to each room, from a folder of its own, that declares a work of this name."""
    for name, room in ROOMS.items():
        where = folder / name
        where.mkdir()
        (where / "toy_counts.py").write_text(f'{name} = {{"{key}": print}}\n')
        monkeypatch.setattr(import_module(room), "__path__", [*import_module(room).__path__, str(where)])
        monkeypatch.delitem(sys.modules, f"{room}.toy_counts", raising=False)
    invalidate_caches()


@pytest.fixture(autouse=True)
def _forget_toys() -> Iterator[None]:
    yield
    for room in ROOMS.values():
        sys.modules.pop(f"{room}.toy_counts", None)
        vars(import_module(room)).pop("toy_counts", None)


def test_a_module_is_found_by_what_it_declares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(tmp_path, monkeypatch, "toy-counts")
    for name, room in ROOMS.items():
        found = declared_in(name, room)
        assert found["toy-counts"] is print
        assert len(found) > 1


def test_two_modules_do_not_declare_one_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(tmp_path, monkeypatch, "components")
    for name, room in ROOMS.items():
        with pytest.raises(ConfigError, match=r"keys of .* of its own; got \['components'\]"):
            declared_in(name, room)
