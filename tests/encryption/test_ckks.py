"""Sums of ciphertexts: they are the weighted mean, never wrap, and open under the nodes' key alone."""

from __future__ import annotations

import os
import select
from pathlib import Path

import numpy as np
import pytest
import tenseal as ts

from task.encryption import ckks
from task.encryption.ckks import CIPHERTEXT, FORM, MOST, Key
from task.encryption.sums import TOTAL, Ciphertexts, Sealing
from task.errors import ConfigError, FieldError, WireError
from task.numerics.arrays import Arrays

LIKE = {"w": np.zeros((3, 900)), "b": np.zeros(5)}  # two ciphertexts


@pytest.fixture(scope="module")
def key() -> Key:
    return Key(ckks.new_key())


def clients(count: int, size: float = 1.0) -> list[tuple[Arrays, int]]:
    rng = np.random.default_rng(0)
    return [
        ({n: rng.normal(0, size, a.shape) for n, a in LIKE.items()}, int(rng.integers(1, 100)))
        for _ in range(count)
    ]


def summed(key: Key, nodes: list[list[tuple[Arrays, int]]], total: int) -> Arrays:
    server = Ciphertexts(LIKE)
    for mine in nodes:
        node = Sealing(LIKE, key, total)
        for arrays, weight in mine:
            node.add(arrays, weight, "anna")
        records = node.partial()
        server.merge(records, node.weight, len(mine), server.check_merge(records, len(mine)))
    return server.result()


def test_the_sum_is_the_weighted_mean_of_those_that_answered(key: Key) -> None:
    took = clients(6)
    opened = key.open(summed(key, [took[:1], took[1:3], took[3:]], sum(n for _, n in took) + 500))
    whole = sum(n for _, n in took)
    for name, a in LIKE.items():
        want = sum(n * x[name] for x, n in took) / whole
        assert opened[name].shape == a.shape
        assert np.abs(opened[name] - want).max() < 1e-7
    alone = key.open(summed(key, [took], whole))
    assert max(np.abs(alone[n] - sum(k * x[n] for x, k in took) / whole).max() for n in LIKE) < 2e-9


@pytest.mark.parametrize("size", [1, 3, ckks.SLOTS - 1, ckks.SLOTS, ckks.SLOTS + 1, 3 * ckks.SLOTS])
def test_numbers_come_back_in_their_order(key: Key, size: int) -> None:
    values = np.random.default_rng(size).normal(size=size)
    ciphertext = key.seal(values)
    assert np.abs(key.unseal(ciphertext, size) - values).max() < 2e-9
    assert ciphertext.size < ckks.most_bytes({"w": np.zeros(size - 1)})


def test_a_sum_cannot_wrap(key: Key) -> None:
    """TenSEAL's own wrap without a word: 4000 + 4000 + 4000 = -4384. Ours are means, and range-checked."""
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, ckks.DEGREE, coeff_mod_bit_sizes=list(ckks.BITS),
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
    )  # fmt: skip
    context.global_scale = ckks.SCALE
    one = ts.plain_tensor([4000.0] * ckks.SLOTS, [ckks.SLOTS, 1])
    three = [ts.ckks_tensor(context, one, batch=True) for _ in range(3)]
    assert (three[0] + three[1] + three[2]).decrypt().raw[0] == pytest.approx(-4384, abs=1e-3)
    for value in (4000.0, -4000.0, MOST, -MOST):
        took = [({n: np.full(a.shape, value) for n, a in LIKE.items()}, 7) for _ in range(3)]
        opened = key.open(summed(key, [[one] for one in took], 21))
        assert max(np.abs(opened[n] - value).max() for n in LIKE) < 1e-7 * MOST
    with pytest.raises(ValueError, match="at most 4096"):
        key.seal(np.array([MOST * 1.001]))
    with pytest.raises(ValueError, match="at most 4096"):
        key.seal(np.array([np.nan]))


