"""SplitNN: exact mode, windows, rows by id, repeats and restarts, what leaves a party, what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from task.catalogue.entry import COMMON, MEASURED
from task.errors import AbsentError, BouquetError, ConfigError, DataError
from task.models.split import bottom_of, top_of
from task.numerics.arrays import sha256
from task.resolve.read import read_config
from task.vertical.rows import epoch_order, in_common_order, num_tests
from task.wire.messages import ANSWERED, METRICS, records_of
from task.wire.registration import REGISTER
from tests.reference import splitnn as reference
from tests.support import parties
from tests.support.federation import Keep, play
from tests.support.grid import LocalGrid, Twice

SLICES = {"ada": slice(0, 2), "bob": slice(2, 3), "cyd": slice(3, 6)}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def data(keys: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, int]:
    """Return standardised columns by party and classes in the common order, that order, and the tests."""
    config = read_config(keys)
    ids, x, y = parties.table()
    order = in_common_order(ids, config.seeds.data)
    tests = num_tests(len(ids), config)
    train = order[tests:]
    wide = x.astype(np.float64)
    scaled = ((wide - wide[train].mean(0)) / wide[train].std(0)).astype(np.float32)
    return {name: scaled[order][:, s] for name, s in SLICES.items()}, y[order], order, tests


# ------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_batch_an_exchange_is_centralised_training_bit_for_bit(tmp_path: Path, momentum: float) -> None:
    """The same block net in one process, by back-propagation through all of it: a difference of 0."""
    keys = parties.config(vertical__window=1, momentum=momentum)
    files, config = parties.owners(tmp_path), read_config(keys)
    played = parties.play_own(files, keys)
    xs, y, _, tests = data(keys)
    bottoms = {n: bottom_of(config, (x.shape[1],), n) for n, x in xs.items()}
    top = top_of(config, 3 * 4, parties.CLASSES)
    nets = [*bottoms.values(), top]
    sgd = torch.optim.SGD([p for net in nets for p in net.parameters()], 0.2, momentum)
    for t in (1, 2):
        order = tests + epoch_order(len(y) - tests, config, t)
        for i in range(0, len(order), 8):
            rows = order[i : i + 8]
            a = torch.cat([bottoms[n](torch.from_numpy(xs[n][rows])) for n in SLICES], 1)
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(top(a), torch.from_numpy(y[rows])).backward()
            sgd.step()
    for name, net in bottoms.items():
        kept = parties.part_of(keys, played, name, files[name])
        want = {f"bottom.{k}": v.numpy() for k, v in net.state_dict().items()}
        if name == "ada":
            want |= {f"top.{k}": v.numpy() for k, v in top.state_dict().items()}
        assert kept.keys() == want.keys()
        assert all(np.array_equal(kept[k], v) for k, v in want.items())
        assert bytes.fromhex(sha256(kept)) == played.arrays(2)[name].tobytes()
    with torch.no_grad():
        a = torch.cat([bottoms[n](torch.from_numpy(xs[n][:tests])) for n in SLICES], 1)
        right = (top(a).argmax(1).numpy() == y[:tests]).mean()
    assert played.rows[2]["client_accuracy"] == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize(("window", "passes"), [(0, 1), (2, 3), (0, 2)])
def test_windows_and_passes_are_the_references(tmp_path: Path, window: int, passes: int) -> None:
    keys = parties.config(vertical__window=window, vertical__local=passes)
    files, config = parties.owners(tmp_path), read_config(keys)
    played = parties.play_own(files, keys)
    xs, y, _, tests = data(keys)
    parts = [bottom_of(config, (xs[n].shape[1],), n).state_dict() for n in SLICES]
    bottoms = [{"W": p["1.weight"].double().numpy(), "b": p["1.bias"].double().numpy()} for p in parts]
    drawn = {k: v.double().numpy() for k, v in top_of(config, 3 * 4, parties.CLASSES).state_dict().items()}
    top = {"U": drawn["1.weight"], "d": drawn["1.bias"], "V": drawn["3.weight"], "e": drawn["3.bias"]}
    m = len(y) - tests
    for t in (1, 2):
        order = tests + epoch_order(m, config, t)
        for i in range(0, m, window * 8 or m):
            rows = order[i : i + (window * 8 or m)]
            reference.window(top, bottoms, [xs[n][rows] for n in SLICES], y[rows], 8, passes, 0.2)
    for name, want in zip(SLICES, bottoms, strict=True):
        kept = parties.part_of(keys, played, name, files[name])
        assert np.abs(kept["bottom.1.weight"] - want["W"]).max() < 1e-5
    assert np.abs(parties.part_of(keys, played, "ada", files["ada"])["top.3.weight"] - top["V"]).max() < 1e-5
    windows = -(-m // (window * 8)) if window else 1
    assert [row["metrics"]["exchanges"] for row in played.rows[1:]] == [2 * windows + 1] * 2


def rows_of(played: Any) -> list[dict[str, Any]]:
    clock = {"seconds", "bytes_up", "bytes_down"}
    return [{k: v for k, v in row.items() if k not in clock} for row in played.rows]


def pooled(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Return the keys of a simulation that deals one table's columns to three clients."""
    ids, x, y = parties.table()
    path = parties.write(tmp_path / "all.csv", ids, x, y)
    return parties.config(data_path=str(path), num_clients=3, columns="2,1,3", **more)


