"""Codes in whole runs: the model does not depend on nodes, resumes or lost copies, and bytes are as sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.data.node import open_node
from client_app.memory.state import StateStore
from client_app.stages.coding import Coding
from strategies.stages.replica import Download
from task.catalogue.stages import LAST_CODE
from task.codecs import CODECS, codec_of
from task.config.paths import state_root
from task.config.sections import SPARSE
from task.errors import ConfigError
from task.numerics.arrays import sha256
from task.resolve.read import read_config
from task.resolve.validate import check_names
from task.wire import messages as wire
from task.wire.coding import CODE
from tests.support.alike import the_same_on_any_nodes_and_resumed
from tests.support.federation import OneRun, Played, owners_config, play, write_owners

SPARSE_WITH_RESIDUAL = [name for name in CODECS if codec_of(name, 0.1).biased]
BOTH = [(side, name) for side in ("up", "down") for name in CODECS]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path, features=40)
    return path


def keys(owners: Path, name: str = "fedavg", **more: Any) -> dict[str, Any]:
    given = {"num_server_rounds": 4, "fraction_train": 0.6, "learning_rate": 0.1, "codec__keep": 0.1}
    state = str(owners.parent / "state")
    coded = {k: v for k, v in (given | more).items() if k != "codec__keep" or wants_keep(more)}
    return owners_config(owners, algorithm=name, state_dir=state, **coded)


def wants_keep(more: Mapping[str, Any]) -> bool:
    return bool({more.get("codec__up"), more.get("codec__down")} & {*SPARSE})


def last(played: Played) -> str:
    return sha256(played.keep.snapshots[-1].arrays)


@pytest.mark.parametrize(("side", "name"), BOTH)
def test_neither_nodes_nor_a_resume_change_a_byte(side: str, name: str, owners: Path) -> None:
    the_same_on_any_nodes_and_resumed(keys(owners, **{f"codec__{side}": name}), nodes=(1, 5))


SMALL = {"dataset": "digits", "partition": "iid", "data-path": "", "num-clients": 10, "max-examples": 60}
FORMS: dict[str, dict[str, Any]] = {
    "fedavg": {"model": "cnn-bn"}, "fedbn": {"model": "cnn-bn"},
    **{name: {} for name in ("moon", "fedper", "scaffold", "feddyn", "fednova", "qfedavg")},
}  # fmt: skip


def cells() -> Iterator[Any]:
    """Yield algorithms and codecs, each algorithm with one of them for every commit."""
    for (i, algorithm), (j, codec) in product(enumerate(FORMS), enumerate(CODECS)):
        yield pytest.param(algorithm, codec, marks=pytest.mark.full if (i - j) % len(CODECS) else ())


@pytest.mark.parametrize(("algorithm", "codec"), list(cells()))
def test_nor_does_it_under_codes_both_ways_and_any_rule(algorithm: str, codec: str, tmp_path: Path) -> None:
    write_owners(path := tmp_path / "owners.npz", {f"c{i}": 5 + i for i in range(10)}, features=12)
    sent = {"codec.up": codec, "codec.down": codec, **({"codec.keep": 0.2} if codec in SPARSE else {})}
    base = owners_config(path, algorithm=algorithm, num_server_rounds=2, fraction_train=0.5)
    picture = SMALL if FORMS[algorithm] else {"model": "2nn"}
    run = base | sent | picture | FORMS[algorithm] | {"state-dir": str(tmp_path / "state")}
    whole = the_same_on_any_nodes_and_resumed(run, nodes=(1, 10))
    assert len({row["model_sha256"] for row in whole.rows}) == 3


@pytest.mark.parametrize("side", ["up", "down"])
def test_top_k_of_all_entries_is_fedavg_bit_for_bit_and_stc_is_not(side: str, owners: Path) -> None:
    plain = play(keys(owners))
    whole = {f"codec__{side}": "top-k", "codec__keep": 1.0}
    assert [r["model_sha256"] for r in play(keys(owners, **whole)).rows] == [
        r["model_sha256"] for r in plain.rows
    ]
    ternary = play(keys(owners, **{**whole, f"codec__{side}": "stc"}))
    assert ternary.rows[1]["model_sha256"] != plain.rows[1]["model_sha256"]


def test_a_client_is_told_which_reply_was_not_used_and_takes_its_mass_back(owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        rounds.setdefault(node, 0)
        rounds[node] += 1
        if node == 0 and rounds[node] == 2:
            reply.content.clear()
        return reply

    run = keys(owners, codec__up="top-k", fraction_train=1.0, num_server_rounds=3)
    rounds: dict[int, int] = {}
    played = play(run, nodes=5, tamper=tamper, journal=OneRun())
    (lost,) = [q["client"] for q in played.rows[2]["quarantined"]]
    orders = {
        (int(m.content["config"]["server-round"]), c): m.content["config"]  # type: ignore[index, call-overload]
        for m in played.messages()
        for c in m.content["config"]["clients"]  # type: ignore[index]
    }
    assert [t for (t, c), o in orders.items() if "lost-rounds" in o] == [3]
    assert orders[3, lost]["lost-clients"] == [lost]
    assert orders[3, lost]["lost-rounds"] == [2]
    # What a client owes after round 3 and what its code of that round carries are all that it has not
    # delivered: its change of round 3, and of round 2 if that reply was lost.
    config = read_config(run)
    store = StateStore(state_root(config), config.run_name)
    for client in played.names:
        kept = {t: store.load(client, "fedavg", OneRun.run_id, t + 1) for t in (2, 3)}
        owed = {t: state_flat(k.fields) for t, k in kept.items() if k}
        change = change_of(played, 3, client, run)
        before = owed[2][0] + owed[2][1] if client == lost else owed[2][0]
        np.testing.assert_allclose(owed[3][0] + owed[3][1], before + change, atol=1e-6)


def state_flat(fields: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return what a client owes and what its last code carried, as vectors in the model's order."""
    owes = np.concatenate([fields["residual-arrays"][n].reshape(-1) for n in ("1.weight", "1.bias")])
    carried = np.zeros_like(owes)
    carried[fields[LAST_CODE.name]["arrays/entries"]] = fields[LAST_CODE.name]["arrays/values"]
    return owes, carried


