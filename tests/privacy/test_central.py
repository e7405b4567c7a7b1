"""Runs with client-level privacy: what the rule gets, what leaves a client, what a run may spend."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from torch import nn

from strategies.engine.rule import Phase
from strategies.engine.state import AggregatedReplies
from strategies.stages.privacy import Privacy, ReleaseLog
from task.errors import ConfigError, StateError
from task.numerics.arrays import Arrays, NamedArrays, sha256
from task.privacy import noise
from task.privacy.accounting import epsilon, joined
from task.privacy.bounded_integers import BIT, CLIP, GRID, clipped, exponent
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.wire import messages as wire
from tests.support.federation import SIZES, Keep, Played, owners_config, play, write_owners
from tests.test_privacy import Recording

SECRET = bytes(range(32))


class Releases(ReleaseLog):
    """A log with a secret, lines and released sums of the test's."""

    def __init__(
        self,
        secret: bytes,
        lines: Sequence[dict[str, Any]] = (),
        sums: Mapping[tuple[int, str], Arrays] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._secret, self._lines, self.sums = secret, [*lines], {**sums}

    def made(self, server_round: int, question: str) -> Arrays | None:
        return self.sums.get((server_round, question))

    def make(self, server_round: int, question: str, arrays: Arrays) -> None:
        self.sums[server_round, question] = arrays


class Ledger(Keep):
    """A journal with a secret of the test's, and a ledger that outlives a start.

    With `forgets` what the start before released is lost.
    """

    def __init__(
        self,
        secret: bytes = SECRET,
        before: Ledger | None = None,
        forgets: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        old = before.releases if before else Releases(secret)
        self.releases = Releases(secret, old.lines(), {} if forgets else old.sums)
        self.logs.append(self.releases)
        self.run_id = before.run_id if before else uuid.uuid4().hex
        self.remarks: list[str] = []

    def remark(self, line: str) -> None:
        self.remarks.append(line)

    def released(self) -> list[dict[str, Any]]:
        return self.releases.lines()


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


def keys_of(owners: Path, **more: Any) -> dict[str, Any]:
    given = {
        "state_dir": str(owners.parent / "state"),
        "dp__noise": 1.0,
        "dp__clip": 0.3,
        "dp__delta": 0.01,
        "fraction_train": 0.8,
    }
    return owners_config(owners, **{**given, **more})


def run(keys: Mapping[str, Any], journal: Ledger | None = None, **more: Any) -> Played:
    return play(keys, journal=journal or Ledger(), **more)


def last(played: Played) -> str:
    return sha256(played.arrays(len(played.rows) - 1))


@contextmanager
def silent() -> Iterator[None]:
    """Let the noise be zero."""
    with pytest.MonkeyPatch.context() as patch:
        nothing = lambda self, size, std: np.zeros(size, np.int64)  # noqa: E731
        patch.setattr(noise.Stream, "integers", nothing)
        yield


RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {"algorithm": "scaffold"},
    "fsvrg": {"algorithm": "fsvrg"},
    "fedadam, codes down": {"algorithm": "fedadam", "codec__down": "stc", "codec__keep": 0.2},
    "fedper": {"algorithm": "fedper", "model": "mlp"},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_model_depends_on_the_secret_and_not_on_the_nodes(name: str, owners: Path) -> None:
    keys = keys_of(owners, **RUNS[name])
    models = {last(run(keys, nodes=n, seed=n)) for n in (1, 2, 5)}
    assert len(models) == 1
    assert last(run(keys, Ledger(bytes(32)))) not in models


def test_the_rule_gets_clipped_sums_by_the_clients_to_be_expected(owners: Path) -> None:
    """Whatever their examples, all count alike; who does not answer takes only its own part away."""
    keys = keys_of(owners, num_server_rounds=1, dp__clip=0.01, fraction_train=1.0)
    plain = {k: v for k, v in keys.items() if not k.startswith("dp.")}
    sums: dict[str, np.ndarray] = {}
    for name in SIZES:
        kept = play(plain | {"selection": "uniform"}, tamper=None, nodes=1, grid_type=only(name))
        delta = {n: a.astype(np.float64) - kept.arrays(0)[n] for n, a in kept.arrays(1).items()}
        norm = math.sqrt(sum(float((a**2).sum()) for a in delta.values()))
        assert norm > 0.01
        for n, a in delta.items():
            sums[n] = sums.get(n, 0.0) + a * 0.01 / norm
    with silent():
        played = run(keys)
    for n, before in played.arrays(0).items():
        moved = played.arrays(1)[n].astype(np.float64) - before
        assert moved == pytest.approx(sums[n] / len(SIZES), abs=1e-7)


def only(name: str) -> type[Recording]:
    """Return a grid that lets one client of a round train, by its name."""

    class Only(Recording):
        def push_messages(self, messages: Any) -> Any:
            kept = []
            for m in messages:
                if m.metadata.message_type == "train":
                    m.content["config"]["clients"], m.content["config"]["epochs"] = [name], [0]
                kept.append(m)
            return super().push_messages(kept)

    return Only


def test_who_fails_only_takes_its_own_part_away(owners: Path) -> None:
    """The denominator stays, a reply of NaN counts as none, and the round is not skipped."""
    keys = keys_of(owners, num_server_rounds=1, fraction_train=1.0)

    def lost(index: int, reply: Message) -> Message | None:
        return None if index == 0 else reply

    with silent():
        whole, less = run(keys, nodes=5), run(keys | {"round-timeout": 2.0}, nodes=5, tamper=lost)
    assert less.rows[1]["answered"] == 4
    assert less.rows[1]["skipped"] is False
    alone = float(np.abs(whole.arrays(1)["1.bias"] - less.arrays(1)["1.bias"]).max())
    assert 0 < alone <= 0.3 / len(SIZES) + 1e-6


def test_a_round_without_clients_is_noise_alone(owners: Path) -> None:
    keys = keys_of(owners, num_server_rounds=2, fraction_train=1e-9, dp__noise=0.5)
    played = run(keys)
    assert [row["asked"] for row in played.rows[1:]] == [0, 0]
    assert [row["skipped"] for row in played.rows[1:]] == [False, False]
    moved = np.concatenate(
        [(played.arrays(1)[n] - a).reshape(-1) for n, a in played.arrays(0).items()]
    ).astype(np.float64)
    assert moved.std() == pytest.approx(0.5 * 0.3 / (1e-9 * 5), rel=0.6)


def test_nothing_of_a_client_goes_up_but_bounded_integers(owners: Path) -> None:
    for nodes in (5, 2):
        keys = keys_of(owners, algorithm="fedprox", fraction_train=1.0, dp__clip_quantile=0.5, dp__noise=0.4)
        keys["fedprox.measure-gamma"] = True
        grid: Any = run(keys, grid_type=Recording, nodes=nodes).grid
        trained = [content for kind, content in grid.up if kind == "train"]
        assert trained
        for content in trained:
            for name, record in content.array_records.items():
                assert name.split(".")[0] in ("arrays", "unclipped")
                assert {a.dtype for a in record.values()} <= {"int32", "int64"}
            for record in content.metric_records.values():
                assert record.keys() == {"num-examples"}
                sent = record["num-examples"]
                assert sent == 1 or set(sent) == {1}


def test_a_client_s_records_share_one_bound_on_the_wire(owners: Path) -> None:
    keys = keys_of(owners, algorithm="scaffold", fraction_train=1.0, dp__clip=0.01, num_server_rounds=1)
    grid: Any = run(keys, grid_type=Recording, nodes=5).grid
    most = math.ldexp(0.01, exponent(0.01))
    for content in [content for kind, content in grid.up if kind == "train"]:
        records = [a.numpy() for r in content.array_records.values() for a in r.values()]
        norm = math.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in records))
        assert 0.99 * most < norm <= most


