"""Frozen parts in runs: what travels, what is trained, who is sent the frozen part, and what is left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors import safe_open
from safetensors.torch import load_model

from client_app.data import frozen as on_node
from client_app.data.node import forget_whole, open_node
from client_app.data.owner import Owner
from client_app.data.registration import registration_of
from client_app.training.private import PrivateSteps, private_program
from client_app.training.programs import Batch, Single
from server_app.results.folder import RunFolder
from server_app.takeout.model import take
from strategies.membership.client_identity import Claim, OnlineNode, admit
from strategies.stages.privacy import ReleaseLog
from task.errors import ConfigError, FieldError, StateError, WireError
from task.numerics.arrays import sha256, state_of
from task.privacy.noise import Stream, derived
from task.resolve import run_model
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from task.storage.files import read_safetensors, write_safetensors
from task.wire import messages as wire
from task.wire.frozen import DIGEST, FROZEN, OWN_FROZEN, frozen_of
from tests.support import frozen_models
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.apps import stock_app
from tests.support.brought import imported_from
from tests.support.federation import OneRun, Played, in_one_process, owners_config, play, write_owners
from tests.support.grid import LocalGrid
from tests.support.transcripts import found, run_here, texts

NETS = "frozen_nets"
BODY = {"body.weight", "body.bias", "const"}


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data, and next to them the models in a module of their own, as a user has them."""
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, features=6)
    shutil.copy(frozen_models.__file__, path.with_name(f"{NETS}.py"))
    with imported_from(path.parent):
        yield path


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Begin and end as a process that knows no frozen part."""
    on_node._held.clear()
    forget_whole()
    yield
    on_node._held.clear()
    forget_whole()


def keys(owners: Path, model: str = "Net", name: str = "fedavg", **more: Any) -> dict[str, Any]:
    given = {"num_server_rounds": 3, "state_dir": str(owners.parent / "state"), **more}
    return owners_config(owners, algorithm=name, model=f"{NETS}:{model}", **given)


def travelling_all(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **more: Any) -> Played:
    """Play a run whose frozen part travels with the rest."""
    with monkeypatch.context() as patch:
        patch.setattr(run_model, "fixed_in", lambda model: ())
        played = play(run, **more)
    forget_whole()
    return played


ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {}, "scaffold": {}, "fedprox": {"fedprox.mu": 0.1}, "ditto": {}, "fedala": {},
    "krum": {}, "fedadam": {}, "fedper": {}, "secagg": {"secagg": True}, "codec": {"codec.up": "int8"},
}  # fmt: skip


@pytest.mark.parametrize("name", [*ALGORITHMS])
def test_trained_bytes_are_those_of_a_run_whose_frozen_part_travels(
    name: str, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "fedavg" if name in ("secagg", "codec") else name
    run = keys(owners, name=rule, num_server_rounds=2) | ALGORITHMS[name]
    old, new = travelling_all(run, monkeypatch, nodes=3), play(run, nodes=3)
    assert not new.keep.lines
    was, now = old.arrays(2), new.arrays(2)
    assert was.keys() - now.keys() == BODY
    assert sha256({n: was[n] for n in now}) == sha256(now)
    assert sha256(now) != sha256(new.arrays(0))
    assert [r["model_sha256"] for r in new.rows] == [r["model_sha256"] for r in old.rows]
    assert new.rows[2]["bytes_up"] < old.rows[2]["bytes_up"]


def test_a_frozen_value_stays_what_it_is(owners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact mean rounds to 2^-51 and has no -0.0: a frozen part that travelled did not stay as it was."""
    run = keys(owners, "Odd", num_server_rounds=1)
    old, new = travelling_all(run, monkeypatch), play(run)
    first = model_of(read_config(run), (6,), 3).state_dict()["body.weight"].numpy()
    assert first[0, :3].tobytes() == np.array([1e-9, -0.0, 2.0**-52], np.float32).tobytes()
    assert new.strategy.engine.fixed["body.weight"].tobytes() == first.tobytes()
    was = old.arrays(1)["body.weight"][0, :3]
    assert was[0] != first[0, 0]
    assert (was[1], np.signbit(was[1]), was[2]) == (0.0, False, 0.0)


