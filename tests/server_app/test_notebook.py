"""The progress bar of a notebook: it is drawn once, moves, and shows text as text."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from server_app.run.notebook import NotebookBar, in_notebook
from server_app.run.progress import Progress


class Kernel:
    """What IPython has in the kernel of a notebook."""

    kernel = "there is one"

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.display = SimpleNamespace(display=self._display, HTML=str)

    def get_ipython(self) -> Kernel:
        return self

    def _display(self, html: str, display_id: bool) -> Any:
        assert display_id
        self.shown.append(html)
        return SimpleNamespace(update=self.shown.append)


def test_a_notebook_has_a_bar_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a round would fill the page; a bar for terminals would print control characters."""
    assert not in_notebook()
    kernel = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", kernel)  # type: ignore[arg-type]
    with Progress("auto", 4, "<b>FedAvg</b>") as progress:
        assert isinstance(progress.bar, NotebookBar)
        progress.replies(2, 1, 2)
        progress.round_done({"round": 2, "seconds": {"total": 1.0}, "accuracy": 0.5, "loss": 1.0})
    assert 'value="0.000"' in kernel.shown[0]
    assert 'max="4" value="1.500"' in kernel.shown[1]
    assert "clients 1/2" in kernel.shown[1]
    assert "accuracy 0.5" in kernel.shown[-1]
    assert "&lt;b&gt;FedAvg" in kernel.shown[-1]
    assert Progress("none", 4, "").bar is None
