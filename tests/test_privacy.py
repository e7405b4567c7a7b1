"""Nothing leaves a client but what the catalogue declares: every message that goes up is looked through."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from client_app.data.node import open_node
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.columns import columns_phase
from task.catalogue.entry import TESTS
from task.numerics import moments
from task.numerics.prototypes import COUNTS, FEATURES
from task.resolve.read import read_config
from task.wire.messages import ANSWERED, METRICS
from task.wire.registration import REGISTER
from tests.support.federation import SIZES, play
from tests.support.grid import LocalGrid
from tests.support.shapes import by_shape
from tests.test_catalogue import NAMES
from tests.test_contract import config, forms_of


def form(arrays: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {k: (tuple(a.shape), str(a.dtype)) for k, a in arrays.items()}


class Recording(LocalGrid):
    """Keeps the content of every message, down, and up by message type."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.down = getattr(self, "down", []) + [m.content for m in messages]
        ids = list(super().push_messages(messages))
        self.up = getattr(self, "up", [])
        for message, i in zip(messages, ids, strict=True):
            self.up.append((message.metadata.message_type, self.replies[i].content))
        return ids


def sent_up(owners: Path, name: str, nodes: int) -> list[tuple[str, RecordDict]]:
    keys = config(owners, name, fraction_evaluate=1.0, local_test_fraction=0.3, num_server_rounds=2)
    played = play(keys, nodes=nodes, grid_type=Recording)
    entry = ALGORITHMS[name]
    asked = len(played.rows[2]["selected"]) if entry.asynchronous else 1 if entry.pooled else len(SIZES)
    assert played.rows[2]["answered"] == asked
    assert played.rows[2]["client_loss"] is not None
    return played.grid.up  # type: ignore[attr-defined, no-any-return]


# 5: one client each, plain replies; 2: merged ones
@pytest.mark.parametrize(("name", "nodes"), [*((n, 5) for n in NAMES), *by_shape((n, 2) for n in NAMES)])
def test_nothing_leaves_a_client_but_what_the_catalogue_declares(name: str, nodes: int, owners: Path) -> None:
    forms = forms_of(owners, name)
    phases = {f"train.{phase}": contract for phase, contract in ALGORITHMS[name].phases.items()}
    contracts = {"train": ALGORITHMS[name], **phases}
    kinds = set()
    for kind, content in sent_up(owners, name, nodes):
        kinds.add(kind)
        configs = {k: set(r) for k, r in content.config_records.items()}
        metrics = {k: set(r) for k, r in content.metric_records.items()}
        if kind.startswith("query"):
            assert dict(content.array_records) == {}
            of_data = {"shape", "classes", "meaning", "inputs", "outputs"}  # digests and places, no names
            assert configs == {REGISTER: {"clients", "pool", "share", "version", "code", *of_data}}
            assert metrics == {METRICS: {"num-examples"}}
            continue
        assert configs in ({}, {ANSWERED: {"clients"}})
        if kind == "evaluate":
            assert dict(content.array_records) == {}
            assert metrics == {METRICS: {"num-examples", "loss", "accuracy"}}
            continue
        entry = contracts[kind]
        assert metrics.keys() == {METRICS}
        tests = {s.name for s in TESTS} if entry.personal else set()
        assert metrics[METRICS] <= {"num-examples", "train-loss", *tests, *(s.name for s in entry.up_scalars)}
        for f in entry.up:
            merged = f.carry == "partial" and not f.coded and ANSWERED in configs
            stacked = (f.carry == "each" or f.coded) and ANSWERED in configs
            parts = [f"{f.name}.high", f"{f.name}.low"] if merged else [f.name]
            if stacked:  # one record for each client, and its weight
                parts = [f"{f.name}.{c}" for c in content.config_records[ANSWERED]["clients"]]  # type: ignore
            for part in parts:
                record = dict(content.array_records[part])
                assert (record.pop("").shape == ()) if stacked else True
                if f.coded:
                    assert [(k, str(a.dtype)) for k, a in record.items()] == [(":code", "uint8")]
                    continue
                shapes = {k: tuple(a.shape) for k, a in record.items()}
                want = {k: a.shape for k, a in forms.like(f.layout).items()}
                # the low part of a sum is of the floating arrays alone
                assert shapes == want or (part.endswith(".low") and shapes.items() <= want.items())
                if not merged:
                    assert form(record) == form(forms.like(f.layout))
        assert {r.partition(".")[0] for r in content.array_records} == {f.name for f in entry.up}
    exchanges = {kind for kind, entry in contracts.items() if entry is not None}
    assert kinds == {"query.roll_call", "evaluate", *exchanges}


@pytest.mark.parametrize("name", [n for n in NAMES if ALGORITHMS[n].private])
@pytest.mark.parametrize("nodes", [5, 2])
def test_the_private_part_is_in_no_message_up_or_down(name: str, nodes: int, owners: Path) -> None:
    keys = config(owners, name, fraction_evaluate=1.0, local_test_fraction=0.3, num_server_rounds=2)
    played = play(keys, nodes=nodes, grid_type=Recording)
    parts = open_node(read_config(keys), {}).parts()
    assert parts.private
    grid: Any = played.grid
    assert len(grid.down) == len(grid.up) >= 4 * min(nodes, len(SIZES))
    seen = {n for c in [*grid.down, *(c for _, c in grid.up)] for r in c.array_records.values() for n in r}
    tables = {n for n in seen if n in (FEATURES, COUNTS, "logits", "clients")}  # no part of a model
    assert seen - tables == set(parts.shared)


@pytest.mark.parametrize("nodes", [5, 2])
def test_the_sums_of_columns_go_up_once_and_as_declared(nodes: int, owners: Path) -> None:
    """Before round 1, of each client or merged, integers alone; rounds send nothing more for them."""
    keys = config(owners, "fedavg", missing="mean", standardise=True, num_server_rounds=2)
    played = play(keys, nodes=nodes, grid_type=Recording)
    grid: Any = played.grid
    kinds = [kind for kind, _ in grid.up if not kind.startswith("query")]
    assert kinds[:nodes] == ["evaluate.columns"] * nodes
    assert set(kinds[nodes:]) <= {"train", "evaluate"}
    declared = columns_phase(squares=True).up
    like = {f.name: moments.columns_like(f.layout.of, 4) for f in declared}
    for _, content in [up for up in grid.up if up[0] == "evaluate.columns"]:
        assert {k: set(r) for k, r in content.config_records.items()} in ({}, {ANSWERED: {"clients"}})
        assert {k: set(r) for k, r in content.metric_records.items()} == {METRICS: {"num-examples"}}
        merged = ANSWERED in content.config_records
        for f in declared:
            sent = form(content.array_records[f"{f.name}.high" if merged else f.name])
            assert sent == form(like[f.name])
            assert not merged or dict(content.array_records[f"{f.name}.low"]) == {}
        assert {name.partition(".")[0] for name in content.array_records} == {f.name for f in declared}
