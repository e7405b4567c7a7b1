"""A server that swaps parties' keys and numbers: what it would learn, and that it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Array, Message

from client_app.data.node import open_node
from client_app.vertical import align
from client_app.vertical.align import align_parties
from client_app.vertical.encrypted import from_rows, to_rows
from server_app.deploy.kits.kit import read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.node.identity import Identities
from task.errors import BouquetError, DataError, FieldError, NodesError, SecureAggregationError
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.secagg.identity import UNVERIFIED
from task.vertical import psi
from task.vertical.paillier import SecretKey, widths
from task.vertical.proofs import PROOF_BYTES, Prover, from_row, message, to_row
from task.vertical.rows import in_common_order, num_tests
from task.wire import messages as wire
from tests.support import parties
from tests.support.grid import RUN_ID, LocalGrid
from tests.vertical.test_logistic import config, owners, place, rows_of, table

assert place  # a fixture of this module, too
NAMES, ROWS = ("ada", "cyd"), 8
KEYS = config(batch_size=0, num_server_rounds=1) | {"vertical.key-bits": 2048}
CIPHER, PLAIN = widths(2048)
Proofs = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Proofs:
    out = tmp_path_factory.mktemp("kits") / "out"
    provision(out, "127.0.0.1:9092", NAMES)
    return {name: Identities(read_node_kit(out / name)).of(RUN_ID) for name in NAMES}


class Lying(LocalGrid):
    """A server that changes what goes down; `seen` has what came up, by phase."""

    last: ClassVar[Lying]
    lie: Callable[[str, Mapping[str, list[np.ndarray]], dict[str, np.ndarray]], None]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages, Lying.last = list(messages), self
        self.seen: dict[str, list[np.ndarray]] = getattr(self, "seen", {})
        for sent in messages:
            kind, records = sent.metadata.message_type, sent.content.array_records
            self.order = {k: v for r in sent.content.config_records.values() for k, v in r.items()}
            self.order |= {k: v for r in sent.content.metric_records.values() for k, v in r.items()}
            found = {name: record["rows"].numpy().copy() for name, record in records.items()}
            self.lie(kind, self.seen, found)
            for name, rows in found.items():
                records[name]["rows"] = Array(rows)
        ids = list(super().push_messages(messages))
        for i, sent in zip(ids, messages, strict=True):
            reply = self.replies[i]
            for name, record in reply.content.array_records.items() if reply.has_content() else ():
                key = f"{sent.metadata.message_type} {name.partition('.')[0]}"
                self.seen.setdefault(key, []).append(next(record[n].numpy() for n in record if n))
        return ids


def lying(lie: Any) -> type[Lying]:
    return type("LyingSo", (Lying,), {"lie": staticmethod(lie)})


def oracle(kind: str, seen: Mapping[str, list[np.ndarray]], records: dict[str, np.ndarray]) -> None:
    """Give each party a number of its own to decrypt: the first of its residuals, encrypted."""
    if kind == "train.open":
        for name in (n for n in records if n.startswith("products")):
            at = NAMES.index(name.removeprefix("products."))
            records[name][:] = seen["train.residuals residuals"][at].reshape(-1, CIPHER)[:1]


def swap(kind: str, seen: Mapping[str, list[np.ndarray]], records: dict[str, np.ndarray]) -> None:
    """Give each party a key of the server's in place of the other's."""
    if kind == "train.products":
        for name in (n for n in records if n.startswith("moduli")):
            records[name][:] = to_rows([SecretKey.new(2048).public.modulus], PLAIN)


def steer(kind: str, seen: Mapping[str, list[np.ndarray]], records: dict[str, np.ndarray]) -> None:
    """Give each party other sums, and so weights that the server chooses."""
    if kind == "train":
        for name in (n for n in records if n.startswith("opened")):
            records[name][..., -1] ^= 1


def pretend(kind: str, seen: Mapping[str, list[np.ndarray]], records: dict[str, np.ndarray]) -> None:
    """Give each party its own proof for the other's."""
    if kind == "train.products":
        for name in (n for n in records if n.startswith("proofs")):
            at = NAMES.index(name.removeprefix("proofs."))
            records[name][:] = seen["train.residuals proof"][at].reshape(1, -1)


GUESSES = [*(table()[0][:ROWS]), *(f"no-{i}" for i in range(ROWS))]  # of ids