class Known(ReleaseLog):
    def secret(self) -> bytes:
        return bytes(32)


class Secret(OneRun):
    def __init__(self) -> None:
        super().__init__()
        self.logs.append(Known())


def test_noise_covers_what_is_trained(owners: Path) -> None:
    """Of a model whose frozen layer is a constant of its code, the same noise gives the same bytes."""
    more = {"dp.noise": 1.0, "dp.clip": 1.0, "dp.delta": 1e-3, "fraction-train": 0.8}
    got, want = (play(keys(owners, m) | more, journal=Secret()) for m in ("Net", "Constant"))
    assert got.arrays(3).keys() == want.arrays(3).keys()
    assert sha256(got.arrays(3)) == sha256(want.arrays(3))
    assert sha256(got.arrays(3)) != sha256(got.arrays(0))


def test_noise_on_examples_covers_what_is_trained(owners: Path) -> None:
    """Clipped gradients with noise are those of a model whose frozen layer is a constant of its code."""
    batch = Batch(torch.randn(1, 4, 6), torch.tensor([[0, 1, 2, 0]]), torch.ones(1))
    found = []
    for kind in (frozen_models.Net, frozen_models.Constant):
        torch.manual_seed(1)
        model = kind((6,), 3)
        program = private_program(model, Single(model))
        steps = PrivateSteps(1.0, 1.0, 4, Stream(derived(bytes(32), "test")))
        _, gradient = steps.gradient(program, program.load(state_of(model), 1), batch)
        found.append(dict(zip(program.names, (t.numpy() for t in gradient.tensors()), strict=True)))
    assert found[0].keys() == {"mid.weight", "mid.bias", "head.weight", "head.bias"}
    assert sha256(found[0]) == sha256(found[1])
    more = {"dp.unit": "example", "dp.noise": 1.0, "dp.clip": 1.0, "dp.delta": 1e-3}
    played = play(keys(owners, num_server_rounds=1) | more)
    assert not played.keep.lines
    assert not BODY & played.arrays(1).keys()


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedper"])
def test_neither_nodes_nor_a_resume_change_a_byte(name: str, owners: Path) -> None:
    run = keys(owners, name=name, num_server_rounds=4)
    the_same_on_any_nodes_and_resumed(run, nodes=(1, 3))


def test_low_rank_factors_cost_their_own_bytes(tmp_path: Path, owners: Path) -> None:
    """Ten clients on two nodes: a node's sum has 8 bytes a number, or each client's 4."""
    write_owners(path := tmp_path / "ten.npz", {f"c{i}": 4 + i % 3 for i in range(10)}, features=6)
    played = play(keys(path, "Bert", num_server_rounds=2, state_dir=str(tmp_path / "state")))
    numbers = 2 * 2 * 2 * 4 * 128 + 128 * 3 + 3
    row = played.rows[2]
    assert row["bytes_up"] / 10 <= 14_000
    assert 2 * 8 * numbers < row["bytes_up"] < 2 * 8 * numbers + 7000
    assert 2 * 4 * numbers < row["bytes_down"] < 2 * 4 * numbers + 7000
    assert played.rows[1]["bytes_down"] == pytest.approx(row["bytes_down"], abs=100)  # drawn, not sent
    assert sum(a.size for a in played.keep.snapshots[2].arrays.values()) < numbers + 100


def from_file(owners: Path, folder: Path, **more: Any) -> tuple[dict[str, Any], Path]:
    """Return a run that begins with a file of another seed, which nodes do not have."""
    run = keys(owners, state_dir=str(folder / "state"), local_epochs=1, **more)
    file = folder / "base.safetensors"
    write_safetensors(file, run_model.state_of(model_of(read_config(run | {"seed": 99}), (6,), 3)))
    return {"run-name": "run"} | run | {"initial-model": str(file)}, file