def test_a_row_says_what_was_spent_and_not_who_took_part(owners: Path) -> None:
    played = run(keys_of(owners, num_server_rounds=3))
    for t, row in enumerate(played.rows):
        assert row["epsilon"] == epsilon([(0.8, 1.0)] * t, 0.01)
        assert row["selected"] == []
        assert row["train_loss"] is None
    assert played.keep.clients == []
    played = run(keys_of(owners, num_server_rounds=1, algorithm="fsvrg"))
    assert played.rows[1]["epsilon"] == epsilon([(0.8, 1.0)], 0.01)  # two releases that share the noise
    assert len(played.keep.released()) == 3


def test_the_bits_are_paid_for_where_they_are_sent(owners: Path) -> None:
    """Of a round's two releases only the second has bits; both together are worth dp.noise."""
    keys = keys_of(owners, algorithm="fsvrg", num_server_rounds=1, dp__noise=0.3, dp__clip_quantile=0.5)
    _, gradient, train = run(keys).keep.released()
    z = (0.3**-2 - (5 * 0.8 / 10) ** -2) ** -0.5 * math.sqrt(2)
    assert gradient["noise"] == pytest.approx(z)
    assert train["noise"] == pytest.approx((z**-2 + (5 * 0.8 / 10) ** -2) ** -0.5)
    assert joined([gradient["noise"], train["noise"]]) == pytest.approx(0.3)


