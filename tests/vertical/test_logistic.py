"""Vertical logistic regression: Paillier by hand, the reference, the closed form, masks, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from client_app.vertical.encrypted import from_rows
from client_app.vertical.logistic import LogisticWork, whole
from task.errors import BouquetError, FieldError
from task.resolve.read import read_config
from task.vertical.paillier import SLOT_BITS, PublicKey, SecretKey, slots, widths
from task.vertical.proofs import PROOF_BYTES
from task.vertical.rows import batches, epoch_order, in_common_order, num_tests
from tests.reference import vertical_logistic as reference
from tests.support import parties
from tests.support.federation import Keep, Played, play
from tests.support.grid import LocalGrid, Twice

SLICES = {"ada": slice(0, 2), "bob": slice(2, 3), "cyd": slice(3, 6)}
OTHERS = ("model", "vertical.cut", "vertical.hidden")  # SplitNN's


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))


def config(**more: Any) -> dict[str, Any]:
    made = parties.config(algorithm="vertical-logistic", num_classes=2, vertical__key_bits=0, **more)
    return {k: v for k, v in made.items() if k not in OTHERS}


def table() -> tuple[list[str], np.ndarray, np.ndarray]:
    ids, x, y = parties.table()
    return ids, x, (y > 0).astype(int)


def owners(folder: Path, names: tuple[str, ...] = tuple(SLICES), rows: int = parties.ROWS) -> dict[str, Path]:
    ids, x, y = table()
    return {
        name: parties.write(
            folder / f"{name}.csv", ids[:rows], x[:rows, SLICES[name]], y[:rows] if name == "ada" else None
        )
        for name in names
    }


def pooled(
    keys: dict[str, Any], names: tuple[str, ...] = tuple(SLICES)
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return all standardised columns with one of ones, y of -1 and 1 in the common order, and the tests."""
    settings, (ids, x, y) = read_config(keys), table()
    order = in_common_order(ids, settings.seeds.data)
    tests = num_tests(len(ids), settings)
    wide, train = x.astype(np.float64), order[tests:]
    scaled = ((wide - wide[train].mean(0)) / wide[train].std(0))[order]
    columns = [scaled[:, SLICES[n]] for n in names]
    columns.insert(1, np.ones((len(ids), 1)))  # the intercept stands after the columns of ada
    return np.concatenate(columns, axis=1), 2.0 * y[order] - 1, tests


def weights(keys: dict[str, Any], played: Played, files: dict[str, Path]) -> np.ndarray:
    found = [parties.part_of(keys, played, name, files[name])["weight"] for name in sorted(files)]
    return np.concatenate(found)


# ---------------------------------------------------------------------------------------- Paillier


def test_paillier_by_hand() -> None:
    """p = 5, q = 7, n^2 = 1225, r = 2: 2^14 = 459, 2^28 = -19, r^n = 2^35 = 18; (1 + 3 n) 18 = 1908 = 683."""
    key = SecretKey(primes=(5, 7))
    assert key.decrypt([683]) == [3]
    assert key.decrypt([683 * 683 % 1225, pow(683, 4, 1225), pow(683, -1, 1225)]) == [6, 12, 32]
    of_three = {106 * pow(r, 35, 1225) % 1225 for r in range(1, 35) if r % 5 and r % 7}
    assert {key.encrypt(3) for _ in range(600)} == of_three  # each of the 24 is drawn


@pytest.mark.parametrize("bits", [0, 2048])
def test_sums_of_any_sign_come_back_whole(bits: int) -> None:
    rng = np.random.default_rng(1)
    key, n = SecretKey.new(bits), 3
    public = key.public
    m = [int(v) for v in rng.integers(-(2**43), 2**43, n)]
    factors = [[int(v) for v in rng.integers(-(2**30), 2**30, n)] for _ in range(public.slots + 2)]
    factors[1] = [0] * n
    masks = [public.modulus - 5, 123]
    ciphers = [key.encrypt(v) for v in m]
    made = public.combined(ciphers, factors, masks)
    found = [
        s
        for number, mask, count in zip(key.decrypt(made), masks, (public.slots, 2), strict=True)
        for s in public.unpacked(number - mask, count)
    ]
    assert found == [sum(a * b for a, b in zip(m, f, strict=True)) for f in factors]
    assert slots(bits) == public.slots == 21
    assert all(c < 256 ** widths(bits)[0] for c in made)


