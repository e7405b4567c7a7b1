"""Names that clients may have and nobody would choose, put in the place of plain ones on the way.

A partition of the nodes' data gives plain names, but a node may register any that print. Here every client of
every run has one that is made to do harm where somebody forgets to escape it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from task.wire import messages as wire
from task.wire import registration

ALIASES = {
    "anna": "anna",
    "ben": "<b onclick=alert(1)>ben</b>",
    "cleo": "[bold red]cleo[/]",
    "dora": r"$\frac{dora}{0}$",
    "emil": "a.b/../emil",
    "fay": '=fay("&amp;")',
    "gus": "gül % {0} 'x' " + "ß" * 100,
}
PLAIN = {alias: name for name, alias in ALIASES.items()}


def renamed(content: RecordDict, names: Mapping[str, str]) -> RecordDict:
    """Return a content with the clients' names replaced wherever a message may hold them."""
    made = RecordDict()
    for name, record in content.items():
        field, dot, client = name.partition(".")
        if isinstance(record, ArrayRecord):
            made[field + dot + names.get(client, client)] = record
        elif isinstance(record, ConfigRecord) and name in (
            wire.CONFIG,
            wire.ANSWERED,
            wire.FAILED,
            registration.REGISTER,
        ):
            made[name] = ConfigRecord({_key(k, names): _value(v, names) for k, v in record.items()})
        else:
            made[name] = record
    return made


def _key(key: str, names: Mapping[str, str]) -> str:
    field, colon, client = key.partition(":")
    return field + colon + names.get(client, client)


def _value(value: Any, names: Mapping[str, str]) -> Any:
    return [names.get(v, v) if isinstance(v, str) else v for v in value] if isinstance(value, list) else value