def test_a_run_stops_before_it_spends_too_much(owners: Path) -> None:
    limit = epsilon([(0.8, 1.0)] * 2, 0.01) + 1e-6
    journal = Ledger()
    played = run(keys_of(owners, num_server_rounds=9, dp__max_epsilon=limit), journal)
    assert [row["round"] for row in played.rows] == [0, 1, 2]
    assert played.rows[-1]["epsilon"] <= limit < played.rows[-1]["epsilon_next"]
    assert [line["round"] for line in journal.released()] == [0, 1, 2]
    (said,) = journal.remarks
    assert "stops before round 3" in said
    with pytest.raises(ConfigError, match=r"the first round would cost.*set dp\.noise to") as refused:
        run(keys_of(owners, dp__max_epsilon=0.1))
    assert '"dp.max-epsilon"' in str(refused.value)


def test_a_resumed_run_makes_the_same_releases_and_pays_once(owners: Path) -> None:
    keys = keys_of(owners, algorithm="scaffold", dp__clip_quantile=0.5, dp__noise=0.3)
    whole = Ledger()
    run(keys, whole)
    # Killed after the release of round 3 and before its checkpoint: the ledger has it already.
    killed = Ledger()
    run(keys | {"num-server-rounds": 3}, killed)
    resumed = Ledger(before=killed, restore=killed.snapshots[2])
    run(keys, resumed)
    assert [row["round"] for row in resumed.rows] == [3, 4]
    kept = ("model_sha256", "epsilon", "dp_clip")
    assert [[r[k] for k in kept] for r in resumed.rows] == [[r[k] for k in kept] for r in whole.rows[3:]]
    assert resumed.released() == whole.released()


@pytest.mark.parametrize("algorithm", ["scaffold", "fsvrg"])
def test_a_round_that_is_done_again_releases_what_it_had_released(algorithm: str, owners: Path) -> None:
    """Else whoever saw both models would learn whether each client answered both times."""
    keys = keys_of(owners, fraction_train=1.0, num_server_rounds=3, algorithm=algorithm)
    first = Ledger()
    run(keys, first, nodes=5)

    def lost(index: int, reply: Message) -> Message | None:
        return None if index == 0 else reply

    again = Ledger(before=first, restore=first.snapshots[1])
    played = run(keys | {"round-timeout": 2.0}, again, nodes=5, tamper=lost)
    assert all(row["answered"] < 5 for row in played.rows)
    assert [row["model_sha256"] for row in again.rows] == [row["model_sha256"] for row in first.rows[2:]]
    assert again.released() == first.released()
    assert again.rows[-1]["epsilon"] == first.rows[-1]["epsilon"]


def test_another_sum_of_a_round_gets_other_noise_and_is_paid_for(owners: Path) -> None:
    keys = keys_of(owners, fraction_train=1.0, num_server_rounds=2)
    first = Ledger()
    run(keys, first, nodes=5)

    def lost(index: int, reply: Message) -> Message | None:
        return None if index == 0 else reply

    again = Ledger(before=first, forgets=True, restore=first.snapshots[1])
    run(keys | {"round-timeout": 2.0}, again, nodes=5, tamper=lost)
    assert [line["round"] for line in again.released()] == [0, 1, 2, 2]
    assert again.rows[-1]["epsilon"] == epsilon([(1.0, 1.0), (1.0, round(1 / math.sqrt(2), 9))], 0.01)
    # The difference of the two releases is no client's update: their noises do not cancel.
    one, two = first.snapshots[2].arrays, again.snapshots[0].arrays
    gap = np.concatenate([(one[n] - two[n]).reshape(-1) for n in one if n.startswith("arrays/")])
    assert float(np.linalg.norm(gap)) > 2 * 0.3 / 5


