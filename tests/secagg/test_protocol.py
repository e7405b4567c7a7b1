"""The four stages: every pattern of drop-outs, and what a server or a node that lies does not learn."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, islice, product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from task.errors import SecureAggregationError
from task.numerics.reduce import Sum
from task.secagg import node as steps
from task.secagg import shamir
from task.secagg.node import RoundMemory
from task.secagg.primitives import Keystream, agree, derive, encode
from task.secagg.protocol import PublicKeys, Roster, Rules, Session, own_mask, pair_mask
from task.secagg.server import Aggregation
from task.secagg.vector import (
    NUMBER_BYTES,
    NUMBER_MODULUS,
    Vector,
    as_fraction,
    as_limbs,
    as_number,
    as_sums,
    as_words,
    numbers_from,
    total,
)
from tests.secagg.parties import STAGES, Party, copy, mask, plain_sum, run, vector_of

SESSION = Session("run", 3, "train", "first")


def parties(n: int, **form: int) -> dict[str, Party]:
    return {f"n{i}": Party(vector_of(i, **form)) for i in range(n)}


def same(a: Vector, b: Vector) -> bool:
    words = all(np.array_equal(x, y) for x, y in ((a.low, b.low), (a.high, b.high)))
    return words and a.numbers == b.numbers


@pytest.mark.parametrize(
    ("every", "openings"), [(7, 15), pytest.param(1, 10 + 65 + 16, marks=pytest.mark.full)]
)
def test_every_pattern_of_drop_outs_of_five_nodes(every: int, openings: int) -> None:
    """Each of five nodes stays or goes at one of the four stages: a seventh of the 5^5 patterns, or all."""
    rules, opened = Rules(), 0
    for pattern in islice(product((None, *STAGES), repeat=5), 0, None, every):
        made = parties(5, size=2, numbers=1)
        gone = {s: [f"n{i}" for i in range(5) if pattern[i] == s] for s in STAGES}
        began = 5 - len(gone["keys"])
        left = began - sum(len(gone[s]) for s in STAGES[1:])
        if began < 3 or left < rules.least(began):
            with pytest.raises(SecureAggregationError, match="expected at least"):
                run(made, SESSION, rules, gone)
            continue
        before = {*gone["keys"], *gone["shares"], *gone["masked"]}
        want = plain_sum([p.vector for name, p in made.items() if name not in before])
        assert same(run(made, SESSION, rules, gone)[1], want), pattern
        opened += 1
    # 3 begin: nobody may go later, 10. 4 begin, t = 3: at most one, 5 (1 + 4 * 3). 5, t = 4: 1 + 5 * 3.
    assert opened == openings


@pytest.mark.parametrize("bits", [64, 32])
def test_sums_of_fewer_bits_come_back_after_drop_outs(bits: int) -> None:
    made = parties(5, size=40_000, bits=bits)
    gone = {"keys": ["n0"], "masked": ["n1"]}
    _, got, sent = run(made, SESSION, Rules(threshold=3), gone)
    left = [made[f"n{i}"].vector for i in (2, 3, 4)]
    assert same(got, plain_sum(left))
    want = sum(v.low.astype(object) for v in left) % 2**bits
    assert np.array_equal(as_sums(got.low), [w - 2**bits if w >= 2 ** (bits - 1) else w for w in want])
    assert sent["n2"].form == (bits, 40_000, 2)
    assert not np.isin(sent["n2"].low, left[0].low).mean() > 0.01


def test_a_threshold_of_a_majority_opens_the_sum_after_more_drop_outs() -> None:
    made = parties(5)
    _, got, _ = run(made, SESSION, Rules(threshold=3), {"shares": ["n0"], "masked": ["n4"]})
    assert same(got, plain_sum([made[f"n{i}"].vector for i in (1, 2, 3)]))


@pytest.mark.parametrize(("threshold", "n"), [(2, 4), (6, 5)])
def test_a_threshold_of_half_the_nodes_or_of_more_than_all_is_refused(threshold: int, n: int) -> None:
    with pytest.raises(SecureAggregationError, match="more than half"):
        run(parties(n), SESSION, Rules(threshold=threshold), {})


def test_the_sums_of_reductions_come_back_to_the_bit() -> None:
    rng = np.random.default_rng(5)
    like = {"w": np.zeros(1000, np.float32), "n": np.zeros(3, np.int64)}
    whole, words = Sum(like), []
    for k in range(5):
        part = Sum(like)
        for c in range(3):
            scale = 10.0 ** rng.integers(-9, 4)
            arrays = {
                "w": (rng.standard_normal(1000) * scale).astype(np.float32),
                "n": rng.integers(-(2**40), 2**40, 3),
            }
            part.add(arrays, 7 * c + 1, f"{k}-{c}")
            whole.add(arrays, 7 * c + 1, f"{k}-{c}")
        got = part.partial()
        words.append(as_words(got["high"]["w"].astype(np.int64), got["low"]["w"].astype(np.int64)))
    made = {f"n{k}": Party(Vector(*w, [0])) for k, w in enumerate(words)}
    _, summed, _ = run(made, SESSION, Rules(), {})
    high, low = as_limbs(summed.low, summed.high)
    want = whole.partial()
    assert np.array_equal(high, want["high"]["w"])
    assert np.array_equal(low, want["low"]["w"])


def test_words_and_limbs_are_those_of_the_integer() -> None:
    for value in (0, 1, -1, 2**83, -(2**83), 2**93 - 1, -(2**93), 12345678901234567890):
        high, low = np.array([value >> 31]), np.array([value & (2**31 - 1)])
        words = as_words(high, low)
        assert int(words[0][0]) + (int(words[1][0]) << 64) == value % 2**96
        back = as_limbs(*words)
        assert (int(back[0][0]) << 31) + int(back[1][0]) == value


def test_a_sum_with_a_mask_left_is_refused() -> None:
    vector = Vector.zeros(96, 100, 0)
    vector.mask([(bytes(32), 1)])
    with pytest.raises(SecureAggregationError, match="a mask is left"):
        as_limbs(vector.low, vector.high)


@pytest.mark.parametrize("values", [[0.1, -7e300, 5e-324], [-1.5, 2**-1074], [1e308] * 500, []])
def test_a_number_is_the_exact_sum_of_floats(values: list[float]) -> None:
    assert as_fraction(as_number(total(values))) == sum(map(Fraction, values), Fraction(0))
    assert as_fraction(as_number(-total(values))) == -sum(map(Fraction, values), Fraction(0))


def test_numbers_travel_as_bytes() -> None:
    vector = vector_of(1, size=0, numbers=3)
    assert numbers_from(vector.number_bytes()) == vector.numbers
    with pytest.raises(SecureAggregationError, match="bytes in all"):
        numbers_from(b"x" * 277)


@pytest.mark.parametrize("form", [(96, 5, 1), (64, 5, 1), (32, 5, 1), (96, 0, 3)])
def test_a_vector_knows_its_form(form: tuple[int, int, int]) -> None:
    """An evaluation has scalars and no sums."""
    assert Vector.zeros(*form).form == form


def test_what_a_node_sends_is_uniform_and_unlike_its_numbers() -> None:
    made = parties(3, size=200_000, numbers=1)
    for p in made.values():
        p.vector.high[:] = p.vector.low[:] = 1  # as far from uniform as can be
    _, _, sent = run(made, SESSION, Rules(), {})
    raw = np.frombuffer(sent["n1"].low.tobytes() + sent["n1"].high.tobytes(), np.uint8)
    ones = int(np.unpackbits(raw).sum())
    assert abs(ones - 4 * raw.size) < 5 * np.sqrt(2 * raw.size)  # monobit, five standard deviations
    counts = np.bincount(raw, minlength=256)
    chi = ((counts - raw.size / 256) ** 2 / (raw.size / 256)).sum()
    assert 150 < chi < 375  # 255 degrees of freedom, more than five standard deviations
    x, y = made["n2"].vector.low.astype(float), sent["n2"].low.astype(float)
    x += np.arange(len(x))
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.012


def test_fewer_shares_than_the_threshold_say_nothing() -> None:
    """With t - 1 shares every secret is as likely: for each there is one polynomial that gives them."""
    rng = np.random.default_rng(0)
    t, n = 3, 5
    tops = []
    for _ in range(2000):
        more = [shamir.coefficient(rng.bytes(64)) for _ in range(t - 1)]
        shares = shamir.share(bytes(32), more, n)  # always the same secret
        guess = rng.integers(0, 2**62)
        known = {1: shares[0], 4: shares[3]}
        third = _through({0: int(guess), **known}, 2)  # the share that would make the secret this guess
        assert shamir.combine({**known, 2: third}, t) == int(guess).to_bytes(32, "big")
        tops.append(shares[3] >> 253)
    counts = np.bincount(tops, minlength=8)[:8]
    assert ((counts - 250) ** 2 / 250).sum() < 30  # 7 degrees of freedom
    with pytest.raises(SecureAggregationError, match="at least 3 shares"):
        shamir.combine(known, t)


def _through(points: dict[int, int], x: int) -> int:
    total_ = 0
    for i, y in points.items():
        above = below = 1
        for j in points:
            if j != i:
                above, below = above * (x - j) % shamir.PRIME, below * (i - j) % shamir.PRIME
        total_ += y * above * pow(below, -1, shamir.PRIME)
    return total_ % shamir.PRIME


def test_any_shares_of_the_threshold_give_the_secret() -> None:
    secret = b"\xff" * 32
    shares = shamir.share(secret, [shamir.coefficient(bytes([i]) * 64) for i in (1, 2)], 6)
    for some in combinations(range(1, 7), 3):
        assert shamir.combine({i: shares[i - 1] for i in some}, 3) == secret


def test_two_attempts_share_no_keystream() -> None:
    """Also if a node had the same secret in both: the session is in every key."""
    streams = set()
    for attempt in ("first", "second"):
        session = replace(SESSION, attempt=attempt)
        made = parties(3, size=8, numbers=1)
        for name, p in made.items():
            p.vector = Vector.zeros(96, 8, 1)
            p.state = RoundMemory(session.id, name.encode().ljust(32, b"."))
        _, _, sent = run(made, session, Rules(), {})
        streams |= {bytes(v.low[i : i + 1].tobytes()) for v in sent.values() for i in range(8)}
    assert len(streams) == 2 * 3 * 8


def test_the_same_node_has_new_keys_in_each_attempt() -> None:
    state, first = steps.give_keys(RoundMemory(), SESSION)
    again, repeated = steps.give_keys(state, SESSION)
    assert repeated == first
    _, second = steps.give_keys(again, replace(SESSION, attempt="second"))
    assert not {second.sealing, second.masking} & {first.sealing, first.masking}


def test_a_late_vector_cannot_be_opened_by_all_that_the_server_has() -> None:
    """n4 is declared dead before its vector arrives. The server has every survivor's share of its key."""
    made, rules = parties(5), Rules()
    server, _, _ = run(made, SESSION, rules, {"masked": ["n4"]})
    roster = server.roster
    late = mask(made["n4"], SESSION, rules, roster, server.senders)
    # What the server rebuilt: n4's masking key, so all of its pairwise masks.
    secret = steps._Keys.of(made["n4"].state.secret, SESSION).masking
    for u in server.senders:
        if u != "n4":
            agreed = agree(secret, roster.keys[u].masking)
            late.mask([pair_mask(late, SESSION, roster, "n4", u, agreed, undo=True)])
    assert not same(late, made["n4"].vector)
    # What is missing is the seed of its own mask, of which the survivors give no share any more.
    for u in ("n0", "n1", "n2", "n3"):
        about = SESSION, rules, roster, server.senders, server.senders, server.shares_for(u)
        with pytest.raises(SecureAggregationError, match="no secret of this session"):
            steps.unmask(made[u].state, *about)
    seed = steps._Keys.of(made["n4"].state.secret, SESSION).seed
    late.mask([own_mask(late, SESSION, seed, undo=True)])
    assert same(late, made["n4"].vector)