def sent_to(played: Any, kind: str = "train") -> list[tuple[int, bool]]:
    """Return the node and whether it was sent the frozen part, of each order."""
    return [
        (m.metadata.dst_node_id, FROZEN in m.content) for m in played.sent if m.metadata.message_type == kind
    ]


def test_each_node_is_sent_once_what_it_lacks(owners: Path, tmp_path: Path) -> None:
    run, _ = from_file(owners, tmp_path)
    grids: list[LocalGrid] = []

    class Watched(LocalGrid):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            grids.append(self)

    folder = in_one_process(run, tmp_path, nodes=3, grid_type=Watched)
    orders = sent_to(grids[0])
    assert [there for _, there in orders] == [True] * 3 + [False] * 6
    rows = RunFolder(folder).rounds()
    size = RunFolder(folder).config()["frozen"]["bytes"]
    assert size == 4 * (6 * 8 + 8 + 2)
    assert rows[1]["bytes_down"] > rows[2]["bytes_down"] + 3 * size
    assert rows[2]["bytes_down"] == rows[3]["bytes_down"]


class Restarted(LocalGrid):
    """Has a process that knows no frozen part for each message, and deletes in round 2 what is stored."""

    root: Path | None = None

    def _deliver(self, message: Message) -> Message | None:
        on_node._held.clear()
        forget_whole()
        if self.root and message.metadata.group_id == "2":
            for path in self.root.rglob(f"{on_node.FOLDER}/*"):
                path.unlink()
            self.root = None
        return super()._deliver(message)


def test_a_restarted_node_reads_its_store_and_one_without_it_is_sent_the_part_again(
    owners: Path, tmp_path: Path
) -> None:
    """The store is that of the former run, too, so that the later one sends nothing at first."""
    run, _ = from_file(owners, tmp_path)
    want = in_one_process(run | {"run-name": "want"}, tmp_path, nodes=2)
    grids: list[Restarted] = []

    def grid(*args: Any) -> Restarted:
        grids.append(Restarted(*args))
        grids[-1].root = tmp_path
        return grids[-1]

    got = in_one_process(run | {"run-name": "got"}, tmp_path, nodes=2, grid_type=grid)
    assert hashes(got) == hashes(want)
    orders = sent_to(grids[0])
    assert [there for _, there in orders] == [False] * 4 + [True] * 2 + [False] * 2
    assert not any(row["quarantined"] for row in RunFolder(got).rounds())


def hashes(folder: Path) -> list[str]:
    return [row["model_sha256"] for row in RunFolder(folder).rounds()]


def test_what_a_run_leaves_has_the_frozen_part_once(owners: Path, tmp_path: Path) -> None:
    run, file = from_file(owners, tmp_path, name="ditto", local_test_fraction=0.3, fraction_evaluate=1.0)
    path = in_one_process(run, tmp_path)
    folder, first = RunFolder(path), read_safetensors(file)[1]
    _, whole = read_safetensors(path / "model.safetensors")
    about, adapters = read_safetensors(path / "adapters.safetensors")
    frozen = {n: a for n, a in first.items() if n in BODY}
    assert whole.keys() == first.keys()
    assert adapters.keys() == first.keys() - BODY
    assert sha256({n: whole[n] for n in BODY}) == sha256(frozen)
    assert sha256({n: whole[n] for n in adapters}) == sha256(adapters)
    assert about["frozen-sha256"] == sha256(frozen) == folder.config()["frozen"]["sha256"]
    assert folder.result()["frozen"]["sha256"] == sha256(frozen)  # type: ignore[index]
    rows = folder.rounds()
    assert (rows[-1]["model_sha256"], rows[-1]["trained_sha256"]) == (sha256(whole), sha256(adapters))
    held = {p.name: read_safetensors(p)[1] for p in (path / "checkpoint").glob("*.safetensors")}
    assert sha256(held.pop("frozen.safetensors")) == sha256(frozen)
    assert held.keys() >= {"best.safetensors", "round-3.safetensors"}
    kept = {p.name: read_safetensors(p)[1] for p in (tmp_path / "state").rglob("anna*.safetensors")}
    for arrays in (*held.values(), *kept.values()):
        assert not [n for n in arrays if any(n.endswith(body) for body in BODY)]
    assert kept
    _, best = read_model(path / "checkpoint" / "best.safetensors")
    assert best.keys() == whole.keys()
    for client in ("", "anna"):
        body = dict(take(path, client).model.state_dict())["body.weight"]
        assert body.numpy().tobytes() == first["body.weight"].tobytes()