def test_a_repeated_round_that_is_too_dear_is_not_released(owners: Path) -> None:
    limit = epsilon([(1.0, 1.0)] * 2, 0.01) + 1e-6
    keys = keys_of(owners, fraction_train=1.0, num_server_rounds=2, dp__max_epsilon=limit)
    first = Ledger()
    run(keys, first, nodes=5)
    again = Ledger(before=first, forgets=True, restore=first.snapshots[1])
    lost = lambda index, reply: None if index == 0 else reply  # noqa: E731
    played = run(keys | {"round-timeout": 2.0}, again, nodes=5, tamper=lost)
    assert again.released() == first.released()
    assert played.rows[-1]["skipped"]
    assert "another release" in again.remarks[0]


def test_a_ledger_without_its_rounds_is_refused(owners: Path) -> None:
    keys = keys_of(owners)
    first = Ledger()
    run(keys, first)
    again = Ledger(restore=first.snapshots[2])
    with pytest.raises(StateError, match="rounds 1 to 2"):
        run(keys, again)


def test_the_denominator_is_of_all_clients_that_the_run_has_known() -> None:
    """Those who join draw coins, too; with four times the clients, a sum is four times as large."""
    config = read_config({"dp.noise": 1.0, "dp.clip": 1.0, "fraction-train": 0.5, "dp.delta": 0.02})
    privacy, journal = Privacy(config, contract_of(config)), Ledger()
    privacy.begin(journal, 1, 10)
    assert privacy.expected == 5.0
    privacy.begin(journal, 2, 40)
    assert privacy.expected == 20.0
    privacy.begin(journal, 3, 30)
    assert privacy.expected == 20.0
    privacy.begin(journal, 4, 50)  # delta = 0.02 is one over 50
    assert any("dp.delta" in line for line in journal.remarks)


@pytest.mark.parametrize(
    ("number", "says"),
    [(0, {"sampling": 0.5}), (1, {"noise": 100.0}), (2, {"noise": 1e-3}), (2, {"round": -2})],
    ids=str,
)
def test_a_line_that_contradicts_the_run_is_refused(
    number: int, says: dict[str, float], owners: Path
) -> None:
    """Epsilon follows from the lines: one that says more noise would be a promise that nobody kept."""
    keys = keys_of(owners, num_server_rounds=2)
    first = Ledger()
    run(keys, first)
    again = Ledger(before=first, restore=first.snapshots[2])
    lines = [dict(line) for line in first.released()]
    lines[number] |= says
    again.releases._lines[:] = lines
    with pytest.raises(StateError, match="expected lines of this run"):
        run(keys, again)


# ---------------------------------------------------------------------------------------- the bound


def adapted(start: float, rounds: int, clients: int = 1000, noise_multiplier: float = 1.0) -> float:
    """Return C after some rounds with clients whose updates have a norm of about 1."""
    keys = {"dp.noise": noise_multiplier, "dp.clip": start, "dp.clip-quantile": 0.5, "fraction-train": 0.1}
    config = read_config(keys)
    entry = contract_of(config)
    privacy, journal = Privacy(config, entry), Ledger()
    model: NamedArrays = {"w": np.zeros(4, np.float32)}
    rng = np.random.default_rng(2)
    for t in range(1, rounds + 1):
        privacy.begin(journal, t, clients)
        orders = privacy.scalars()
        total: dict[str, Arrays] = {
            "arrays": {"w": np.zeros(4, np.int64)},
            "unclipped": {"one": np.zeros(1, np.int64)},
        }
        for _ in privacy.cohort([str(i) for i in range(clients)]):
            x = rng.standard_normal(4)
            x *= rng.lognormal(0.0, 0.1) / np.linalg.norm(x)
            sent, within = clipped({"arrays": {"w": x}}, orders[CLIP], int(orders[GRID]))
            total["arrays"]["w"] += sent["arrays"]["w"]
            total["unclipped"]["one"] += BIT if within else -BIT
        phase = Phase("train", entry, (), {"arrays": dict(model)})
        replies = AggregatedReplies(total, (), np.zeros(0, int))
        privacy.release(phase, replies, {}, model)
    return privacy.clip