def test_a_server_that_tells_nodes_different_things_gets_too_few_shares() -> None:
    """It says to some that n4 is dead, and to the rest that it lives: it needs t shares of both kinds."""
    rules, n = Rules(), 5
    for split in range(n):
        made = parties(n)
        server, roster, senders = _until_masked(made, rules)
        kinds = {"seed": 0, "masking": 0}
        for i in range(n):
            dead = i < split and i != 4
            alive = [u for u in senders if not (dead and u == "n4")]
            about = SESSION, rules, roster, senders, alive, server.shares_for(f"n{i}")
            _, shares = steps.unmask(made[f"n{i}"].state, *about)
            got = shares["n4"]
            kinds["masking" if dead else "seed"] += 1
            assert got  # one share, of one kind
        assert sum(kinds.values()) == n
        assert min(kinds.values()) < rules.t(n)


def _until_masked(
    made: dict[str, Party], rules: Rules, session: Session = SESSION
) -> tuple[Aggregation, Roster, tuple[str, ...]]:
    server, keys, sealed = Aggregation(session, rules), {}, {}
    for name, p in made.items():
        p.state, keys[name] = steps.give_keys(p.state, session)
    roster = server.take_keys(keys)
    for name, p in made.items():
        p.state, sealed[name] = steps.give_shares(p.state, session, rules, roster)
    senders = server.take_shares(sealed)
    for name, p in made.items():
        server.add(name, mask(p, session, rules, roster, senders))
    return server, roster, senders


