"""The progress of a run in a Jupyter notebook: a bar and a line below it."""

import sys
from html import escape
from typing import Any


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar:
    """A bar with the methods of `server_app.run.progress.Bar`."""

    def __init__(self, title: str, rounds: int | None) -> None:
        self._title, self._rounds = title, None if rounds is None else max(rounds, 1)
        self._done, self._words, self._measured = 0.0, "waiting for the first round", ""
        self._handle: Any = None

    def start(self) -> None:
        """Start drawing."""
        display: Any = sys.modules["IPython"].display
        self._handle = display.display(self._html(), display_id=True)

    def show(self, done: float, words: str, measured: str = "", **fields: Any) -> None:
        """Show how many rounds are done, words about the running one, and what was last measured, if new."""
        self._done, self._words, self._measured = done, words, measured or self._measured
        if self._handle is not None:
            self._handle.update(self._html())

    def stop(self) -> None:
        """Stop drawing; the last state stays visible."""

    def _html(self) -> Any:
        text = escape(f"{self._words}  {self._measured}")
        share = "" if self._rounds is None else f' max="{self._rounds}" value="{self._done:.3f}"'
        bar = f'<progress{share} style="width:100%"></progress>'
        display: Any = sys.modules["IPython"].display
        return display.HTML(f"<b>{escape(self._title)}</b><br>{bar}<br>{text}")
