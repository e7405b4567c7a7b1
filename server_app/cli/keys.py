"""The run-config keys for people: tables by section that fit a narrow terminal."""

import json
from collections.abc import Sequence
from itertools import groupby

from rich.console import Group
from rich.table import Table

from task.config.read import Knob, knobs, section_title


def listing() -> Group:
    """Return every key with its default and its meaning, by section."""
    parts = [
        key_table(list(found), section_title(section))
        for section, found in groupby(knobs(), key=lambda k: k.section)
    ]
    spaced = [one for part in parts for one in (part, "")]
    return Group(*spaced, "Set them with -c 'key=value key=value', or in a TOML file for --recipe.")


def key_table(keys: Sequence[Knob], title: str) -> Table:
    """Return the keys below a heading."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column(no_wrap=True, style="bold")
    table.add_column(justify="right", max_width=14)
    table.add_column()
    for k in keys:
        listed = ", ".join(c for c in map(str, k.choices) if c not in k.doc)
        table.add_row(k.key, json.dumps(k.default), k.doc + (f" ({listed})" if listed else ""))
    return table