def test_unmask_is_answered_once() -> None:
    made, rules = parties(5), Rules()
    server, roster, senders = _until_masked(made, rules)
    about = SESSION, rules, roster, senders
    state, _ = steps.unmask(made["n0"].state, *about, senders, server.shares_for("n0"))
    assert not state.secret
    for alive in (senders, senders[:4]):
        with pytest.raises(SecureAggregationError, match="no secret of this session"):
            steps.unmask(state, *about, alive, server.shares_for("n0"))
    with pytest.raises(SecureAggregationError, match="this session is over"):
        steps.give_keys(state, SESSION)


def test_a_repeated_round_opens_the_sum_of_the_same_nodes_or_none() -> None:
    made = parties(5)
    run(made, SESSION, Rules(), {})
    again = replace(SESSION, attempt="second")
    with pytest.raises(SecureAggregationError, match="would show single nodes"):
        run(made, again, Rules(), {"masked": ["n4"]})
    third = replace(SESSION, attempt="third")
    _, got, _ = run(made, third, Rules(), {})
    assert same(got, plain_sum([p.vector for p in made.values()]))
    run(made, replace(SESSION, attempt="fourth", round=4), Rules(), {"masked": ["n4"]})


def test_a_sum_with_noise_is_opened_once_a_round() -> None:
    made = parties(3)
    for attempt in ("first", "second"):
        session = replace(SESSION, attempt=attempt)
        server, roster, senders = _until_masked(made, Rules(), session)
        about = session, Rules(), roster, senders, senders, server.shares_for("n0")
        if attempt == "second":
            with pytest.raises(SecureAggregationError, match="another one would have other noise"):
                steps.unmask(made["n0"].state, *about, once=True)
            break
        made["n0"].state, _ = steps.unmask(made["n0"].state, *about, once=True)


