"""docs/explain/contributing.md says how many files each thing takes; a toy of each is added in these."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.script import ROOT
from tests.toys import TOYS

PAGE = (ROOT / "docs" / "explain" / "contributing.md").read_text("utf-8")
COPIED = ("task", "strategies", "client_app", "server_app", "bouquet", "tests", "docs", "pyproject.toml")
WORDS = {
    word: n
    for n, word in enumerate(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
}
PATHS = re.compile(r"`((?:task|strategies|client_app|server_app|tests|docs)/[\w./-]+\.\w+)`")
RUN = """
import json, sys
from pathlib import Path
from tests.support.federation import in_one_process
from tests.toys import PEOPLE, TOYS

here = Path.cwd()
(here / "people.csv").write_text(PEOPLE)
BASE = {"dataset": "digits", "model": "mlp", "num-clients": 2, "num-server-rounds": 1, "max-examples": 300}
for number, (kind, toy) in enumerate(TOYS.items()):
    if not toy.keys:
        continue
    keys = {**BASE, **toy.keys} if "PEOPLE" not in toy.keys.values() else toy.keys
    keys = {key: str(here / "people.csv") if value == "PEOPLE" else value for key, value in keys.items()}
    folder = in_one_process({**keys, "run-name": str(number), "device": "cpu"}, here / "runs")
    rounds, clients = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("rounds.jsonl", "clients.jsonl")
    )
    result = json.loads((folder / "result.json").read_text())
    assert result["rounds"] == keys.get("num-server-rounds", 1), kind
    assert eval(toy.seen), (kind, rounds, clients, result)
    print("toy:", kind)
"""


def small() -> dict[str, tuple[str, str]]:
    """Return the number of files, and which, by what is added: the first table."""
    table = PAGE.split("## How many files it takes")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in table.splitlines()
        if line[:1] == "|"
    ]
    return {what: (count, which) for what, count, which in rows[2:]}


def section(kind: str) -> tuple[range, list[str]]:
    """Return how many files the section of a kind counts, and the paths of its table."""
    found = re.search(rf"^## Add {kind}: (\w+)(?: to (\w+))? files\n(.*?)(?=^## )", PAGE, re.M | re.S)
    assert found, kind
    least, most = WORDS[found[1]], WORDS[found[2] or found[1]]
    return range(least, most + 1), re.findall(r"^\| `([^`]+)`", found[3], re.M)


# Kinds with a section, by the section; a toy may leave out what it does not need.
SECTIONS = {
    "an algorithm": "an algorithm", "a personalised algorithm": "an algorithm", "an analysis": "an analysis",
    "a feature": "a feature", "a stage": "a feature",
}  # fmt: skip
# Files that the text of a row names besides the one that the row is of.
OTHERWISE = {
    "task/catalogue/personalised.py": "task/catalogue/algorithms.py",
    "tests/test_catalogue.py": "tests/reference/NAME.py",
}


def pattern(path: str) -> str:
    """Return a toy's path with NAME in place of its own name."""
    return re.sub(r"(test_)?toy_\w+(?=\.py)", lambda m: f"{m[1] or ''}NAME", OTHERWISE.get(path, path))


def test_the_page_has_all_toys_and_no_other_kind() -> None:
    rows = dict(small())
    assert rows.pop("an algorithm, also a personalised one")
    own = next(what for what in rows if what.endswith("of your own"))
    assert rows.pop(own)[0] == "0"  # they are added in tests/test_own_folder.py
    assert {*rows, "an algorithm", "a personalised algorithm"} == set(TOYS)


@pytest.mark.parametrize("kind", sorted(set(TOYS) - set(SECTIONS)))
def test_a_small_thing_takes_the_files_of_its_row(kind: str) -> None:
    count, which = small()[kind]
    assert sorted(map(pattern, TOYS[kind].files)) == sorted(PATHS.findall(which))
    assert len(TOYS[kind].files) == int(count)


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_larger_thing_takes_files_of_its_section_and_as_many(kind: str) -> None:
    counts, paths = section(SECTIONS[kind])
    used = list(map(pattern, TOYS[kind].files))
    assert len(used) == len(set(used))
    assert set(used) <= set(paths)
    assert len(used) in counts
    assert len(paths) == counts[-1]
    row = small().get(kind) or small()["an algorithm, also a personalised one"]
    stated = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    assert row[0] in (stated, str(len(used)))


def test_the_bounds_of_a_section_are_those_of_toys() -> None:
    for name in set(SECTIONS.values()):
        counts, _ = section(name)
        used = [len(TOYS[kind].files) for kind, of in SECTIONS.items() if of == name]
        assert (min(used), max(used)) == (counts[0], counts[-1])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all toys."""
    folder = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "images")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    for toy in TOYS.values():
        toy.add_to(folder)
    return folder


def python(tree: Path, *words: str, fails: bool = False) -> str:
    """Run Python in the copy, which is imported in place of the installed package; return what it prints."""
    own = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=own, capture_output=True, text=True, timeout=600
    )
    assert fails or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_each_toy_runs(tree: Path) -> None:
    ran = re.findall("toy: (.*)", python(tree, "-c", RUN))
    assert ran == [kind for kind, toy in TOYS.items() if toy.keys]
    listed = python(tree, "-m", "tests.faults", "--list")
    assert "R99" in listed


def pytest_in(tree: Path, *words: str, fails: bool = False) -> str:
    return python(tree, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *words, fails=fails)


@pytest.mark.full
def test_the_tests_over_the_catalogue_ask_for_no_further_file(tree: Path) -> None:
    """A test prints the lines of figures; with them all tests of toys pass."""
    figures = tree / "tests" / "golden" / "figures.json"
    known = {name: found for name, found in json.loads(figures.read_text("utf-8")).items() if found}
    figures.write_text(json.dumps(known), "utf-8")
    printed = pytest_in(tree, "tests/test_catalogue.py", "-k", "golden and toy", fails=True)
    for line in re.findall(r'add to tests/golden/figures.json: ("toy-[\w-]+": \[.*?\])', printed):
        known |= json.loads("{" + line + "}")
    assert {"toy-wane", "toy-first"} <= known.keys()
    figures.write_text(json.dumps(known), "utf-8")
    each = ("tests/test_catalogue.py", "tests/reference/test_reference.py", "tests/task/test_codecs.py")
    pytest_in(tree, *each, "-k", "toy or every_codec or registries")
    pytest_in(tree, "tests/test_analyses.py", "tests/test_challenges.py", "tests/strategies/test_examples.py")