def test_a_run_is_resumed_with_the_frozen_part_of_its_folder(owners: Path, tmp_path: Path) -> None:
    run, file = from_file(owners, tmp_path)
    whole = in_one_process(run | {"run-name": "whole"}, tmp_path)
    half = run | {"run-name": "half", "num-server-rounds": 1}
    path = in_one_process(half, tmp_path)
    file.unlink()
    on_node._held.clear()
    more = {"num-server-rounds": 3, "resume": True}
    assert hashes(in_one_process(half | more, tmp_path)) == hashes(whole)
    there = path / "checkpoint" / "frozen.safetensors"
    _, arrays = read_safetensors(there)
    write_safetensors(there, arrays | {"const": arrays["const"] + 1})
    with pytest.raises(
        StateError, match=r"expected the frozen part .* SHA-256 [0-9a-f]{12}; got [0-9a-f]{12}"
    ):
        in_one_process(half | more | {"num-server-rounds": 4}, tmp_path)


@pytest.mark.parametrize(("model", "moves"), [("Normed", True), ("Quiet", False)])
def test_statistics_travel_where_they_move(model: str, moves: bool, owners: Path) -> None:
    played = play(keys(owners, model, batch_size=4))
    assert not played.keep.lines
    assert ("body.1.running_mean" in played.arrays(3)) == moves
    assert "body.1.weight" not in played.arrays(3)


def test_a_base_of_16_bits_trains_and_is_written_as_it_is(owners: Path, tmp_path: Path) -> None:
    path = in_one_process(keys(owners, "Half"), tmp_path)
    with safe_open(path / "model.safetensors", framework="pt") as file:
        assert file.get_tensor("body.weight").dtype == torch.bfloat16
    rows = RunFolder(path).rounds()
    assert rows[-1]["train_loss"] < rows[1]["train_loss"]
    assert take(path).model.body.weight.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_tied_weights_travel_once_and_are_tied_again_by_who_loads_them(owners: Path, tmp_path: Path) -> None:
    path = in_one_process(keys(owners, "Tied"), tmp_path)
    about, arrays = read_safetensors(path / "model.safetensors")
    assert about["head.weight"] == "words.weight"
    assert "head.weight" not in arrays
    model = frozen_models.Tied((6,), 3)
    load_model(model, path / "model.safetensors")  # strict: it knows what is tied
    assert model.head.weight is model.words.weight
    assert model.words.weight.detach().numpy().tobytes() == arrays["words.weight"].tobytes()
    assert not (path / "adapters.safetensors").exists()
    assert take(path).model.head.weight.detach().numpy().tobytes() == arrays["words.weight"].tobytes()  # type: ignore[union-attr]


def test_a_buffer_that_moves_after_all_is_refused_by_name(owners: Path) -> None:
    played = play(keys(owners, "Late", num_server_rounds=1))
    said = {line.got for line in played.keep.lines}
    assert len(played.keep.lines) == 5
    assert all("a change of 'const', which a trial step left alone" in text for text in said)


def test_a_pattern_freezes_without_the_models_code(owners: Path) -> None:
    played = play(keys(owners, trainable="head*"))
    assert [*played.arrays(3)] == ["head.weight", "head.bias"]
    with pytest.raises(ConfigError, match=r'got "haed\*", which names none of 6. The nearest are head.bias'):
        play(keys(owners, trainable="haed*"))