def test_a_node_masks_one_vector_for_one_list_of_nodes() -> None:
    made, rules = parties(5), Rules()
    _, roster, senders = _until_masked(made, rules)
    first = mask(made["n0"], SESSION, rules, roster, senders)
    assert same(first, mask(made["n0"], SESSION, rules, roster, senders))
    with pytest.raises(SecureAggregationError, match="one vector in a session"):
        mask(made["n0"], SESSION, rules, roster, senders[:4])
    made["n0"].vector = vector_of(99)
    with pytest.raises(SecureAggregationError, match="one vector in a session"):
        mask(made["n0"], SESSION, rules, roster, senders)


def test_a_node_refuses_what_a_lying_server_may_ask() -> None:
    made, rules = parties(4), Rules()
    server, roster, senders = _until_masked(made, rules)
    mine, inbox = made["n0"].state, server.shares_for("n0")
    fewer = Roster({n: roster.keys[n] for n in ("n0", "n1", "n2")})
    with pytest.raises(SecureAggregationError, match="another one"):
        steps.give_shares(mine, SESSION, rules, fewer)
    with pytest.raises(SecureAggregationError, match="another one"):
        steps.mask(mine, SESSION, rules, fewer, fewer.names, vector_of(0))
    for alive, why in (
        (senders[:2], "at least 3"),
        (senders[1:], "this one among them"),
        (("n0", "x", "n1"), "nodes of the roster"),
    ):
        with pytest.raises(SecureAggregationError, match=why):
            steps.unmask(mine, SESSION, rules, roster, senders, alive, inbox)
    swapped = {**inbox, "n1": inbox["n2"], "n2": inbox["n1"]}
    with pytest.raises(SecureAggregationError, match="encrypted for this node"):
        steps.unmask(mine, SESSION, rules, roster, senders, senders, swapped)
    with pytest.raises(SecureAggregationError, match="no secret of this session"):
        steps.give_shares(RoundMemory(), SESSION, rules, roster)
    state, _ = steps.give_keys(RoundMemory(), SESSION)
    with pytest.raises(SecureAggregationError, match="own keys"):
        steps.give_shares(state, SESSION, rules, roster)
    twice = Roster({**roster.keys, "n9": roster.keys["n1"]})
    with pytest.raises(SecureAggregationError, match="keys of their own"):
        steps.give_shares(replace(mine, roster=b""), SESSION, rules, twice)
    bad = Roster({**roster.keys, "n9": PublicKeys(b"1", b"2")})
    with pytest.raises(SecureAggregationError, match="two keys of 32 bytes"):
        steps.give_shares(replace(mine, roster=b""), SESSION, rules, bad)