def stepped(secret: bytes, rounds: int = 1) -> tuple[list[str], list[float], list[float]]:
    """Return a cohort, the noise of the last round, and by round the step of log C that is noise alone."""
    config = read_config({"dp.noise": 1.0, "dp.clip-quantile": 0.5, "fraction-train": 0.1})
    entry = contract_of(config)
    privacy, journal = Privacy(config, entry), Ledger(secret)
    model: NamedArrays = {"w": np.zeros(4, np.float32)}
    zeros: dict[str, Arrays] = {
        "arrays": {"w": np.zeros(4, np.int64)},
        "unclipped": {"one": np.zeros(1, np.int64)},
    }
    bounds = [privacy.clip]
    for t in range(1, rounds + 1):
        privacy.begin(journal, t, 1000)
        privacy.scalars()
        phase = Phase("train", entry, (), {"arrays": dict(model)})
        made = privacy.release(phase, AggregatedReplies(zeros, (), np.zeros(0, int)), {}, model)
        assert made is not None
        bounds.append(privacy.clip)
    cohort = privacy.cohort([str(i) for i in range(1000)])
    return cohort, made.arrays["arrays"]["w"].tolist(), np.diff(np.log(bounds)).tolist()


def test_cohorts_and_noise_each_follow_from_the_secret() -> None:
    one, two = stepped(SECRET), stepped(bytes(32))
    assert stepped(SECRET) == one
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_the_bits_have_noise_of_their_own() -> None:
    """Nobody took part: b - 1/2 is N(0, 1/20), by which C steps with eta = 0.2."""
    steps = np.array(stepped(SECRET, 300)[2]) / 0.2
    assert steps.std() == pytest.approx(1 / 20, rel=0.2)
    assert abs(float(steps.mean())) < 5 / 20 / math.sqrt(300)


@pytest.mark.parametrize(("bound", "step"), [(100.0, -0.1), (1e-4, 0.1)])
def test_a_client_says_whether_its_update_was_within_the_bound(
    bound: float, step: float, owners: Path
) -> None:
    more = {"dp__clip_quantile": 0.5, "dp__noise": 0.4, "fraction_train": 1.0, "num_server_rounds": 2}
    keys = keys_of(owners, dp__clip=bound, **more)
    with silent():
        rows = run(keys).rows
    assert rows[2]["dp_clip"] == pytest.approx(bound * math.exp(step))


@pytest.mark.parametrize("start", [0.1, 3.0])
def test_the_bound_comes_to_the_median_of_the_norms(start: float) -> None:
    assert adapted(start, 60) == pytest.approx(1.0, rel=0.2)


def test_the_bits_take_their_share_of_the_noise() -> None:
    config = read_config({"dp.noise": 1.0, "dp.clip-quantile": 0.5, "fraction-train": 0.1, "dp.clip": 2.0})
    for clients, share in ((200, 1.155), (1000, 1.005)):
        privacy = Privacy(config, contract_of(config))
        privacy.begin(Ledger(), 1, clients)
        assert privacy.scalars()[GRID] == exponent(share * 2.0)
        assert privacy._noise == pytest.approx(share, abs=5e-4)
    privacy = Privacy(config, contract_of(config))
    with pytest.raises(ConfigError, match="a tenth of the 10 clients"):
        privacy.begin(Ledger(), 1, 100)


# ---------------------------------------------------------------------------------------- refusals


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


def test_models_with_buffers_are_refused(owners: Path) -> None:
    keys = keys_of(owners, model="tests.privacy.test_central:normalised")
    with pytest.raises(ConfigError, match=r"tensors that are not trained, such as.*fedbn"):
        run(keys)


def test_a_client_that_lacks_the_bound_says_so(owners: Path) -> None:
    """A server that is not ours would get updates that nobody clipped."""
    from client_app.answer import answer
    from client_app.data.node import open_node

    keys = keys_of(owners)
    node = open_node(read_config(keys), {})
    order = wire.TrainOrder(1, {}, {"lr": 0.1}, ("anna",), (0,), "run")
    content = wire.train_content(order, {"arrays": wire.pack_arrays(node.initial())}, {})
    reply = wire.read_reply(answer(node, content), ["anna"], 1)
    assert reply.upload is None
    assert reply.failed[0].field == CLIP


def test_updates_larger_than_the_bound_are_quarantined(owners: Path) -> None:
    keys = keys_of(owners, num_server_rounds=1, fraction_train=1.0)

    def forged(index: int, reply: Message) -> Message:
        if reply.metadata.message_type == "train" and index == 0:
            arrays = wire.read_arrays(reply.content["arrays"])  # type: ignore[arg-type]
            arrays = {n: np.full_like(a, 1 << 28) for n, a in arrays.items()}
            reply.content["arrays"] = wire.pack_arrays(arrays)
        return reply

    (line,) = run(keys, nodes=5, tamper=forged).rows[1]["quarantined"]
    assert "dp.clip" in line["expected"]
