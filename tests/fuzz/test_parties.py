"""What a party answers that it must not: the run ends with an error that names the party and the field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from task.catalogue.algorithms import ALGORITHMS
from task.errors import BouquetError
from tests.fuzz.mutate import mutate
from tests.support import parties
from tests.support.horizontal import VERTICAL
from tests.vertical.test_logistic import config as logistic
from tests.vertical.test_logistic import owners, place
from tests.vertical.test_secureboost import config as trees
from tests.vertical.test_secureboost import owners as tables

assert place  # a fixture of this module, too
NAMES = parties.NAMES
KINDS = ("missing", "rows", "dtype", "nan")
SEEDS = 12  # random mutations of each phase's answers


def run(name: str, folder: Path, tamper: Any) -> None:
    """Run three parties for a round, whose answers are tampered with."""
    more: dict[str, Any] = {"num_server_rounds": 1, "batch_size": 0, "fraction_evaluate": 1.0}
    if name == "secureboost":
        parties.play_own(tables(folder), trees(num_server_rounds=1, fraction_evaluate=1.0), tamper=tamper)
    elif name == "splitnn":
        parties.play_own(parties.owners(folder), parties.config(**more), tamper=tamper)
    else:
        parties.play_own(owners(folder), logistic(**more), tamper=tamper)


def phases(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the type of each message that has arrays in its answer, with their records."""
    entry = ALGORITHMS[name]
    for phase, contract in entry.phases.items():
        if contract.up:
            yield f"{contract.verb}.{phase}", [r.name for r in contract.up]
    yield "train", [r.name for r in entry.up]


def damage(content: RecordDict, record: str, how: str) -> bool:
    """Change a record of an answer; return whether it was possible."""
    (name,) = [n for n in content.array_records if n.partition(".")[0] == record]
    if how == "missing":
        del content[name]
        return True
    (array,) = [n for n in content.array_records[name] if n]
    rows = content.array_records[name][array].numpy().copy()
    if how == "nan" and rows.dtype.kind != "f":
        return False
    made = {"rows": rows[..., 1:, :], "dtype": rows.astype(np.float64), "nan": rows * np.float32("nan")}[how]
    content.array_records[name][array] = Array(np.ascontiguousarray(made, made.dtype))
    return True


CASES = [(n, kind, r, how) for n in VERTICAL for kind, up in phases(n) for r in up for how in KINDS]


@pytest.mark.parametrize(
    ("name", "kind", "record", "how"),
    [
        pytest.param(*case, marks=() if i % 4 == i // 4 % 3 else pytest.mark.full)
        for i, case in enumerate(CASES)
    ],
)
def test_the_error_names_the_party_and_the_field(
    name: str, kind: str, record: str, how: str, tmp_path: Path
) -> None:
    whose: list[str] = []

    def tamper(node: int, reply: Message) -> Message:
        if reply.metadata.message_type == kind and not whose and damage(reply.content, record, how):
            whose.append(NAMES[node])
        return reply

    if how == "nan" and record not in ("embeddings", "gradients"):
        run(name, tmp_path, tamper)  # whole numbers have no such thing
        assert not whose
        return
    with pytest.raises(BouquetError, match="every party is needed") as refused:
        run(name, tmp_path, tamper)
    (party,) = whose
    assert f"client {party}: field '{record}" in str(refused.value)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(VERTICAL))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_ends_well_or_with_an_error_of_ours(name: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng([seed, len(name)])
    kinds = [kind for kind, _ in phases(name)] + ["evaluate"]
    kind, party = kinds[rng.integers(len(kinds))], int(rng.integers(3))
    said: list[str] = []

    def tamper(node: int, reply: Message) -> Message:
        if reply.metadata.message_type == kind and node == party and not said:
            reply.content, what = mutate(rng, reply.content, kind)
            said.append(what)
        return reply

    found = ""
    try:
        run(name, tmp_path, tamper)
    except BouquetError as err:
        found = str(err)
    assert not found or NAMES[party] in found, said