def test_nodes_with_different_rosters_cannot_read_each_others_shares() -> None:
    """The server shows n0 a node of its own in n3's place: what n0 encrypts, the others cannot open."""
    made, rules = parties(4), Rules()
    keys = {}
    for name, p in made.items():
        p.state, keys[name] = steps.give_keys(p.state, SESSION)
    invented, _ = steps.give_keys(RoundMemory(), SESSION)
    other = Roster({**keys, "n3": steps._Keys.of(invented.secret, SESSION).public})
    server, roster = Aggregation(SESSION, rules), Roster(keys)
    server.take_keys(keys)
    sealed = {}
    for name, p in made.items():
        p.state, sealed[name] = steps.give_shares(p.state, SESSION, rules, other if name == "n0" else roster)
    senders = server.take_shares(sealed)
    mask(made["n1"], SESSION, rules, roster, senders)
    with pytest.raises(SecureAggregationError, match="encrypted for this node"):
        steps.unmask(made["n1"].state, SESSION, rules, roster, senders, senders, server.shares_for("n1"))


def test_shares_of_a_false_key_are_noticed() -> None:
    made, rules = parties(5), Rules()
    server, roster, senders = _until_masked(made, rules)
    server.alive = senders[:4]
    shares = {}
    for u in server.alive:
        about = SESSION, rules, roster, senders, server.alive, server.shares_for(u)
        _, shares[u] = steps.unmask(made[u].state, *about)
    shares["n0"]["n4"] += 1
    with pytest.raises(SecureAggregationError, match=r"masking key; got others|do not fit together"):
        server.take_unmask(shares)