def test_a_client_out_of_range_is_refused_and_the_others_count(key: Key) -> None:
    node = Sealing(LIKE, key, 30)
    fine = {n: np.ones(a.shape) for n, a in LIKE.items()}
    node.add(fine, 10, "anna")
    with pytest.raises(FieldError, match=r"field 'b': expected finite numbers of at most 4096.*got 5000"):
        node.add(fine | {"b": np.full(5, 5000.0)}, 10, "ben")
    with pytest.raises(FieldError, match=f"field '{TOTAL}': expected a weight of at most 30; got 31"):
        node.add(fine, 21, "cleo")
    assert node.weight == 10


def test_the_server_has_no_key_and_opens_nothing(key: Key) -> None:
    context = ckks.public_context()
    assert not context.is_private()
    record = summed(key, [clients(2)], 200)
    found = ckks.load(record[CIPHERTEXT], ckks.size_of(LIKE), context)
    with pytest.raises(ValueError, match="secret_key"):
        found.decrypt()


def test_the_server_refuses_what_is_no_ciphertext_of_the_model(key: Key) -> None:
    server, node = Ciphertexts(LIKE), Sealing(LIKE, key, 9)
    node.add({n: np.ones(a.shape) for n, a in LIKE.items()}, 9, "anna")
    good = node.partial()[CIPHERTEXT][CIPHERTEXT]
    cut = good[:-200]
    other = key.seal(np.ones(3 * ckks.SLOTS))
    noise = np.frombuffer(np.random.default_rng(1).bytes(good.size), np.uint8)
    for bad in (cut, other, noise, np.zeros(0, np.uint8), good.astype(np.int64)):
        with pytest.raises(FieldError, match="ciphertext"):
            server.check_merge({CIPHERTEXT: {CIPHERTEXT: bad}}, 1)
    for records in ({}, {"high": LIKE, "low": LIKE}, {CIPHERTEXT: LIKE}):
        with pytest.raises(FieldError, match="ciphertext"):
            server.check_merge(records, 1)
    with pytest.raises(FieldError, match="numbers in clear"):
        server.check(LIKE, 1, "anna")
    with pytest.raises(WireError, match="got none"):
        server.result()


def test_an_honest_node_opens_no_other_sum(key: Key) -> None:
    took = clients(2)
    whole = sum(n for _, n in took)
    twice = summed(key, [took, took], whole)
    with pytest.raises(WireError, match="clients that count once"):
        key.open(twice)
    with pytest.raises(WireError, match="another key's"):
        Key(ckks.new_key()).open(summed(key, [took], whole))
    with pytest.raises(WireError, match="form"):
        key.open(twice | {FORM: np.frombuffer(b"[1]", np.uint8)})


def test_a_key_is_known_by_a_hash_and_a_file_is_checked(tmp_path: Path) -> None:
    context = ckks.new_key()
    assert Key(context).id == ckks.id_of(context) != ckks.id_of(ckks.new_key())
    public = str(ckks.public_of(context))
    assert ckks.id_of(context) in public
    assert len(public) < 300
    other = ts.context(
        ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 60],
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
    )  # fmt: skip
    other.global_scale = ckks.SCALE
    for i, bad in enumerate((b"", b"what", other.serialize(save_secret_key=True),
                             ckks.public_context().serialize())):  # fmt: skip
        (tmp_path / f"{i}").write_bytes(bad)
        with pytest.raises(ConfigError, match="expected the key of the nodes' encryption; got another file"):
            ckks.read_key(tmp_path / f"{i}")
    with pytest.raises(ConfigError, match="got No such file"):
        ckks.read_key(tmp_path / "none")


def test_a_forked_process_does_not_wait_for_its_parents_thread(key: Key) -> None:
    """TenSEAL's contexts have a thread, which a fork does not copy."""
    key.seal(np.ones(3))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"y" if abs(key.unseal(key.seal(np.ones(3)), 3)[0] - 1) < 1e-6 else b"n")
        os._exit(0)
    ready, _, _ = select.select([reading], [], [], 60)
    if not ready:
        os.kill(child, 9)
    os.waitpid(child, 0)
    assert ready
    assert os.read(reading, 1) == b"y"
