"""Entries of analyses whose clients send exact sums over all their rows, and train no model."""

from collections.abc import Mapping
from typing import Any

from task.catalogue.entry import Algorithm
from task.catalogue.papers import Paper
from task.catalogue.record import Layout, Record

_INTEGERS, _NUMBERS = Layout("rows", "int64"), Layout("rows", "float64")


def sums(name: str, meaning: str) -> tuple[Record, ...]:
    """Return the record of a question's answer: integers that are added over all sites."""
    return (Record(name, _INTEGERS, meaning, "sum", of="all"),)


def numbers(name: str, meaning: str) -> Record:
    """Return a record of numbers [rows, width] that go down with a question."""
    return Record(name, _NUMBERS, meaning)


def question(
    name: str, title: str, source: Paper, work: str, down: tuple[Record, ...], up: tuple[Record, ...]
) -> Algorithm:
    """Return the contract of a question other than the round's."""
    return Algorithm(name, title, source, down=down, up=up, work=work, weight="uniform", statistics=True)


def analysis(
    name: str,
    title: str,
    source: Paper,
    work: str,
    down: tuple[Record, ...],
    up: tuple[Record, ...],
    phases: Mapping[str, Algorithm],
    **fields: Any,
) -> Algorithm:
    """Return the entry of an analysis: the round's question, and the others by name."""
    return Algorithm(
        name, title, source,
        work=work,
        down=down,
        up=up,
        phases=phases,
        weight="uniform",
        batched=False,
        fixed_model=True,
        statistics=True,
        group="classical",
        no_neutral="it trains no model, so that it is never FedAvg",
        **fields,
    )  # fmt: skip
