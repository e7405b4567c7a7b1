"""Several global models in one run: a record of each, ``model-0``, ``model-1`` and so on.

Entries stand in the catalogue with the default number of them; a run's own number is that of the run-config
key that `Algorithm.models` names.
"""

from collections.abc import Iterable
from dataclasses import replace

from task.catalogue.entry import Algorithm
from task.catalogue.record import Record

NAME = "model"


def model_name(j: int) -> str:
    """Return the name of a global model's record."""
    return f"{NAME}-{j}"


def several(record: Record, count: int) -> tuple[Record, ...]:
    """Return a record like this for each global model; uploads are relative to their own model."""
    names = [model_name(j) for j in range(count)]
    return tuple(replace(record, name=n, base=n if record.base else "") for n in names)


def with_models(entry: Algorithm, count: int) -> Algorithm:
    """Return an entry of several global models with another number of them."""

    def again(records: Iterable[Record]) -> tuple[Record, ...]:
        found: list[Record] = []
        for record in records:
            head, _, number = record.name.rpartition("-")
            if head != NAME:
                found.append(record)
            elif number == "0":
                found += several(record, count)
        return tuple(found)

    measured = again(entry.evaluation or ())
    return replace(entry, down=again(entry.down), up=again(entry.up), evaluation=measured)
