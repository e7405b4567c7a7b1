"""Codes where something else happens: other apps, full disks, shared folders, rounds that are undone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from client_app.answer import answer
from client_app.data.node import open_node
from client_app.stages.replica import with_model
from strategies import FedAvg
from strategies.stages.coding import LostReplies
from strategies.stages.replica import Download
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.record import Record
from task.codecs import CODECS
from task.config.paths import state_root
from task.errors import FieldError, WireError
from task.numerics.arrays import Arrays, sha256
from task.numerics.held import dense
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import messages as wire
from task.wire.coding import CODE, Coder, coder_of
from task.wire.replica import BASE, LOST, MODEL, Steps, model_in, steps_record
from tests.strategies.test_codecs_in_runs import OneRun, keys, last
from tests.support import quickstart
from tests.support.federation import Keep, play, write_owners
from tests.test_interoperation import quickstart_grid


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, features=40)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_app_that_is_not_ours_gets_whole_models() -> None:
    config = read_config({"codec.down": "int8"})
    keep, grid = Keep(), quickstart_grid()
    FedAvg(config).start(grid, ArrayRecord(quickstart.Net().state_dict()), num_rounds=3, journal=keep)
    assert [row["answered"] for row in keep.rows[1:]] == [3, 3, 3]
    assert not [m for m in grid.sent for name in m.content.get("arrays", ()) if name.startswith(CODE)]


def test_a_node_whose_disk_is_full_trains_without_a_copy(
    owners: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = keys(owners, codec__down="int8", num_server_rounds=3)
    want = play(run)

    def full(*args: Any, **named: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("client_app.stages.replica.save_file", full)
    with caplog.at_level("ERROR", "flwr"):
        played = play(run)
    assert last(played) == last(want)
    assert not played.keep.lines
    assert "codec.down" in caplog.text
    assert "No space left on device" in caplog.text


def test_what_a_killed_process_left_of_a_copy_goes_with_the_next_one(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = keys(owners, codec__down="int8", num_server_rounds=2, run_name="killed")
    play(run, nodes=1, journal=OneRun())
    (path,) = state_root(read_config(run)).glob("killed/*/replica/*.safetensors")

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            play(run, nodes=1, journal=OneRun())
    assert len([*path.parent.iterdir()]) == 3
    play(run, nodes=1, journal=OneRun())
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".lock", ".safetensors"]
    assert {p.stat().st_mode & 0o077 for p in path.parent.iterdir()} == {0}


def test_two_nodes_with_own_data_and_one_state_folder_have_a_copy_each(tmp_path: Path) -> None:
    data = {name: tmp_path / f"{name}.npz" for name in ("anna", "ben")}
    for i, path in enumerate(data.values()):
        write_owners(path, sizes={"only": 12}, seed=i)
    run = {"dataset": "npz", "model": "logistic", "codec.down": "int8", "seed": 3, "num-classes": 3}
    run |= {"algorithm": "fedavg", "state-dir": str(tmp_path / "state")}
    config = read_config(run)
    content = RecordDict({wire.ARRAYS: wire.pack_arrays({"w": np.ones(3, np.float32)})})
    entries = {MODEL: sha256({"w": np.ones(3, np.float32)}), "run": "the-run"}
    content[wire.CONFIG] = ConfigRecord(entries)
    for name, path in data.items():
        with_model(open_node(config, {"client-name": name, "data-path": str(path)}), content)
    assert len([*(tmp_path / "state").glob("*/*/replica/*.safetensors")]) == 2


def chained(steps: Steps, mine: Arrays, config: Any, model: Arrays) -> Arrays:
    """Return what a node makes of the codes."""
    content = RecordDict({wire.ARRAYS: steps_record(steps, model, ("w",))})
    content[wire.CONFIG] = ConfigRecord({MODEL: steps.model, BASE: steps.base})
    return model_in(content, config.codec, mine, ("w",))


@pytest.mark.parametrize("back", [0, 1, 2])
def test_after_a_run_went_back_every_node_is_sent_what_brings_it_to_the_model(back: int) -> None:
    config = read_config({"codec.down": "stc", "codec.keep": 0.1})
    download, rng = Download(config), np.random.default_rng(3)
    models: list[Arrays] = [{"w": np.zeros(200, np.float32)}]

    def learn(server_round: int) -> None:
        new = {"w": models[-1]["w"] + rng.normal(size=200).astype(np.float32)}
        models.append(download.coded(models[-1], new, ("w",), server_round))

    for t in (1, 2, 3):
        learn(t)
    models.append(models[back])
    for t in (4, 5, 6):
        for mine in models:
            download.known[1] = download.id_of(mine)
            steps = download.steps_for(1, models[-1])
            if steps.base:
                assert sha256(chained(steps, mine, config, models[-1])) == steps.model
        learn(t)
    assert all(one.after == two.before for one, two in pairwise(download.steps))
    download.known[1] = download.id_of(models[back])
    assert len(download.steps_for(1, models[-1]).codes) == 3


def test_of_a_client_all_lost_replies_since_the_last_used_one_are_named() -> None:
    lost = LostReplies()
    for t in range(1, 21):
        lost.note(t, ["anna", "ben"], ["ben"])
    assert lost.rounds == {"anna": [*range(1, 21)]}
    lost.note(21, ["anna", "ben"], ["anna", "ben"])
    assert lost.rounds["anna"] == [*range(13, 21)]
    again = LostReplies()
    again.load(lost.dump())
    assert again.rounds == lost.rounds


def distance(a: Arrays, b: Arrays) -> float:
    return float(np.sqrt(sum(np.sum((b[n] - a[n]) ** 2.0) for n in a)))


def test_in_a_ring_the_bound_on_updates_is_from_the_model_that_the_client_received(owners: Path) -> None:
    ring = {"selection": "cycle", "num_server_rounds": 1, "learning_rate": 0.5}
    free = play(keys(owners, **ring), nodes=5)
    models = [wire.read_arrays(m.content["arrays"]) for m in free.messages()]  # type: ignore[arg-type]
    models.append(free.arrays(1))
    most = max(distance(a, b) for a, b in pairwise(models)) * 1.01
    assert distance(models[0], models[-1]) > most
    played = play(keys(owners, max_update_norm=most, **ring), nodes=5)
    assert not played.keep.lines
    assert last(played) == last(free)


def test_a_message_of_another_strategy_is_answered_with_a_model_under_a_codec(owners: Path) -> None:
    node = open_node(read_config(keys(owners, codec__up="int8")), {})
    start = node.initial()
    content = RecordDict({"arrays": wire.pack_arrays(start)})
    content["config"] = ConfigRecord({"server-round": 1})
    arrays = wire.read_arrays(answer(node, content)["arrays"])  # type: ignore[arg-type]
    assert {n: a.shape for n, a in arrays.items()} == {n: a.shape for n, a in start.items()}


def test_codes_of_clients_that_were_not_asked_are_not_read(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short code may stand for a large array: a node could send very many."""
    read: list[str] = []

    codec_type = CODECS["stc"]
    decode = codec_type.decode

    def counted(self: Any, code: Any, base: Any, what: str) -> Any:
        read.append(what)
        return decode(self, code, base, what)

    def tamper(node: int, reply: Message) -> Message:
        monkeypatch.setattr(codec_type, "decode", counted)
        one = reply.content["arrays.anna"]
        for i in range(50):
            reply.content[f"arrays.eve-{i}"] = one
        return reply

    run = keys(owners, codec__up="stc", fraction_train=1.0, num_server_rounds=1)
    played = play(run, nodes=1, tamper=tamper)
    assert len(played.keep.lines) == 5
    assert "one record for each of 5 clients" in str(played.keep.lines[0])
    assert not read


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_round_whose_model_no_code_can_stand_for_keeps_the_model(
    owners: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rule's result is finite; its change, scaled by the codec, is not."""
    huge = {"fedavgm__server_lr": 1e38, "fedavgm__momentum": 0.0, "codec__keep": 0.01, "learning_rate": 0.5}
    with caplog.at_level("WARNING", "flwr"):
        rows = play(keys(owners, "fedavgm", codec__down="rand-k", num_server_rounds=2, **huge)).rows
    assert [row["skipped"] for row in rows[1:]] == [True, True]
    assert rows[2]["model_sha256"] == rows[0]["model_sha256"]
    assert "round 2 keeps the model" in caplog.text
    assert "codec.down" in caplog.text


def coder_for(owners: Path, **given: Any) -> tuple[Coder, Record, Arrays]:
    """Return a coder of FedAvg's clients, their record, and the model that they received."""
    node = open_node(read_config(keys(owners, **given)), {})
    entry, start = contract_of(node.config), node.initial()
    received = {wire.ARRAYS: start}
    coder = coder_of(node.config, entry, node.forms().of(entry.up), received, node.parts().trainable, 1)
    assert coder is not None
    return coder, entry.up[0], start


@pytest.mark.parametrize("name", ["top-k", "stc"])
def test_what_a_code_stands_for_is_the_update_and_the_residual_less_what_it_leaves_out(
    name: str, owners: Path
) -> None:
    coder, record, start = coder_for(owners, codec__up=name)
    rng = np.random.default_rng(2)
    mine, residual = (
        {n: rng.normal(size=a.shape).astype(np.float32) for n, a in start.items()} for _ in "ab"
    )
    code, x, left = coder.encode("anna", record, mine, residual)
    made = coder.decode("anna", record, {CODE: np.frombuffer(code, np.uint8)})
    for n in start:
        np.testing.assert_allclose(x[n], mine[n] - start[n] + residual[n], atol=1e-6)
        np.testing.assert_allclose(dense(made[n]) - start[n], x[n] - dense(left[n]), atol=1e-6)


def test_an_array_that_is_coded_may_not_come_as_it_is_too(owners: Path) -> None:
    coder, record, start = coder_for(owners, codec__up="int8")
    code = np.frombuffer(coder.encode("anna", record, start, {})[0], np.uint8)
    with pytest.raises(FieldError, match="no arrays for what is coded"):
        coder.decode("anna", record, {CODE: code, **start})


def test_a_node_sends_codes_while_they_are_smaller_than_their_sum_and_fit_into_memory(
    owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coder, record, _ = coder_for(owners, codec__up="int8")
    entry = replace(ALGORITHMS["fedavg"], up=(record,))
    assert [coder.forwarding(entry, k).up[0].carry for k in (1, 5, 100)] == ["each", "each", "partial"]
    monkeypatch.setattr("task.wire.coding.MOST_DECODED", 1)
    assert coder.forwarding(entry, 1).up[0].carry == "partial"


def test_codes_that_come_to_another_model_or_that_no_key_asked_for_are_refused() -> None:
    config = read_config({"codec.down": "int8"})
    download, old = Download(config), {"w": np.zeros(50, np.float32)}
    download.known[1] = download.id_of(old)
    model = download.coded(old, {"w": np.ones(50, np.float32)}, ("w",), 1)
    steps = download.steps_for(1, model)
    assert sha256(chained(steps, old, config, model)) == steps.model
    with pytest.raises(WireError, match=LOST):
        chained(replace(steps, model="0" * 64), old, config, model)
    with pytest.raises(WireError, match=r'by codec\.down = "none"; got codes'):
        chained(steps, old, read_config({}), model)


def test_what_a_model_takes_down_is_the_same_after_a_resume() -> None:
    config = read_config({"codec.down": "int8"})
    download, resumed = Download(config), Download(config)
    model = download.coded({"w": np.zeros(99, np.float32)}, {"w": np.ones(99, np.float32)}, ("w",), 1)
    resumed.load(download.dump())
    assert resumed.bytes_of(model, ("w",)) == download.bytes_of(model, ("w",)) < 4 * 99


def test_runs_of_one_name_have_copies_of_their_own(owners: Path) -> None:
    node = open_node(read_config(keys(owners, codec__down="int8", run_name="twice")), {})
    model = {"w": np.ones(3, np.float32)}
    for run in ("first", "second"):
        content = RecordDict({wire.ARRAYS: wire.pack_arrays(model)})
        content[wire.CONFIG] = ConfigRecord({MODEL: sha256(model), "run": run})
        with_model(node, content)
    found = state_root(node.config).glob("twice/*/replica/*.safetensors")
    assert sorted(p.parents[1].name for p in found) == ["first", "second"]


def test_in_a_skipped_round_the_good_replies_are_lost_too(owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        if node == 0 and reply.metadata.group_id == "1":
            reply.content.clear()
        return reply

    run = keys(owners, codec__up="stc", fraction_train=1.0, num_server_rounds=2, min_replies=5)
    played = play(run, nodes=5, tamper=tamper)
    assert [row["skipped"] for row in played.rows[1:]] == [True, False]
    orders = [m.content["config"] for m in played.messages() if m.metadata.group_id == "2"]
    named = [(o["lost-clients"], o["lost-rounds"]) for o in orders]  # type: ignore[index, call-overload]
    assert sorted(named) == [([c], [1]) for c in sorted(played.names)]  # type: ignore[type-var]


def test_a_node_whose_reply_was_bad_is_sent_the_whole_model_next(owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        if node == 0 and reply.metadata.group_id == "2":
            reply.content.clear()
        return reply

    played = play(
        keys(owners, codec__down="int8", fraction_train=1.0, num_server_rounds=4), nodes=2, tamper=tamper
    )
    bad = next(n for n, i in played.grid.index.items() if i == 0)
    whole = [
        (int(m.metadata.group_id), m.metadata.dst_node_id == bad)
        for m in played.messages()
        if wire.entry_of(m.content, BASE) is None
    ]
    assert sorted(whole) == [(1, False), (1, True), (3, True)]