def test_neither_nodes_nor_the_order_of_replies_change_a_byte(tmp_path: Path) -> None:
    keys = pooled(tmp_path, vertical__window=2)
    want = rows_of(play(keys, nodes=1))
    assert [row["answered"] for row in want[1:]] == [3, 3]
    assert want[1]["model_sha256"] != want[2]["model_sha256"]
    for nodes, seed in ((2, 1), (3, 2)):
        assert rows_of(play(keys, nodes=nodes, seed=seed)) == want


def test_rows_in_any_order_and_of_others_make_the_same_model(tmp_path: Path) -> None:
    """The order comes of the ids: files sorted otherwise, with rows that not all have, change nothing."""
    keys, rng = parties.config(), np.random.default_rng(0)
    common = list(range(5, 35))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    one = parties.owners(tmp_path / "one", dict.fromkeys(SLICES, common))
    orders = {"ada": [*common, 1, 2], "bob": [0, 1, *common], "cyd": [*common, 38]}
    two = parties.owners(tmp_path / "two", {k: rng.permutation(v).tolist() for k, v in orders.items()})
    a, b = parties.play_own(one, keys), parties.play_own(two, keys)
    assert [r["model_sha256"] for r in a.rows] == [r["model_sha256"] for r in b.rows]
    assert a.rows[2]["metrics"]["rows"] == 22  # of 30 common ones, 8 are for the test


# ------------------------------------------------------------------------------ repeats, restarts


def test_a_message_that_comes_twice_counts_once(tmp_path: Path) -> None:
    files, keys = parties.owners(tmp_path), parties.config(vertical__window=2)
    want = parties.play_own(files, keys)
    assert rows_of(parties.play_own(files, keys, grid_type=Twice)) == rows_of(want)


@pytest.mark.parametrize("broken", ["train.embed", "train"])
def test_a_round_that_breaks_off_is_done_again_to_the_same_model(tmp_path: Path, broken: str) -> None:
    """A party fails within round 2: the run ends and names it, and a resume from round 1 ends as if not."""
    files, keys = parties.owners(tmp_path), parties.config(vertical__window=2, num_server_rounds=3)
    want, seen = parties.play_own(files, keys), [0]

    def tamper(node: int, reply: Message) -> Message:
        if reply.metadata.message_type == broken:
            seen[0] += 1
            if seen[0] == {"train": 4, "train.embed": 12}[broken]:  # within the second round
                reply.content.clear()
        return reply

    keep = Keep()
    keep.run_id = "one"
    keys |= {"state-dir": str(tmp_path / "state")}
    with pytest.raises(BouquetError, match=r"every party is needed, and the phase .* client (ada|bob|cyd)"):
        parties.play_own(files, keys, keep, tamper=tamper)
    assert [row["round"] for row in keep.rows] == [0, 1]
    again = Keep(keep.snapshots[-1])
    again.run_id = "one"
    done = parties.play_own(files, keys, again)
    assert done.rows[-1]["model_sha256"] == want.rows[-1]["model_sha256"]
    lost = Keep(keep.snapshots[-1])
    lost.run_id = "another"  # whose parts are not there
    with pytest.raises(BouquetError, match="expected its part of the model of round 1; got none"):
        parties.play_own(files, keys, lost)