def guess(kind: str, seen: Mapping[str, list[np.ndarray]], records: dict[str, np.ndarray]) -> None:
    """Have each party mask points of ids that the server guesses."""
    if kind == "evaluate.mask":
        salt = f"{Lying.last.order['run']}\x1f{int(Lying.last.order['session'])}".encode()
        points = [psi.point_of(g.encode(), salt) for g in GUESSES[:: len(GUESSES) // ROWS]]
        for name in (n for n in records if n.startswith("points")):
            records[name][:] = np.frombuffer(b"".join(points), np.uint8).reshape(-1, psi.BYTES)


def cross(kind: str, seen: Mapping[str, list[np.ndarray]], records: dict[str, np.ndarray]) -> None:
    """Have each party mask its own points once more, with its own proof."""
    if kind == "evaluate.mask":
        for name in records:
            at = NAMES.index(name.rpartition(".")[2])
            came = "points" if name.startswith("points") else "proof"
            records[name][:] = seen[f"evaluate.points {came}"][at].reshape(records[name].shape)


def test_without_proofs_a_lying_server_finds_out_which_ids_a_party_has(tmp_path: Path) -> None:
    unverified = {name: {UNVERIFIED: True} for name in NAMES}
    with pytest.raises((NodesError, DataError)):
        parties.play_own(owners(tmp_path, NAMES, rows=ROWS), KEYS, grid_type=lying(guess), proofs=unverified)
    own = {row.tobytes() for row in Lying.last.seen["evaluate.points points"][0].reshape(-1, psi.BYTES)}
    made = Lying.last.seen["evaluate.mask points"][0].reshape(-1, psi.BYTES)
    assert [row.tobytes() in own for row in made] == [True] * (ROWS // 2) + [False] * (ROWS // 2)


def test_a_party_masks_one_set_at_each_hop_and_aligns_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = owners(tmp_path, NAMES, rows=ROWS)
    node = open_node(read_config(KEYS), {"client-name": "ada", "data-path": str(files["ada"])})
    entry = contract_of(node.config).phases

    def asked(phase: str, session: int, **more: Any) -> Any:
        order = wire.TrainOrder(
            1, {}, clients=("ada",), run="run", population=NAMES, rows={"points": (ROWS, psi.BYTES)},
            scalars={"session": float(session), "hop": 1.0}, **more,
        )  # fmt: skip
        ((_, outcome),) = align_parties(node, entry[phase], order)
        return outcome

    def mask(seed: int) -> Any:
        points, _ = psi.own_points([f"{seed}-{i}" for i in range(ROWS)], ROWS, b"", psi.new_secret())
        return {"points": {"ada": {"ada": {"rows": points}}}}

    monkeypatch.setattr(align, "MOST_STARTS", 3)
    given = mask(1)
    assert isinstance(asked("points", 7), wire.ClientUpdate)
    assert isinstance(asked("mask", 7, per_client=given), wire.ClientUpdate)
    assert isinstance(asked("mask", 7, per_client=given), wire.ClientUpdate)  # which comes twice
    assert "one set of points at each hop" in str(asked("mask", 7, per_client=mask(2)))
    assert isinstance(asked("points", 8), wire.ClientUpdate)
    assert isinstance(asked("points", 9), wire.ClientUpdate)
    assert "at most 3 times" in str(asked("points", 10))


def test_without_proofs_a_lying_server_reads_labels(tmp_path: Path) -> None:
    """Weights are 0, so that r = -y/2 at the party with the labels: it decrypts that for who asks."""
    with pytest.raises(BouquetError, match="sums of the products"):  # too late
        parties.play_own(owners(tmp_path, NAMES, rows=ROWS), KEYS, grid_type=lying(oracle))
    (number,) = from_rows(Lying.last.seen["train.open opened"][0].reshape(1, -1))
    label = number >> 2047 == 0  # of -1/2 or 1/2 modulo n
    ids, _, y = table()
    settings = read_config(KEYS)
    order = in_common_order(ids[:ROWS], settings.seeds.data)
    assert bool(y[:ROWS][order[num_tests(ROWS, settings)]]) == (not label)


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        (guess, "points"),
        (cross, "points"),
        (oracle, "products"),
        (swap, "residuals"),
        pytest.param(steer, "opened", marks=pytest.mark.full),
        pytest.param(pretend, "residuals", marks=pytest.mark.full),
    ],
)
def test_a_lying_server_is_refused(lie: Any, what: str, proofs: Proofs, tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match="every party is needed") as refused:
        parties.play_own(owners(tmp_path, NAMES, rows=ROWS), KEYS, grid_type=lying(lie), proofs=proofs)
    assert f"client ada: field '{what}': expected those that party cyd has signed" in str(refused.value)


@pytest.mark.full
def test_proofs_change_no_weight(proofs: Proofs, tmp_path: Path) -> None:
    files = owners(tmp_path, NAMES, rows=ROWS)
    proved = parties.play_own(files, KEYS, proofs=proofs)
    clear = parties.play_own(files, KEYS | {"vertical.key-bits": 0})
    assert [r["model_sha256"] for r in rows_of(proved)] == [r["model_sha256"] for r in rows_of(clear)]


def test_a_node_that_cannot_check_refuses_unless_its_owner_does_without(proofs: Proofs) -> None:
    mine = Prover.of(proofs["ada"], RUN_ID)
    said = message("products", "run", 1, 0, "ada", "cyd", arrays=[np.arange(4)])
    row = to_row(mine.prove(said))
    assert row.shape == (PROOF_BYTES,)
    Prover.of(proofs["cyd"], RUN_ID).check("ada", "products", said, from_row(row))
    with pytest.raises(SecureAggregationError, match="secagg-unverified = true"):
        Prover.of({}, RUN_ID).check("ada", "products", said, from_row(row))
    Prover.of({UNVERIFIED: True}, RUN_ID).check("ada", "products", said, b"")
    for prover, name, other in (
        (Prover.of(proofs["cyd"], RUN_ID), "cyd", said),  # of another party
        (Prover.of(proofs["cyd"], RUN_ID), "ada", said + b"."),  # of other numbers
        (Prover.of(proofs["cyd"], RUN_ID + 1), "ada", said),  # in another run
    ):
        with pytest.raises(
            FieldError, match=f"field 'products': expected those that party {name} has signed"
        ):
            prover.check(name, "products", other, from_row(row))
