"""No error is lost: mistakes are raised, every retry is a warning, and a broad except says why."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from client_app.work import Training
from strategies.rules.fedavg import FedAvg
from tests.support.federation import Played, owners_config, play, write_owners

ROOT = Path(__file__).resolve().parents[1]
CODE = ("bouquet", "client_app", "server_app", "strategies", "task")
BROAD = {"Exception", "BaseException"}


def _names(node: ast.expr | None) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node] if node else []
    return {"BaseException"} if node is None else {p.id for p in parts if isinstance(p, ast.Name)}


def _broad(tree: ast.AST) -> Iterator[tuple[int, bool]]:
    """Yield the line of each place that stops any error, and whether it raises in the end."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _names(node.type) & BROAD:
            yield node.lineno, isinstance(node.body[-1], ast.Raise)
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("suppress")
            and any(_names(arg) & BROAD for arg in node.args)
        ):
            yield node.lineno, False


def test_a_broad_except_raises_in_the_end_or_says_why_it_does_not() -> None:
    silent, found = [], 0
    for path in sorted(p for folder in CODE for p in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for line, raises in _broad(ast.parse(text)):
            found += 1
            if not raises and "  # " not in lines[line - 1]:
                silent.append(f"{path.relative_to(ROOT)}:{line}: {lines[line - 1].strip()}")
    assert found > 40
    assert not silent, "\n".join(silent)


def test_no_error_shows_the_name_of_a_value_in_place_of_the_value() -> None:
    """A part of a long message that lacks its ``f``."""
    found = []
    for path in sorted(p for folder in CODE for p in (ROOT / folder).rglob("*.py")):
        for raised in (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Raise)):
            formatted = [v for n in ast.walk(raised) if isinstance(n, ast.JoinedStr) for v in n.values]
            plain = [n for n in ast.walk(raised) if isinstance(n, ast.Constant) and n not in formatted]
            texts = [(n.lineno, n.value) for n in plain if isinstance(n.value, str)]
            bad = [line for line, text in texts if re.search(r"\{[a-z_][\w.]*(![rs]|:[^{}]*)?\}", text)]
            found += [f"{path.relative_to(ROOT)}:{line}" for line in bad]
    assert not found


# ----------------------------------------------------------------------------------- in the server's rule


def played(folder: Path, **keys: Any) -> Played:
    write_owners(folder / "owners.npz")
    more = {"num_server_rounds": 2, "fraction_train": 1.0, **keys}
    return play(owners_config(folder / "owners.npz", **more))


def test_a_mistake_in_a_rule_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(*given: Any) -> Any:
        return nowhere  # type: ignore[name-defined]  # noqa: F821

    monkeypatch.setattr(FedAvg, "update", staticmethod(update))
    with pytest.raises(NameError, match="nowhere"):
        played(tmp_path)


def test_what_the_replies_lead_a_rule_to_keeps_the_model_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def update(*given: Any) -> Any:
        raise FloatingPointError("weights that are too small")

    monkeypatch.setattr(FedAvg, "update", staticmethod(update))
    caplog.set_level(logging.WARNING)
    assert [row["skipped"] for row in played(tmp_path).rows[1:]] == [True, True]
    assert "FloatingPointError: weights that are too small" in caplog.text
    assert "Traceback" in caplog.text


# --------------------------------------------------------------------------------- in a client's training


def failing(monkeypatch: pytest.MonkeyPatch, err: Exception) -> None:
    """Let clients fail that train together, as those of a broken fast path do."""
    whole = Training._cohort

    def cohort(self: Training, clients: Sequence[str]) -> Any:
        if len(clients) > 1:
            raise err
        return whole(self, clients)

    monkeypatch.setattr(Training, "_cohort", cohort)


def test_clients_that_train_again_in_halves_are_a_warning_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, RuntimeError("CUDA out of memory"))
    caplog.set_level(logging.WARNING)
    rows = played(tmp_path).rows[1:]
    assert [row["answered"] for row in rows] == [5, 5]
    lines = [r.getMessage() for r in caplog.records if "two halves" in r.getMessage()]
    assert lines
    assert all("RuntimeError: CUDA out of memory" in line and '"stack"' in line for line in lines)


@pytest.mark.parametrize("kind", [NameError, AttributeError, TypeError, NotImplementedError])
def test_a_mistake_in_the_program_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    """The node's reply is the error, so that nobody trains: with the halves all would have."""
    failing(monkeypatch, kind("a broken fast path"))
    run = played(tmp_path, num_server_rounds=1)
    assert run.rows[1]["answered"] == 0
    assert "two halves" not in caplog.text
    assert all("a broken fast path" in str(line) for line in run.keep.lines)
    assert run.keep.lines