def change_of(played: Played, server_round: int, client: str, run: Mapping[str, Any]) -> np.ndarray:
    """Return w_k - w^t of a client in a round, from a run without codes that starts at the same model."""
    plain = {k: v for k, v in run.items() if not k.startswith("codec.")}
    found: dict[str, np.ndarray] = {}

    def tamper(node: int, reply: Message) -> Message:
        arrays = wire.read_arrays(reply.content["arrays"])  # type: ignore[arg-type]
        found[str(node)] = np.concatenate([arrays[n].reshape(-1) for n in ("1.weight", "1.bias")])
        return reply

    start = played.keep.snapshots[server_round - 1]
    again = play(plain, nodes=5, tamper=tamper, journal=OneRun(start))
    (order,) = [m for m in again.messages() if client in m.content["config"]["clients"]]  # type: ignore[index]
    base = played.arrays(server_round - 1)
    flat = np.concatenate([base[n].reshape(-1) for n in ("1.weight", "1.bias")])
    return found[str(again.grid.index[order.metadata.dst_node_id])] - flat


def test_of_a_client_that_sends_control_variates_the_server_keeps_their_sum(owners: Path) -> None:
    run = keys(owners, "scaffold", codec__up="stc", num_server_rounds=30, local_epochs=2)
    played = play(run, journal=OneRun())
    config = read_config(run)
    store = StateStore(state_root(config), config.run_name)
    states = [store.load(c, "scaffold", OneRun.run_id) for c in played.names]
    control = played.keep.snapshots[-1].arrays
    for name in ("1.weight", "1.bias"):
        mine = sum(s.fields["control"][name].astype(np.float64) for s in states if s)
        np.testing.assert_allclose(mine / len(played.names), control[f"control/{name}"], atol=2e-6)


def test_buffers_travel_as_they_are(owners: Path) -> None:
    seen: list[set[str]] = []

    def tamper(node: int, reply: Message) -> Message:
        seen.append(set(reply.content["arrays"]))  # type: ignore[arg-type]
        return reply

    bundled = {"dataset": "digits", "num-clients": 5, "model": "cnn-bn", "num-server-rounds": 1}
    run = {"algorithm": "fedavg", "codec.up": "stc", "seed": 3, "device": "cpu", **bundled}
    played = play(run, nodes=5, tamper=tamper)
    buffers = {n for n in played.arrays(1) if n not in played.strategy.engine.trainable}
    assert buffers
    assert seen == [{CODE, *buffers}] * 5


