"""Memory scopes, by an algorithm that a stranger might add: masks for a round, a count for a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from client_app.solvers import SOLVERS
from client_app.solvers.sgd import Finished, Solver
from client_app.training.loop import LocalTask
from strategies import STRATEGIES, Strategy
from strategies.engine.rule import TRAIN, Round, RoundContext
from strategies.engine.state import ServerState
from strategies.rules.fedavg import FedAvg
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.record import FREE, PARAMETERS, Record
from task.numerics.arrays import Arrays
from task.storage.client_state import read_kept
from task.wire import messages as wire
from tests.support.federation import SIZES, Played, owners_config, play

MASK = Record("mask", FREE, "r_k, another in each round", scope="round")
COUNT = Record("count", FREE, "trainings of the node's clients", scope="node")


class MaskSolver(Solver):
    """First phase: draw a mask, keep it, send it."""

    trains = False

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Draw a mask of each client's parameters by its name and round."""
        assert self.order is not None
        out: Finished = []
        for client, state, n in zip(self.order.clients, task.states(), task.num_examples, strict=True):
            assert self.kept[len(out)].get("mask") is None  # gone with the round
            rng = np.random.default_rng([self.order.round, *client.encode()])
            mask = {k: rng.normal(size=a.shape).astype(np.float32) for k, a in state.items()}
            out.append((wire.ClientUpdate({"masks": mask}, {"num-examples": n}), {"mask": mask}))
        return out


class MaskedSolver(Solver):
    """Second phase: train, and send the model plus the mask."""

    def finish(self, task: LocalTask, stats: list[dict[str, float]]) -> Finished:
        """Add what was kept in the first phase; count."""
        out: Finished = []
        for (upload, _), kept in zip(super().finish(task, stats), self.kept, strict=True):
            model = {n: a + kept["mask"][n] for n, a in upload.arrays["arrays"].items()}
            count: Arrays = {"n": kept.get("count", {"n": np.zeros(1)})["n"] + 1}
            out.append((replace(upload, arrays={"arrays": model}), {"mask": kept["mask"], "count": count}))
        return out


class MaskedRule(FedAvg):
    """FedAvg of masked models."""

    algorithm = "masked"

    def round(self, state: ServerState, context: RoundContext) -> Round:
        """Ask for the masks, then for masked models, and take the mean mask off."""
        masks = yield context.phase("masks", state)
        replies = yield context.phase(TRAIN, state, masks.clients, session=True)
        mean, mask = replies.arrays["arrays"], masks.arrays["masks"]
        return replace(state, arrays={n: mean[n] - mask[n] for n in mean}), {}


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Masked(Strategy, rule=MaskedRule):
        pass

    base = replace(ALGORITHMS["fedavg"], name="masked", rule="masked", batched=False)
    first = replace(base, solver="mask", up=(Record("masks", PARAMETERS, "r_k"),), keeps=(MASK,))
    entry = replace(base, solver="masked", keeps=(MASK, COUNT), phases=MappingProxyType({"masks": first}))
    monkeypatch.setitem(ALGORITHMS, "masked", entry)
    monkeypatch.setitem(STRATEGIES, "masked", Masked)
    monkeypatch.setitem(SOLVERS, "mask", MaskSolver)
    monkeypatch.setitem(SOLVERS, "masked", MaskedSolver)


def train(owners: Path, nodes: int = 2, **keys: Any) -> Played:
    options = {"learning_rate": 0.2, "batch_size": 4, "num_server_rounds": 3, **keys}
    return play(owners_config(owners, state_dir=str(owners.parent / "state"), **options), nodes=nodes)


@pytest.mark.usefixtures("masked")
def test_what_is_kept_for_a_round_passes_from_phase_to_phase_and_no_further(owners: Path) -> None:
    got, plain = train(owners, algorithm="masked"), train(owners)
    assert [row["quarantined"] for row in got.rows[1:]] == [[]] * 3
    for name, a in plain.arrays(3).items():
        assert got.arrays(3)[name] == pytest.approx(a, abs=1e-5)
    kept = {p.stem: read_kept(p)[0].round for p in owners.parent.glob("state/*/*/round/*.safetensors")}
    assert kept == dict.fromkeys(SIZES, 3)


@pytest.mark.usefixtures("masked")
def test_a_client_that_sat_out_finds_nothing_and_its_file_is_deleted(owners: Path) -> None:
    # The solver of the first phase asserts that nothing is there; few clients a round leave files behind.
    got = train(owners, algorithm="masked", fraction_train=0.4, num_server_rounds=6)
    assert [row["quarantined"] for row in got.rows[1:]] == [[]] * 6
    files = list(owners.parent.glob("state/*/*/round/*.safetensors"))
    assert len(files) == 2
    assert {read_kept(p)[0].round for p in files} == {6}


@pytest.mark.usefixtures("masked")
def test_a_nodes_clients_share_its_memory(owners: Path) -> None:
    train(owners, nodes=1, algorithm="masked")
    (path,) = owners.parent.glob("state/*/*/node/*.safetensors")
    assert read_kept(path)[1]["count"]["n"].tolist() == [3 * len(SIZES)]


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize("session", [True, False])
def test_a_session_asks_the_nodes_that_served_the_phase_before(
    session: bool, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(self: MaskedRule, state: ServerState, context: RoundContext) -> Round:
        masks = yield context.phase("masks", state)
        yield context.phase(TRAIN, state, masks.clients[2:], session=session)
        return state, {}

    monkeypatch.setattr(MaskedRule, "round", some)
    got = train(owners, nodes=3, algorithm="masked", num_server_rounds=1)
    asked: dict[str, dict[str, int]] = {"train.masks": {}, "train": {}}
    for m in got.grid.sent:
        kind, node = m.metadata.message_type, m.metadata.dst_node_id
        if kind in asked:
            asked[kind] |= dict.fromkeys(m.content["config"]["clients"], node)  # type: ignore[arg-type, index]
    assert len(asked["train"]) == len(SIZES) - 2
    assert (asked["train"].items() <= asked["train.masks"].items()) == session
    assert [row["quarantined"] for row in got.rows[1:]] == [[]]