def test_an_answer_is_drawn_anew_whatever_it_is_made_of() -> None:
    """Two answers to one question are different ciphertexts; a factor of 1 alone would show otherwise."""
    key = SecretKey.new(2048)
    cipher = key.encrypt(7)
    one, two = (key.public.combined([cipher], [[1]], [0])[0] for _ in range(2))
    assert len({cipher, one, two}) == 3
    assert key.decrypt([one, two]) == [7, 7]


def test_the_extremes_of_a_sum_fit_into_their_slot() -> None:
    most = (2**44 - 1) * (2**31 - 1) * 2**20
    public = PublicKey(1 << 2048, clear=True)
    for signs in ((1, 1, -1), (-1, -1, -1), (1, -1, 1)):
        sums = [s * most for s in signs]
        packed = sum(s << (SLOT_BITS * j) for j, s in enumerate(sums))
        assert public.unpacked(packed % public.modulus, 3) == sums
    with pytest.raises(FieldError, match="less than 2\\^12"):
        whole(np.array([5000.0]), 32, 44, "residuals")
    with pytest.raises(FieldError, match="columns"):
        whole(np.array([np.nan]), 20, 31, "columns")


# ------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize(
    "more", [{}, {"batch_size": 0, "momentum": 0.5, "weight_decay": 0.1}], ids=("batches", "momentum")
)
def test_the_weights_are_the_references(more: dict[str, Any], tmp_path: Path) -> None:
    keys, files = config(**more), owners(tmp_path)
    played, settings = parties.play_own(files, keys), read_config(keys)
    x, y, tests = pooled(keys)
    m, order = len(y) - tests, []
    for t in (1, 2):
        rows = tests + epoch_order(m, settings, t)
        order += [rows[span] for span in batches(0, m, m, settings)]
    want = reference.train(
        np.zeros(7), x, y, order, 0.2, settings.train.momentum, settings.train.weight_decay
    )
    assert np.abs(weights(keys, played, files) - want).max() < 1e-5
    right = np.mean((x[:tests] @ want > 0) == (y[:tests] > 0))
    assert played.rows[2]["client_accuracy"] == pytest.approx(right)
    logistic = np.log1p(np.exp(-y[:tests] * (x[:tests] @ want))).mean()
    assert played.rows[2]["client_loss"] == pytest.approx(logistic, abs=1e-5)
    assert [row["metrics"]["exchanges"] for row in played.rows[1:]] == [3 * len(order) // 2 + 1] * 2


def test_the_reference_is_its_papers() -> None:
    """Its gradient by differences; many full steps end in the normal equations' solution."""
    x, y, tests = pooled(config())
    x, y, theta = x[tests:], y[tests:], np.linspace(-1, 1, 7)
    for j in range(7):
        e = np.eye(7)[j] * 1e-5
        slope = (reference.loss(theta + e, x, y) - reference.loss(theta - e, x, y)) / 2e-5
        assert reference.gradient(theta, x, y)[j] == pytest.approx(slope, abs=1e-8)
    for decay in (0.0, 0.1):
        found = reference.train(theta, x, y, [np.arange(len(y))] * 600, 1.0, decay=decay)
        assert np.abs(found - reference.least_squares(x, y, decay)).max() < 1e-6


def test_full_batches_end_in_the_normal_equations_solution(tmp_path: Path) -> None:
    """A party's own steps, many of them: least squares with targets of -2 and 2, and ridge."""
    more = {"num_server_rounds": 16, "batch_size": 0, "learning_rate": 1.5, "weight_decay": 0.5}
    keys = config(**more)
    files = owners(tmp_path)
    x, y, tests = pooled(keys)
    found = weights(keys, parties.play_own(files, keys), files)
    assert np.abs(found - reference.least_squares(x[tests:], y[tests:], 0.5)).max() < 1e-5


def test_an_encrypted_run_ends_in_the_very_weights_of_the_one_in_clear(tmp_path: Path) -> None:
    files = owners(tmp_path, ("ada", "cyd"), rows=12)
    keys = config(batch_size=5, num_server_rounds=1)
    clear, sealed = (
        parties.play_own(
            files,
            {**keys, "vertical.key-bits": bits, "state-dir": str(tmp_path / str(bits))},
            grid_type=Recording,
        )
        for bits in (0, 2048)
    )
    assert [r["model_sha256"] for r in sealed.rows] == [r["model_sha256"] for r in clear.rows]
    # What was decrypted is uniform: nothing of the sums of some 2^60 is seen in numbers of 2048 bits.
    opened: list[int] = sealed.grid.opened  # type: ignore[attr-defined]
    assert len(opened) == len(set(opened)) == 2 * 2  # batches of 5 and 4 rows, two parties
    assert min(n.bit_length() for n in opened) > 2000


class Recording(LocalGrid):
    """Keeps what was decrypted."""

    def _deliver(self, message: Message) -> Message | None:
        reply = super()._deliver(message)
        self.opened: list[int] = getattr(self, "opened", [])
        if message.metadata.message_type == "train.open" and reply is not None:
            for name, record in reply.content.array_records.items():
                if name.startswith("opened"):
                    self.opened += from_rows(record["rows"].numpy().reshape(-1, 256))
        return reply


@pytest.mark.parametrize("bits", [0, 2048])
def test_nothing_leaves_a_party_but_what_the_catalogue_declares(bits: int, tmp_path: Path) -> None:
    """Each record of a declared name and its rows; encrypted, no row's number and no sum is among them."""

    class Watching(LocalGrid):
        def _deliver(self, message: Message) -> Message | None:
            reply = super()._deliver(message)
            self.up: list[tuple[str, Message | None]] = getattr(self, "up", [])
            self.up.append((message.metadata.message_type, reply))
            return reply

    files = owners(tmp_path, ("ada", "cyd"), rows=12)
    keys = config(batch_size=0, num_server_rounds=1) | {"vertical.key-bits": bits}
    played = parties.play_own(files, keys, grid_type=Watching)
    entry, kinds = played.strategy.entry, set()
    contracts = {f"{c.verb}.{name}": c for name, c in entry.phases.items()} | {"train": entry}
    width, plain = widths(bits)
    shapes = {
        "residuals": (9, width), "moduli": (1, plain), "products": (1, width), "opened": (1, plain),
        "digest": (1, 32), "embeddings": (3, 1), "points": (12, 32),
        "proof": (1, PROOF_BYTES), "proofs": (1, PROOF_BYTES),
    }  # fmt: skip
    for kind, reply in played.grid.up:  # type: ignore[attr-defined]
        kinds.add(kind)
        assert reply is not None
        sent = reply.content.array_records
        if kind not in contracts:
            assert not sent, kind
            continue
        assert {r.partition(".")[0] for r in sent} == {r.name for r in contracts[kind].up}
        for name, record in sent.items():
            (rows,) = (record[n].numpy() for n in record if n)
            assert rows.shape[-2:] == shapes[name.partition(".")[0]], name
            if bits and name.partition(".")[0] in ("residuals", "products", "opened"):
                numbers = from_rows(rows.reshape(-1, rows.shape[-1]))
                assert min(n.bit_length() for n in numbers) > rows.shape[-1] * 8 - 64  # and not small ones
    assert kinds == {
        "query.roll_call", "evaluate.points", "evaluate.mask", "evaluate.match", "train.residuals",
        "train.products", "train.open", "train", "evaluate.scores", "evaluate",
    }  # fmt: skip


def rows_of(played: Any) -> list[dict[str, Any]]:
    clock = {"seconds", "bytes_up", "bytes_down"}
    return [{k: v for k, v in row.items() if k not in clock} for row in played.rows]


def test_neither_nodes_nor_repeats_nor_restarts_change_a_weight(tmp_path: Path) -> None:
    ids, x, y = table()
    path = parties.write(tmp_path / "all.csv", ids, x, y)
    keys = config(data_path=str(path), num_clients=3, columns="2,1,3", batch_size=16, num_server_rounds=3)
    want = rows_of(play(keys, nodes=1))
    assert len({row["model_sha256"] for row in want}) == 4
    assert rows_of(play(keys, nodes=3, seed=2)) == want
    assert rows_of(play(keys, nodes=2, grid_type=Twice)) == want
    seen = [0]

    def tamper(node: int, reply: Message) -> Message:
        seen[0] += reply.metadata.message_type == "train.open"
        if seen[0] == 9:  # within the second round
            reply.content.clear()
            seen[0] += 1
        return reply

    keep = Keep()
    keep.run_id = "one"
    keys |= {"state-dir": str(tmp_path / "state")}
    with pytest.raises(BouquetError, match="every party is needed, and the phase 'open'"):
        play(keys, nodes=3, journal=keep, tamper=tamper)
    again = Keep(keep.snapshots[-1])
    again.run_id = "one"
    assert rows_of(play(keys, nodes=2, journal=again))[-1] == want[-1]


def test_one_party_alone_and_an_uneven_split(tmp_path: Path) -> None:
    """The party with the labels alone needs nobody; one with many columns more has several packs."""
    files, keys = owners(tmp_path, ("ada",)), config(batch_size=0)
    x, y, tests = pooled(keys, ("ada",))
    settings = read_config(keys)
    order = [tests + epoch_order(len(y) - tests, settings, t) for t in (1, 2)]
    want = reference.train(np.zeros(3), x, y, order, 0.2)
    assert np.abs(weights(keys, parties.play_own(files, keys), files) - want).max() < 1e-5


# --------------------------------------------------------------------------------- what is refused


def test_labels_of_more_than_two_classes_are_refused(tmp_path: Path) -> None:
    files = parties.owners(tmp_path)
    with pytest.raises(
        BouquetError, match=r"expects labels of two classes; got 3\. splitnn takes any number"
    ):
        parties.play_own(files, config() | {"num-classes": 3})


def test_a_key_that_is_not_as_long_as_the_run_says_is_refused(tmp_path: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        for record in reply.content.array_records.values():
            for name in list(record):
                if reply.metadata.message_type == "train.residuals" and record[name].numpy().shape[-1] == 256:
                    short = np.zeros_like(record[name].numpy())
                    record[name] = type(record[name])(short)
        return reply

    keys = config(num_server_rounds=1, batch_size=0) | {"vertical.key-bits": 2048}
    with pytest.raises(BouquetError, match="moduli of 2048 bits"):
        parties.play_own(owners(tmp_path, ("ada", "cyd"), rows=8), keys, tamper=tamper)


def test_sums_that_were_tampered_with_are_refused(tmp_path: Path) -> None:
    def tamper(node: int, reply: Message) -> Message:
        if reply.metadata.message_type == "train.open":
            for record in reply.content.array_records.values():
                other = record["rows"].numpy().copy()
                other[..., 0] ^= 1
                record["rows"] = type(record["rows"])(other)
        return reply

    with pytest.raises(BouquetError, match="sums of the products that this party sent"):
        parties.play_own(owners(tmp_path), config(num_server_rounds=1), tamper=tamper)


def test_a_module_of_pytorch_agrees(tmp_path: Path) -> None:
    """Autograd on the Taylor loss of one full batch gives the same step."""
    keys = config(num_server_rounds=1, batch_size=0)
    files = owners(tmp_path)
    x, y, tests = pooled(keys)
    w = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    u = torch.from_numpy(x[tests:]) @ w
    (np.log(2.0) - torch.from_numpy(y[tests:]) * u / 2 + u * u / 8).mean().backward()
    assert w.grad is not None
    found = weights(keys, parties.play_own(files, keys), files)
    assert np.abs(found + 0.2 * w.grad.numpy()).max() < 1e-5


def test_masks_follow_from_the_columns_that_they_hide() -> None:
    """Else two runs of one name, under unlike seeds, would have masks that cancel in the difference."""
    given, moduli = np.ones((2, 4), np.uint8), [15]
    digests = {
        LogisticWork._asked(None, np.array(columns), moduli, given).tobytes()  # type: ignore[arg-type]
        for columns in ([[1.0, 2.0]], [[1.0, 2.0]], [[1.0, 3.0]])
    }
    assert len(digests) == 2
