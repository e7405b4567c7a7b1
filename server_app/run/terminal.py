"""The console for all output: it prints text from outside literally, whatever it contains.

A node's version, a job's reason, the name of a folder: none of it is trusted. On this console square brackets
are no markup and colons no emoji, and control characters are shown as question marks. Colours come from
`rich.text.Text` and styles only.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from task.text import plain


class Terminal(Console):
    """A console of rich without markup, emoji codes and control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string; it is made plain before its width is measured."""
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with each text made plain; what rich itself writes to steer the terminal stays.

        A word that is too long for its column of a table is broken, never cut off.
        """
        for column in renderable.columns if isinstance(renderable, Table) else ():
            if column.overflow == "ellipsis" and not column.no_wrap:
                column.overflow = "fold"
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
