"""A server cannot invent nodes: what proves a round's keys, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
from flwr.app import Context, RecordDict

from client_app.stages.node_stage import Asked
from client_app.stages.secure_aggregation import SecureAggregationNode, answer_stage
from server_app.deploy.kits.kit import NodeKit, read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.node.identity import Identities
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.errors import BouquetError, RefusedError, SecureAggregationError
from task.resolve.read import read_config
from task.secagg import node as steps
from task.secagg.identity import REQUIRED, UNVERIFIED, Identity, check_proofs
from task.secagg.node import RoundMemory
from task.secagg.protocol import PublicKeys, Roster, Session
from task.wire import secure
from tests.support.wards import deployed

SESSION, RUN = Session("run", 1, "train", "a"), 7
NAMES = ("ward-1", "ward-2", "ward-3")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kits") / "out"
    provision(out, "127.0.0.1:9092", NAMES)
    return out


def identity(kit: NodeKit, run: int = RUN) -> Identity:
    key = load_ssh_private_key(kit.key.read_bytes(), password=None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return Identity.of(kit.certificate.read_bytes(), key, run)


def keys() -> PublicKeys:
    return steps.give_keys(RoundMemory(), SESSION)[1]


def roster(kits: Path) -> Roster:
    return Roster({n: identity(read_node_kit(kits / n)).prove(SESSION, keys()) for n in NAMES})


def authority(kits: Path) -> bytes:
    return (kits / "ward-1" / "ca.crt").read_bytes()


def test_nodes_of_the_federation_prove_their_keys(kits: Path) -> None:
    check_proofs(authority(kits), RUN, SESSION, roster(kits))


def test_keys_that_no_node_of_the_federation_signed_are_refused(kits: Path, tmp_path: Path) -> None:
    good = roster(kits)
    provision(tmp_path / "other", "127.0.0.1:9092", NAMES)
    stranger = identity(read_node_kit(tmp_path / "other" / "ward-2")).prove(SESSION, keys())
    ward_1 = identity(read_node_kit(kits / "ward-1"))
    link_key = load_pem_private_key((kits / "link" / "server.key").read_bytes(), None)
    assert isinstance(link_key, EllipticCurvePrivateKey)
    link = Identity.of((kits / "link" / "server.crt").read_bytes(), link_key, RUN)
    bad = {
        "none": keys(),
        "something else": replace(keys(), proof=b"\0\0\0\1x"),
        "signature": replace(keys(), proof=good.keys["ward-2"].proof),  # another's proof for one's own keys
        "certificate of ward-1": ward_1.prove(SESSION, keys()),  # a node twice
        "not one of a node": link.prove(SESSION, keys()),  # the link itself
        "not valid": stranger,
    }
    for why, made in bad.items():
        with pytest.raises(SecureAggregationError, match=f"node ward-2: expected keys.*{why}"):
            check_proofs(authority(kits), RUN, SESSION, Roster({**good.keys, "ward-2": made}))


def test_a_proof_is_of_one_run_and_one_session(kits: Path) -> None:
    good = roster(kits)
    with pytest.raises(SecureAggregationError, match="not valid"):
        check_proofs(authority(kits), RUN + 1, SESSION, good)
    with pytest.raises(SecureAggregationError, match="not valid"):
        check_proofs(authority(kits), RUN, replace(SESSION, attempt="b"), good)


def test_the_kits_authority_signs_new_and_older_kits(kits: Path, tmp_path: Path) -> None:
    provision(out := tmp_path / "out", "127.0.0.1:9092", ["ward-1"])
    (out / "ward-1" / "node.crt").unlink()
    assert Identities(read_node_kit(out / "ward-1")).of(RUN) == {}
    made = provision(out, nodes=["ward-2"])
    assert any("copy its new node.crt" in text for text in made.remarks)
    assert not any(text.startswith("ward-2") for text in made.remarks)
    certificates = [(out / n / "node.crt").read_bytes() for n in ("ward-1", "ward-2")]
    assert provision(out).remarks == ()
    assert [(out / n / "node.crt").read_bytes() for n in ("ward-1", "ward-2")] == certificates


def context_of(kits: Path, name: str) -> Context:
    config = Identities(read_node_kit(kits / name)).of(RUN)
    return Context(RUN, 1, dict(config), RecordDict(), {})


def ask(stage: str, context: Context, **fields: object) -> RecordDict:
    content = RecordDict({secure.SECAGG: secure.order_record(SESSION, **fields)})
    return answer_stage(stage, content, run_config(), context, simulation=False)


def run_config(*, secagg: bool = True) -> Config:
    return read_config({"secagg": secagg})


def test_a_deployed_node_gives_shares_to_nodes_of_its_federation_alone(kits: Path) -> None:
    contexts = {n: context_of(kits, n) for n in NAMES}
    shown = {n: ask(secure.KEYS, c)[secure.SECAGG] for n, c in contexts.items()}
    real = Roster({n: PublicKeys(*(r[k] for k in ("sealing", "masking", "proof"))) for n, r in shown.items()})  # type: ignore
    invented = Roster({**real.keys, "ward-3": keys()})
    with pytest.raises(SecureAggregationError, match="node ward-3: expected keys that the node"):
        ask(secure.SHARES, contexts["ward-1"], **secure.roster_fields(invented))
    sent = ask(secure.SHARES, contexts["ward-1"], **secure.roster_fields(real))[secure.SECAGG]
    assert sent["to"] == ["ward-2", "ward-3"]
    assert str(contexts["ward-1"].node_config["secagg-key"]) not in str(sent)


def test_a_node_without_a_certificate_refuses_unless_its_owner_does_without(kits: Path) -> None:
    for owner, wanted in (({}, False), ({UNVERIFIED: True}, True)):
        contexts = [Context(RUN, i, dict(owner), RecordDict(), {}) for i in range(3)]
        shown = [ask(secure.KEYS, c)[secure.SECAGG] for c in contexts]
        listed = Roster({f"n{i}": PublicKeys(r["sealing"], r["masking"]) for i, r in enumerate(shown)})  # type: ignore
        if wanted:
            assert ask(secure.SHARES, contexts[0], **secure.roster_fields(listed))
            continue
        with pytest.raises(SecureAggregationError, match="certificate of the federation's authority"):
            ask(secure.SHARES, contexts[0], **secure.roster_fields(listed))


def test_an_owner_can_refuse_runs_without_it() -> None:
    node, entry = cast(Any, SimpleNamespace(config=run_config(secagg=False))), ALGORITHMS["fedavg"]
    wants = Context(RUN, 1, {REQUIRED: True}, RecordDict(), {})
    with pytest.raises(RefusedError, match="policy: secagg = true"):
        SecureAggregationNode.absent(Asked(node, RecordDict(), entry, "train", wants))
    wants_not = Context(RUN, 1, {}, RecordDict(), {})
    SecureAggregationNode.absent(Asked(node, RecordDict(), entry, "train", wants_not))


def test_nodes_whose_owners_want_it_train_in_no_run_without(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("anna", "ben", "cleo")}
    for path in files.values():
        path.write_text("a,b,label:target(0|1)\n" + "".join(f"{i},{i * i},{i % 2}\n" for i in range(12)))
    with pytest.raises(BouquetError, match="policy: secagg = true"):
        deployed(tmp_path, files, policy={name: {REQUIRED: True} for name in files})