# ------------------------------------------------------------------------------- what leaves a party


class Recording(LocalGrid):
    """Keeps the content of every message that goes up, by type."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self.up: list[tuple[str, RecordDict]] = getattr(self, "up", [])
        for message, i in zip(messages, ids, strict=True):
            self.up.append((message.metadata.message_type, self.replies[i].content))
        return ids


@pytest.mark.parametrize("nodes", [1, 3])
def test_nothing_leaves_a_party_but_what_the_catalogue_declares(tmp_path: Path, nodes: int) -> None:
    """No id, no hash of one, no column and no parameter; each record of a declared name and of its rows."""
    played = play(pooled(tmp_path), nodes=nodes, grid_type=Recording)
    up: list[tuple[str, RecordDict]] = played.grid.up  # type: ignore[attr-defined]
    entry = played.strategy.entry
    contracts = {
        ("train" if c.verb == "train" else "evaluate") + f".{name}": c for name, c in entry.phases.items()
    }
    ids, x, _ = parties.table()
    hashed = {h(i.encode()).digest() for i in ids for h in (hashlib.sha256, hashlib.sha512, hashlib.blake2b)}
    columns = {np.ascontiguousarray(x[:, j]).tobytes() for j in range(x.shape[1])}
    kinds = set()
    for kind, content in up:
        kinds.add(kind)
        metrics = {k for r in content.metric_records.values() for k in r}
        arrays = content.array_records
        sent = {r.partition(".")[0] for r in arrays}
        if kind.startswith("query"):
            assert set(content.config_records) == {REGISTER}
            continue
        contract = {"train": entry, "evaluate": None, **contracts}[kind]
        if contract is None:
            assert (sent, metrics) == (set(), {"num-examples", *(s.name for s in MEASURED)})
            continue
        assert sent == ({r.name for r in contract.up} if sent or contract.up else set())
        assert metrics <= {s.name for s in (*COMMON, *contract.up_scalars)}
        assert set(content.config_records) <= {ANSWERED}
        for record in arrays.values():
            names = [n for n in record if n]
            assert names == ["rows"]
            raw = record["rows"].numpy()
            assert raw.shape[0] in (0, 1, 30, 40, 10)
            assert raw.tobytes() not in columns
            assert not {row.tobytes() for row in np.atleast_2d(raw)} & hashed
            assert not any(i.encode() in raw.tobytes() for i in ids)
    assert kinds == {
        "query.roll_call", "evaluate.points", "evaluate.mask", "evaluate.match", "train.embed", "train",
        "evaluate",
    }  # fmt: skip
    assert all(METRICS in records_of(c, type(c.metric_records[METRICS])) for k, c in up if k == "train")


# --------------------------------------------------------------------------------- what is refused


def without_labels(tmp_path: Path) -> dict[str, Path]:
    files = parties.owners(tmp_path)
    files["ada"].write_text(files["ada"].read_text().replace(",label", ",label:ignore"))
    return files


def labels_twice(tmp_path: Path) -> dict[str, Path]:
    files = parties.owners(tmp_path)
    files["cyd"].write_text(files["cyd"].read_text().replace(",x2", ",label:target"))
    ids, x, y = parties.table()
    parties.write(files["cyd"], ids, x[:, 3:], y)
    return files


def strangers(tmp_path: Path) -> dict[str, Path]:
    return parties.owners(tmp_path, {"ada": range(20), "bob": range(20, 40), "cyd": range(40)})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (without_labels, "labels: expected them at exactly one party; got them at none of ada, bob, cyd"),
        (labels_twice, "labels: expected them at exactly one party; got them at ada, cyd"),
        (strangers, "at least two rows that all parties have.*got 0: ada uses 0 of 20, bob"),
    ],
)
def test_parties_that_do_not_fit_are_refused_before_round_1(tmp_path: Path, files: Any, words: str) -> None:
    keep = Keep()
    with pytest.raises(DataError, match=words):
        parties.play_own(files(tmp_path), parties.config(), keep)
    assert keep.rows == []


def test_a_party_that_is_missing_is_named(tmp_path: Path) -> None:
    files = parties.owners(tmp_path)
    del files["bob"]
    with pytest.raises(AbsentError, match=r'"vertical.parties": expected bob among .* got ada, cyd'):
        parties.play_own(files, parties.config(vertical__parties="ada,bob,cyd"))


def test_some_parties_alone_can_be_named(tmp_path: Path) -> None:
    played = parties.play_own(parties.owners(tmp_path), parties.config(vertical__parties="ada"))
    assert list(played.arrays(2)) == ["ada"]
    assert played.rows[2]["metrics"]["exchanges"] == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Zoë 7,", ",", "line 9, column 1.*expected an id; the cell is empty"),
        (
            "Zoë 7,",
            "Zoë 6,",
            "line 9: expected an id that no other row has; got 'Zoë 6' again, .*line 8, too",
        ),
        ("who:id", "who:ignore", "expected a column of ids"),
        ("who:id,x0", "who:id,x0:id", "expected one column of type id"),
    ],
)
def test_a_file_whose_ids_cannot_be_used_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    files = parties.owners(tmp_path)
    text = files["ada"].read_text(encoding="utf-8")
    assert old in text
    files["ada"].write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises((DataError, ConfigError), match=words):
        parties.play_own({"ada": files["ada"]}, parties.config())


def test_a_party_whose_file_says_which_rows_are_for_the_test_is_refused(tmp_path: Path) -> None:
    """The common ids say it to all parties alike; other runs read such a file."""
    files = parties.owners(tmp_path)
    head, *lines = files["ada"].read_text(encoding="utf-8").splitlines()
    text = "\n".join([f"{head},fold:split", *(f"{line},train" for line in lines)])
    files["ada"].write_text(text, encoding="utf-8")
    words = "expected no column of type split, because in a vertical run .*got 'fold'. Type it NAME:ignore"
    with pytest.raises((DataError, ConfigError), match=words):
        parties.play_own({"ada": files["ada"]}, parties.config())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"partition": "iid", "algorithm": "fedavg", "vertical.cut": 3}, "vertical.cut"),
        (
            {"algorithm": "fedavg", "partition": "columns"},
            '"partition": "columns" gives clients the same rows',
        ),
        ({"partition": "shards"}, 'expected "columns"'),
        ({"local-epochs": 3}, "local-epochs"),
        ({"fraction-train": 0.5}, "fraction-train"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"vertical.noise": 2.0}, "vertical.noise"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config({"algorithm": "splitnn", "dataset": "digits", **keys})


def test_columns_that_cannot_be_dealt_are_refused(tmp_path: Path) -> None:
    for columns, words in (
        ("2,4", "a number for each party"),
        ("2,2,3", "6 columns in all"),
        ("3,0,3", "at least one"),
    ):
        with pytest.raises(ConfigError, match=words):
            play(pooled(tmp_path) | {"columns": columns})


# -------------------------------------------------------------------------------------- what it buys


def test_two_halves_of_the_digits_are_better_than_one(tmp_path: Path) -> None:
    """Left and right halves of 600 digits, eight epochs."""
    keys: dict[str, Any] = {
        "algorithm": "splitnn", "dataset": "digits", "num-clients": 2, "batch-size": 64, "model": "logistic",
        "vertical.local": 5, "local-test-fraction": 0.25, "device": "cpu", "num-server-rounds": 8,
        "max-examples": 700, "learning-rate": 0.2, "client-evaluate-every": 8,
    }  # fmt: skip
    both = play(keys, nodes=1).rows[-1]["client_accuracy"]
    alone = play(keys | {"vertical.parties": "client-0"}, nodes=1).rows[-1]["client_accuracy"]
    assert both >= 0.93
    assert alone <= 0.89
