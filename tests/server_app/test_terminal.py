"""What comes from outside is shown, and steers nothing: no markup, no emoji code, no control character."""

from __future__ import annotations

import ast
import io
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from rich.console import RenderableType
from rich.text import Text

from server_app.cli import main as cli
from server_app.cli.client_state import KeptRun
from server_app.cli.client_state import table as kept
from server_app.deploy.host.processes import say
from server_app.deploy.kits.provision_report import Line, Provisioned
from server_app.deploy.kits.provision_report import table as provisioned
from server_app.deploy.link.status import tables
from server_app.results.compare import terminal_tables
from server_app.run.progress import Progress, closing_table
from server_app.run.terminal import Terminal
from task.errors import ConfigError
from task.text import plain

ROOT = Path(__file__).resolve().parents[2]
NASTY = "[red]x[/] [/nope] [link=y]:smile:\x1b[2J\x1b]0;t\x9b1m\u202e"
SHOWN = "[red]x[/] [/nope] [link=y]:smile:?[2J?]0;t?1m?"


def console() -> tuple[Terminal, io.StringIO]:
    stream = io.StringIO()
    return Terminal(file=stream, width=400), stream


def status() -> dict[str, Any]:
    node = {
        "name": NASTY,
        "online": True,
        "last_seen": None,
        "clients": 1,
        "examples": 2,
        "app_version": NASTY,
    }
    run = {"name": NASTY, "state": NASTY, "round": 1, "rounds": None, "attempts": 1, "reason": NASTY}
    run["updated"] = time.time()
    return {"state": "green", "address": NASTY, "warnings": [NASTY], "nodes": [node], "runs": [run]}


FOLDER = Path("/kept") / quote(NASTY, safe="") / quote(NASTY, safe="")
PLACES: dict[str, tuple[list[RenderableType], int]] = {
    "status": (list(tables(status())), 9),
    "compare": (list(terminal_tables(["run", NASTY], [[NASTY, "1"]], 300)), 0),
    "state": (
        [kept([KeptRun(FOLDER, (NASTY,), 1, 0, 2, 3)])],
        3,
    ),
    "provision": ([provisioned(Provisioned(Path(NASTY), "h:1", (Line(NASTY, NASTY, NASTY),), ()))], 6),
    "a line": ([NASTY], 1),
    "a text": ([Text(NASTY, "green")], 1),
}


@pytest.mark.parametrize(("shown", "times"), PLACES.values(), ids=PLACES)
def test_every_table_shows_what_comes_from_outside_as_it_is(shown: list[RenderableType], times: int) -> None:
    out, stream = console()
    out.print(*shown, sep="\n")
    text = stream.getvalue()
    text.encode()
    assert "".join(text.split()).count("".join(SHOWN.split())) == times, text  # compare breaks long names
    assert "[red]x[/]" in text
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


def test_progress_and_closing_table_do_so(capsys: pytest.CaptureFixture[str]) -> None:
    out, stream = console()
    with Progress("log", 3, NASTY, out) as progress:
        progress.message(NASTY)
        progress.round_done({"round": 1, "seconds": None, "skipped": False})
    closing_table({"algorithm": NASTY, "dataset": "d", "model": "m"}, Path("/runs") / NASTY, out)
    assert stream.getvalue().count(SHOWN) == 3, stream.getvalue()
    say(NASTY)
    assert SHOWN in capsys.readouterr().err


def test_a_bar_still_moves_the_cursor_and_shows_colours() -> None:
    stream = io.StringIO()
    out = Terminal(
        file=stream, width=80, force_terminal=True, color_system="standard", _environ={"TERM": "xterm"}
    )
    with Progress("bar", 3, NASTY, out) as progress:
        progress.message(NASTY)
    out.print(Text("yes", "green"))
    text = stream.getvalue()
    assert "\x1b[?25h" in text
    assert "\x1b[32myes" in text
    assert "\x1b[2J" not in text


def test_an_error_is_one_line_that_steers_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: Any) -> None:
        raise ConfigError(f"got {NASTY}")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert f"error: got {SHOWN}" in capsys.readouterr().err


def test_half_a_character_can_be_printed() -> None:
    out, stream = console()
    out.print("a\ud800b", Text("c\udfffd"))
    assert stream.getvalue().encode() == b"a?b c?d\n"


@pytest.mark.parametrize("text", ["", "a b", "für 7 °C ± 2\n\tnext", "क्\u200dष", "人\u200d人", "a\u00a0b"])
def test_plain_text_stays(text: str) -> None:
    assert plain(text) == text


def test_there_is_one_console() -> None:
    """Another one would read markup in what it prints."""
    makers = set()
    for package in ("server_app", "strategies", "task", "client_app"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                made = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Console")
                if made or (isinstance(node, ast.keyword) and node.arg == "markup"):
                    makers.add(path.name)
    assert makers == set()
