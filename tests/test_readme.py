"""What README and docs say is true: their tables are the catalogue's, their commands and keys exist."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
from pathlib import Path
from textwrap import dedent, indent

import numpy as np
import pytest
from typer.main import get_command

from server_app.cli.main import app
from server_app.extras.reproduce.measures import MEASURES
from server_app.extras.reproduce.tables import KINDS, OF_A_CELL, OF_THE_TABLE, read_table
from server_app.sweep.points import read_axes
from strategies.engine.rounds import RoundLog
from task.config.read import flatten, knobs, recipes
from tests.pages import command_pages, keys, manual, reproduction, sent, with_stock_classes, with_table
from tests.support.brought import imported_from
from tests.support.federation import play
from tests.support.script import run_script

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
}
README = PAGES[ROOT / "README.md"]


def commands(program: str) -> list[str]:
    """Return the pages' command lines of a program, comments cut off, continuations joined.

    Apps that a page describes have run-config keys of their own.
    """
    pages = [text for path, text in PAGES.items() if ROOT / "docs/apps" not in path.parents]
    blocks = [block for text in pages for block in re.findall(r"```bash\n(.*?)```", text, re.S)]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in dict.fromkeys(lines) if line.split(" ")[0] == program]


def test_the_tables_are_made_from_the_catalogue() -> None:
    assert with_table(README) == README, "run `make docs`"
    extend = PAGES[ROOT / "docs/howto/extend.md"]
    assert with_stock_classes(extend) == extend, "run `make docs`"
    assert PAGES[ROOT / "docs/reference/algorithms.md"] == sent(), "run `make docs`"
    assert PAGES[ROOT / "docs/results/reproduction.md"] == reproduction(), "run `make docs`"
    assert PAGES[ROOT / "docs/reference/keys.md"] == keys(), "run `make docs`"
    assert PAGES[ROOT / "docs/reference/commands.md"] == command_pages(), "run `make docs`"
    assert (ROOT / "docs/reference/bouquet.1").read_text("utf-8") == manual(), "run `make docs`"


@pytest.mark.parametrize("line", commands("bouquet"))
def test_bouquet_commands_exist_and_their_keys_are_real(line: str) -> None:
    words = shlex.split(line, comments=True)
    group = get_command(app)
    if words[1].startswith("-"):
        assert words[1] in {"--help", *(o for p in group.params for o in p.opts)}
        return
    command = group.commands[words[1]]  # type: ignore[attr-defined]
    if hasattr(command, "commands"):  # a family, such as `bouquet audit`
        command = command.commands[words[2]]
    options = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
    for word in words[2:]:
        if word.startswith("-"):
            assert word in options, word
    if "--recipe" in words:
        assert words[words.index("--recipe") + 1] in recipes()
    if "-c" in words:
        pairs = words[words.index("-c") + 1]
        keys = set(read_axes("", [pairs])[0]) if words[1] in ("sweep", "audit") else keys_of(pairs)
        assert keys <= {k.key for k in knobs()}


@pytest.mark.parametrize("line", commands("flwr"))
def test_keys_of_flwr_run_are_real(line: str) -> None:
    words = shlex.split(line, comments=True)
    value = words[words.index("-c") + 1]
    if value.endswith(".toml"):
        assert (ROOT / value).exists()
    else:
        assert keys_of(value) <= {k.key for k in knobs()}


def keys_of(pairs: str) -> set[str]:
    from flwr.common.config import parse_config_args

    return set(flatten(parse_config_args([pairs])))


def test_the_rule_of_the_example_trains(tmp_path: Path) -> None:
    text = PAGES[ROOT / "docs/howto/data.md"]
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "(Rule, " in b)
    (tmp_path / "rules.py").write_text(dedent(block))
    keys = {"dataset": "digits", "num-clients": 4, "max-examples": 90, "num-server-rounds": 2}
    with imported_from(tmp_path):
        rounds = play(keys | {"algorithm": "rules:Middle"}).rows
    assert len({row["model_sha256"] for row in rounds}) == 3
    assert [row["quarantined"] for row in rounds] == [[]] * 3


PYTHON = [
    pytest.param(dedent(block), id=f"{page.stem}-{i}")
    for page, text in PAGES.items()
    for i, block in enumerate(re.findall(r"^ *```python\n(.*?)```", text, re.S | re.M))
]


@pytest.mark.parametrize("block", PYTHON)
def test_python_blocks_compile_and_what_they_import_of_ours_exists(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        ours = ("bouquet", "strategies", "task", "client_app", "server_app")
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ours:
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names), node.module


@pytest.mark.full
def test_the_block_of_the_python_page_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGES[ROOT / "docs/reference/python.md"], re.S)
    assert "accuracy" in run_script(tmp_path, f"if __name__ == '__main__':\n{indent(block, '    ')}")


def test_every_page_is_in_the_sites_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^[\w./-]+$", index, re.M))
    pages = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in PAGES if p.name[0].islower()}
    assert pages - {"index"} <= listed


def test_make_verbs_exist() -> None:
    text = "\n".join(PAGES.values())
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.S))
    verbs = {*re.findall(r"`make ([a-z-]+)", text), *re.findall(r"^make ([a-z-]+)", blocks, re.M)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert verbs <= set(re.findall(r"^([a-z-]+):", makefile, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_exist(page: Path) -> None:
    for target, _, anchor in re.findall(r"\]\((?!http)([^)#]*)(#([^)]+))?\)", PAGES[page]):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, (
                anchor
            )


def test_every_key_of_a_round_is_explained() -> None:
    page = PAGES[ROOT / "docs/howto/runs.md"]
    table = page.partition("| key | what |\n|---|---|\n")[2].partition("\n\n")[0]
    explained = [key for line in table.splitlines() for key in re.findall("`(.*?)`", line.split("|")[1])]
    assert sorted(explained) == sorted(RoundLog(0).row({}, {"frozen": np.zeros(1)}))


def test_a_table_of_ones_own_is_explained(tmp_path: Path) -> None:
    page = PAGES[ROOT / "docs/howto/tables.md"]
    explained: dict[str, list[str]] = {}
    for head, rows in re.findall(r"^\| (.*?) \|.*\n\|---.*\n((?:\|.*\n)*)", page, re.M):
        names = [re.findall("`(.*?)`", row.split("|")[1]) for row in rows.splitlines()]
        explained.setdefault(head, []).extend(itertools.chain.from_iterable(names))
    assert sorted(explained["key"]) == sorted([*OF_THE_TABLE, *OF_A_CELL])
    assert explained["`of`"] == list(KINDS)
    assert explained["`metric`"] == list(MEASURES)
    for m in MEASURES.values():
        assert f"| `{m.name}` | {m.words} | {'higher' if m.more_is_better else 'lower'} |\n" in page
    file = tmp_path / "digits.toml"
    file.write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    table = read_table(str(file))
    assert (list(table.cells), len(table.claims)) == (["fedavg", "fedprox"], 1)


def test_every_page_is_two_links_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    for _ in range(2):
        for page in [*reached]:
            links = re.findall(r"\]\((?!http)([^)#]+)", PAGES.get(page, ""))
            reached |= {(page.parent / link).resolve() for link in links}
    assert set(PAGES) <= reached


def test_the_page_of_keys_has_their_values_and_links_to_the_pages_to_read() -> None:
    page = PAGES[ROOT / "docs/reference/keys.md"]
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert [(k.key, c) for k in knobs() for c in k.choices if str(c) not in rows[k.key]] == []
    assert "(see [compression.md](../reference/compression.md))" in page
    assert "docs/" not in page