def test_the_state_is_a_few_bytes_without_any_key() -> None:
    made = parties(3)
    server, roster, senders = _until_masked(made, Rules())
    state = made["n0"].state
    assert RoundMemory.load(state.dump()) == state
    assert RoundMemory.load({}) == RoundMemory()
    assert len(state.secret) == 32
    keys = steps._Keys.of(state.secret, SESSION)
    held = b"".join(state.dump().values())
    assert not any(k in held for k in (keys.sealing, keys.masking, keys.seed))
    assert state.secret.hex() not in repr(state)
    after, _ = steps.unmask(state, SESSION, Rules(), roster, senders, senders, server.shares_for("n0"))
    assert state.secret not in b"".join(after.dump().values())
    assert RoundMemory.load(after.dump()) == after


def test_the_server_takes_one_vector_of_each_node_that_sent_shares() -> None:
    made, rules = parties(4), Rules()
    server, _, _ = _until_masked(made, rules)
    for name in ("n0", "other"):
        with pytest.raises(SecureAggregationError, match="one vector of a node"):
            server.add(name, copy(made["n0"].vector))
    with pytest.raises(SecureAggregationError, match="masked vector of 37 sums of 96 bits"):
        Vector.zeros(96, 37, 2).add(Vector.zeros(96, 36, 2))
    with pytest.raises(SecureAggregationError, match="and 2 scalars; got 37 of 96 and 1"):
        Vector.zeros(96, 37, 2).add(Vector.zeros(96, 37, 1))
    with pytest.raises(SecureAggregationError, match="of 96 bits and 2 scalars; got 37 of 64"):
        Vector.zeros(96, 37, 2).add(Vector.zeros(64, 37, 2))


def test_derived_keys_differ_by_session_label_and_parts() -> None:
    made = {
        derive(b"s" * 32, salt, label, *more)
        for salt in (b"1", b"2")
        for label in ("a", "b")
        for more in ((), ("x",), (b"x",), ("x", "y"), ("xy",), (1,))
    }
    assert len(made) == 24
    assert encode("ab", "c") != encode("a", "bc")


def test_a_mask_is_added_and_taken_away_whatever_the_block() -> None:
    big = vector_of(3, size=70_001, numbers=2)
    made = copy(big)
    made.mask([(b"k" * 32, 1)])
    stream = Keystream(b"k" * 32)
    first = int.from_bytes(stream.read(8), "little")
    assert int(made.low[0]) == (int(big.low[0]) + first) % 2**64
    assert not np.array_equal(made.low[-9:], big.low[-9:])
    made.mask([(b"k" * 32, -1)])
    assert same(made, big)
    assert all(0 <= n < NUMBER_MODULUS for n in made.numbers)


def test_many_masks_at_once_are_the_sum_of_their_integers() -> None:
    """A slow reference: one Python integer a number, and more masks than a byte counts carries of."""
    made, masks = vector_of(4, size=5, numbers=1), [(bytes([i]) * 32, 1 if i % 3 else -1) for i in range(250)]
    made.low[:] = 2**64 - 1  # so that carries and borrows are frequent
    want, number = (
        [int(x) + (int(y) << 64) for x, y in zip(made.low, made.high, strict=True)],
        made.numbers[0],
    )
    for key, sign in masks:
        stream = counted(key, 60 + NUMBER_BYTES)
        low, high = np.frombuffer(stream[:40], "<u8"), np.frombuffer(stream[40:60], "<u4")
        words = [int(x) + (int(y) << 64) for x, y in zip(low, high, strict=True)]
        want = [(x + sign * w) % 2**96 for x, w in zip(want, words, strict=True)]
        number = (number + sign * int.from_bytes(stream[60:], "little")) % NUMBER_MODULUS
    made.mask(masks)
    assert [int(x) + (int(y) << 64) for x, y in zip(made.low, made.high, strict=True)] == want
    assert made.numbers == [number]


def counted(key: bytes, size: int) -> bytes:
    """AES-256 of the numbers 0, 1, 2 ... of 16 bytes, big endian: counter mode by its definition."""
    block = Cipher(AES(key), ECB()).encryptor()
    return b"".join(block.update(i.to_bytes(16, "big")) for i in range(-(-size // 16)))[:size]
