"""One table of exit codes: in the code, in the docs, in the systemd units."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import pytest

from server_app.cli import exits
from server_app.cli.main import main
from server_app.deploy.calls.control_calls import LinkError
from server_app.deploy.kits.templates import UNIT
from task.errors import BouquetError, ConfigError, DataError, NodesError

ROOT = Path(__file__).parents[2]


def test_the_docs_have_the_table() -> None:
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text()
    rows = re.findall(
        r"^\| (\d+) \| (.*) \|$", page.partition("## Exit codes")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert {int(code): meaning for code, meaning in rows} == exits.MEANINGS


def test_units_start_nothing_again_that_cannot_succeed() -> None:
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT, re.MULTILINE)
    assert tuple(map(int, codes.split())) == exits.LASTING


@pytest.mark.parametrize(
    ("err", "code"),
    [
        (ConfigError("x"), 78),
        (DataError("x"), 65),
        (LinkError("x"), 69),
        (NodesError("x"), 70),
        (BouquetError("x"), 70),
        (PermissionError(13, "x", "file"), 74),
        (KeyError("x"), 70),
    ],
)
def test_each_error_has_its_code(err: Exception, code: int) -> None:
    assert exits.code_of(err) == code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["--no-such-option"], 2),
        (["no-such-command"], 2),
        (["run", "-c", 'algorithm="fedprx"'], 78),
        (["run", "-c", 'dataset="csv" data-path="/nowhere/ward.csv"'], 65),
    ],
)
def test_commands_end_with_them(line: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; `tests.system` has processes that end so."""
    monkeypatch.setattr(sys, "argv", ["bouquet", *line])
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # which is of the whole process
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code


def test_no_command_makes_up_a_code() -> None:
    """A number in an exit is one that the table does not have, or will not."""
    for path in (ROOT / "server_app" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit"):
                assert not any(isinstance(a, ast.Constant) for a in node.args), f"{path.name}:{node.lineno}"