@pytest.mark.parametrize("damage", [b"", b"\0" * 40])
def test_a_damaged_code_is_refused_by_name_and_the_others_go_on(damage: bytes, owners: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        if node == 0:
            record = reply.content["arrays"]
            spoilt = np.frombuffer(damage, np.uint8)
            reply.content["arrays"] = wire.pack_arrays({**wire.read_arrays(record), CODE: spoilt})  # type: ignore
        return reply

    played = play(
        keys(owners, codec__up="stc", fraction_train=1.0, num_server_rounds=1), nodes=5, tamper=tamper
    )
    (line,) = played.rows[1]["quarantined"]
    assert line["field"] == "arrays"
    assert played.rows[1]["answered"] == 4


@pytest.mark.parametrize(
    "given",
    [
        {"codec__up": "rand-k"},
        {"codec__up": "rand-k", "codec__bits": 4, "codec__block": 64},
        {"codec__up": "eden", "codec__block": 64},
        {"structured__kind": "mask", "structured__keep": 0.5},
        {"structured__kind": "low-rank", "structured__keep": 0.5},
    ],
)
@pytest.mark.parametrize("nodes", [5, 3])
def test_a_code_whose_sender_chose_the_seed_is_refused(
    given: dict[str, Any], nodes: int, owners: Path
) -> None:
    def tamper(node: int, reply: Message) -> Message:
        """Name the seed of another round, which fits the code's length and form."""
        for name, record in reply.content.array_records.items() if node == 0 else ():
            if CODE in (arrays := wire.read_arrays(record)):
                code = bytearray(arrays[CODE].tobytes())
                code[8] ^= 1
                arrays[CODE] = np.frombuffer(bytes(code), np.uint8)
                reply.content[name] = wire.pack_arrays(arrays)
        return reply

    run = keys(owners, fraction_train=1.0, num_server_rounds=1, **given)
    assert not play(run, nodes=nodes).keep.lines
    played = play(run, nodes=nodes, tamper=tamper)
    lines = played.rows[1]["quarantined"]
    assert lines
    assert all("seed" in line["expected"] and "client" in line["expected"] for line in lines)
    assert played.rows[1]["answered"] == 5 - len(lines)


def test_a_node_that_lost_its_copy_gets_the_whole_model(owners: Path) -> None:
    run = keys(owners, codec__down="stc", fraction_train=1.0, num_server_rounds=5)
    want = play(run, journal=OneRun())
    root = state_root(read_config(run))

    def tamper(node: int, reply: Message) -> Message:
        if node == 1 and not reply.has_error():
            for path in root.rglob("replica/*"):
                path.unlink()
        return reply

    played = play(run, nodes=2, tamper=tamper, journal=OneRun())
    assert last(played) == last(want)
    whole = [m for m in played.messages() if CODE + ":0" not in m.content["arrays"]]  # type: ignore[operator]
    assert len(whole) > 2
    assert sum(r["bytes_down"] for r in played.rows) > sum(r["bytes_down"] for r in want.rows)
    assert not played.keep.lines


def test_a_node_that_was_away_gets_the_codes_since_then_or_the_whole_model_if_that_is_smaller() -> None:
    download = Download(read_config({"codec.down": "stc", "codec.keep": 0.1}))
    model = {"w": np.zeros(1000, np.float32)}
    download.known = {1: download.id_of(model), 2: "a model of long ago", 3: ""}
    first = download.id_of(model)
    for t in range(1, 4):
        step = np.random.default_rng(t).normal(size=1000).astype(np.float32)
        model = download.coded(model, {"w": model["w"] + step}, ("w",), t)
    steps = download.steps_for(1, model)
    assert (steps.base, steps.model, len(steps.codes)) == (first, download.id_of(model), 3)
    assert [download.steps_for(n, model).base for n in (2, 3, 4)] == ["", "", ""]
    download.known[1] = steps.model
    assert download.steps_for(1, model).codes == ()
    download.known[1] = first
    download.steps = [replace(step, code=step.code * 20) for step in download.steps]
    assert download.steps_for(1, model).base == ""


@pytest.mark.parametrize("name", [*CODECS])
def test_what_the_download_owes_and_the_clients_model_are_the_rule_s(name: str) -> None:
    download = Download(read_config({"codec.down": name, **({"codec.keep": 0.05} if name in SPARSE else {})}))
    rng = np.random.default_rng(4)
    model = {"w": rng.normal(size=(30, 7)).astype(np.float32), "steps": np.array(0)}
    exact, biased = model["w"].astype(np.float64), CODECS[name].biased
    for t in range(1, 101):
        step = rng.normal(size=(30, 7)).astype(np.float32) * np.float32(0.1)
        exact += step
        model = download.coded(model, {"w": model["w"] + step, "steps": np.array(t)}, ("w",), t)
        assert int(model["steps"]) == t
    if biased:  # A = w - w^t: nothing is lost
        np.testing.assert_allclose(model["w"] + download.residual["w"], exact, atol=1e-4)
    else:
        assert not download.residual


def test_nothing_is_owed_to_a_model_that_the_run_goes_back_to() -> None:
    config = read_config({"codec.down": "top-k", "codec.keep": 0.1})
    first = {"w": np.zeros(100, np.float32)}
    step = {"w": np.arange(100, dtype=np.float32)}
    download, resumed = Download(config), Download(config)
    want = download.coded(first, step, ("w",), 1)
    after = download.coded(want, {"w": want["w"] + step["w"]}, ("w",), 2)
    resumed.load(download.dump())
    for one in (download, resumed):
        assert one.residual["w"].any()
        np.testing.assert_array_equal(one.coded(first, step, ("w",), 1)["w"], want["w"])
    assert not np.array_equal(after["w"], want["w"])


@pytest.mark.parametrize("name", ["stc", "int8"])
def test_the_bound_on_updates_holds_for_what_a_code_stands_for(name: str, owners: Path) -> None:
    given = {"codec__up": name, "fraction_train": 1.0, "num_server_rounds": 1}
    free, bound = (keys(owners, max_update_norm=most, **given) for most in (0.0, 100.0))
    assert last(play(bound, nodes=2)) == last(play(free, nodes=2))
    refused = play(keys(owners, max_update_norm=1e-4, **given), nodes=2).rows[1]["quarantined"]
    assert len(refused) == 5
    assert all("max-update-norm" in q["reason"] for q in refused)


@pytest.mark.parametrize("name", SPARSE_WITH_RESIDUAL)
def test_what_a_client_owes_gets_none_of_its_codes_refused(
    name: str, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its updates keep the bound, and so does each code: a refused one would be owed again, for ever."""
    given = {"codec__up": name, "fraction_train": 1.0, "num_server_rounds": 8, "learning_rate": 0.02}
    run = keys(owners, max_update_norm=0.25, **given)
    played = [play(run, nodes=n) for n in (5, 2)]
    assert not any(p.keep.lines for p in played)
    assert len({last(p) for p in played}) == 1
    monkeypatch.setattr(Coding, "_excess", lambda *_: 0.0)
    counts = [len(row["quarantined"]) for row in play(run, nodes=5).rows[1:]]
    assert counts == [0, *[1] * 7]


@pytest.mark.parametrize("name", SPARSE_WITH_RESIDUAL)
def test_a_client_whose_update_was_refused_is_accepted_later_and_owes_what_it_owed(
    name: str, owners: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(stage: Coding, cohort: Any, finished: Any) -> Any:
        if stage.order.round == 3 and cohort[0] == bad:
            ((upload, kept),) = finished
            far = {n: a + 100 for n, a in upload.arrays["arrays"].items()}
            finished = [(replace(upload, arrays={"arrays": far}), kept)]
        return own(stage, cohort, finished)

    own, bad = Coding.finish, min(open_node(read_config(keys(owners)), {}).clients.names)
    monkeypatch.setattr(Coding, "finish", finish)
    given = {"codec__up": name, "fraction_train": 1.0, "num_server_rounds": 4, "max_update_norm": 10.0}
    run = keys(owners, **given)
    played = play(run, nodes=5, journal=OneRun())
    assert [[q["client"] for q in row["quarantined"]] for row in played.rows[1:]] == [[], [], [bad], []]
    config = read_config(run)
    store = StateStore(state_root(config), config.run_name)
    two, three = (store.load(bad, "fedavg", OneRun.run_id, t + 1) for t in (2, 3))
    assert two
    assert three
    assert (two.round, three.round) == (2, 3)
    owed, carried = state_flat(three.fields)
    assert owed.any()
    np.testing.assert_array_equal(owed, state_flat(two.fields)[0])
    assert not carried.any()  # the refused code is not given back


def test_a_code_takes_fewer_bytes_and_the_results_say_so(owners: Path) -> None:
    plain = play(keys(owners), nodes=5)
    coded = play(keys(owners, codec__up="stc", codec__down="stc"), nodes=5)
    for key in ("bytes_up", "bytes_down"):
        assert sum(r[key] for r in coded.rows) < sum(r[key] for r in plain.rows)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"codec.up": "gzip"}, ("codec.up", "stc")),
        ({"codec.up": "eden", "codec.bits": 7}, ("codec.bits", "eden")),
        ({"codec.up": "eden", "codec.block": 100}, ("codec.block", "power of two")),
        ({"codec.keep": 0.5}, ("codec.keep", "codec.up")),
        ({"codec.up": "eden", "codec.rotate": False}, ("codec.rotate", "rand-k")),
    ],
)
def test_what_does_not_go_is_refused_with_the_key(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_names(read_config(given))
    for word in words:
        assert word in str(refused.value)