def test_a_pattern_freezes_a_model_of_ours(owners: Path) -> None:
    played = play(owners_config(owners, model="mlp", trainable="3.*", num_server_rounds=2))
    assert [*played.arrays(2)] == ["3.weight", "3.bias"]
    assert played.rows[2]["bytes_up"] < 3 * 8 * (64 * 3 + 3)


def test_a_site_with_the_file_is_sent_nothing_and_one_with_another_is_refused(
    owners: Path, tmp_path: Path
) -> None:
    run, file = from_file(owners, tmp_path)
    config = read_config(run)
    config = replace(config, output=replace(config.output, state_dir=str(tmp_path / "other")))
    drawn = open_node(config, {})
    site = replace(drawn, owner=Owner(False, initial_model=str(file)))
    want = sha256({n: a for n, a in read_safetensors(file)[1].items() if n in BODY})
    assert site.own_frozen()[0] == want != drawn.own_frozen()[0]
    registered = registration_of(site)
    assert (registered.frozen, registered.code[OWN_FROZEN]) == ((want,), want)
    assert OWN_FROZEN not in registration_of(drawn).code
    claims = [
        Claim(OnlineNode(i, "", "", 0), r, i) for i, r in enumerate((registered, registration_of(drawn)))
    ]
    assert not admit(claims, {}, code={OWN_FROZEN: want}).refused
    refused = admit(claims, {}, code={OWN_FROZEN: "f" * 64}).refused
    assert refused.keys() == {0}
    assert f"expected SHA-256 {'f' * 12}, got {want[:12]}" in refused[0]


def test_an_order_with_another_part_than_it_names_is_refused(owners: Path) -> None:
    arrays = {"a": np.ones(2, np.float32)}
    content = RecordDict({"config": ConfigRecord({DIGEST: "f" * 64}), FROZEN: wire.pack_arrays(arrays)})
    with pytest.raises(WireError, match=rf"expected ffffffffffff; got {sha256(arrays)[:12]}"):
        frozen_of(content, arrays)
    with pytest.raises(FieldError, match=r"expected 1 arrays as sent; got 1 with missing \['b'\]"):
        frozen_of(content, {"b": arrays["a"]})


def test_a_transcript_names_what_travels_and_the_frozen_part(owners: Path, tmp_path: Path) -> None:
    path = run_here(keys(owners, num_server_rounds=2), tmp_path)
    assert not texts(found(path, tmp_path / "state"))
    _, arrays = read_safetensors(path / "model.safetensors")
    write_safetensors(path / "model.safetensors", arrays | {"const": arrays["const"] + 1})
    (said,) = texts(found(path, tmp_path / "state"))
    assert "model.safetensors: expected the frozen part" in said


def test_a_client_that_is_not_bouquets_is_sent_the_whole_model(owners: Path, tmp_path: Path) -> None:
    """Its answer has the frozen part, too, which is dropped, whatever it says."""
    grids: list[LocalGrid] = []

    class Stock(LocalGrid):
        def __init__(self, app: ClientApp, *args: Any) -> None:
            super().__init__(stock_app(lambda context: (0.5, 7)), *args)
            grids.append(self)

    run = keys(owners, num_server_rounds=2, fraction_evaluate=0.0) | {"run-name": "stock"}
    path = in_one_process(run, tmp_path, grid_type=Stock)
    folder = RunFolder(path)
    assert not any(row["quarantined"] for row in folder.rounds())
    _, model = read_safetensors(path / "model.safetensors")
    drawn = model_of(read_config(run), (6,), 3).state_dict()
    assert model["body.weight"].tobytes() == drawn["body.weight"].numpy().tobytes()
    np.testing.assert_allclose(model["head.bias"], drawn["head.bias"].numpy() + 1.0, atol=1e-6)
    orders = [m for m in grids[0].sent if m.metadata.message_type == "train"]
    assert all({*m.content["arrays"]} == {*drawn} for m in orders)  # type: ignore[misc]
