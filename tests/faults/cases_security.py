"""Attackers without a key, with a revoked one, with the public certificate only; secrets; site policy."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sqlite3
import stat
import time
from pathlib import Path

import psutil
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from server_app.deploy.kits.provision import provision
from tests.faults.case import Rig, case
from tests.faults.cases_nodes import blamed
from tests.faults.federation import Federation

STRANGERS = 100
TEXTS = {".log", ".json", ".jsonl", ".toml", ".txt", ".pub", ".crt"}


@case(
    "S1",
    "No key, an unregistered key, a revoked key",
    "refused within 5 s, logged with the key's fingerprint",
    "raw calls from another network namespace; a key is revoked while its node is connected",
)
def keys(rig: Rig) -> str:
    fed = rig.fed()
    found = rig.strangers()
    for what, said in found.items():
        if what.startswith("without ") or what in ("bad signature", "pull"):
            assert said.startswith("UNAUTHENTICATED"), (what, said)
    assert f"{found['fingerprint']}: ActivateNode refused" in fed.log("link", "superlink")
    kit = rig.enrol("leaver")
    leaver = fed.begin_attack("still", fed.address, str(kit / "ca.crt"), str(kit / "node.key"), "60")
    assert leaver.stderr is not None
    leaver.stderr.readline()
    began = time.time()
    provision(fed.kits, revoke=["leaver"])
    told = json.loads(leaver.communicate(timeout=90)[0])
    assert told["refused"], "the revoked key was never refused"
    seconds = told["at"] - began
    assert seconds <= 5, f"{seconds:.1f} s"
    assert told["again"] != "ok", told
    record = json.loads((fed.kits / "provision.json").read_text())["nodes"]["leaver"]["fingerprint"]
    assert f"node leaver (key {record}) is revoked and may no longer join" in fed.machines["link"].said()
    return f"no key and bad signatures refused; a revoked key refused {seconds:.1f} s after, by fingerprint"


@case(
    "S2",
    "Another authority, an expired certificate, plaintext, TLS 1.1",
    "refused within 5 s; a node says why",
    "handshakes from another network namespace; a node with another federation's kit",
    tests=(
        "tests/deploy/test_provision.py::test_an_expired_certificate_is_refused_and_told_and_renewed",
        "tests/deploy/test_provision.py::test_a_wrong_name_is_refused",
    ),
)
def handshakes(rig: Rig) -> str:
    fed = rig.fed()
    certificates = str(fed.kits / "link" / "ca.crt")
    found = fed.attack("handshakes", fed.address, certificates)
    for name in ("TLS 1.0", "TLS 1.1", "the world's authorities", "plaintext"):
        assert found[name].startswith("refused"), (name, found)
    for name in ("TLS 1.2", "TLS 1.3"):
        assert found[name].startswith("accepted"), (name, found)
    assert found["plaintext gRPC"] != "ok", found
    provision(fed.folder / "others", fed.address, ["ward-1"])
    data = fed.data / "stranger.csv"
    data.write_text((fed.data / "ward-1.csv").read_text())
    stranger = fed.start_node("stranger", kit=fed.folder / "others" / "ward-1")
    try:
        fed.until(lambda: "did not sign" in stranger.said(), 120, f"a reason; {stranger.said()}")
    finally:
        stranger.kill()
        del fed.machines["stranger"]
        data.unlink()
    (line,) = [x for x in stranger.said().splitlines() if "did not sign" in x][:1]
    return f"{found['TLS 1.1']}; plaintext {found['plaintext']}; the node: {line[20:130]}"


@case(
    "S3",
    "Calls of the Control API from the network",
    "only the Fleet API's port answers, and it serves no other API",
    "every listening port of the link's machine is called from another network namespace; every method of "
    "Control and Runtime is called on the Fleet API's port",
)
def control(rig: Rig) -> str:
    net, fed = rig.net(), rig.fed()
    lines = net.run(net.link, "ss", "-ltnH").splitlines()
    listening = sorted({int(line.split()[3].rpartition(":")[2]) for line in lines})
    fleet, control = (int(a.rpartition(":")[2]) for a in (fed.address, fed.link_kit.control))
    assert {fleet, control} <= set(listening), listening
    found = fed.attack("dial", net.address, *map(str, listening))
    reached = [port for port, how in found.items() if how == "open"]
    assert reached == [str(fleet)], found
    certificates = str(fed.kits / "link" / "ca.crt")
    methods = fed.attack("services", fed.address, certificates)
    others = {m: said for m, said in methods.items() if not m.startswith("Fleet/")}
    assert len(others) > 20, others
    odd = {m: said for m, said in others.items() if not said.startswith("UNIMPLEMENTED")}
    assert not odd, odd
    mine = {m: said for m, said in methods.items() if m.startswith("Fleet/") and said == "ok"}
    assert not mine, mine
    seen = f"of {len(listening)} listening ports only the Fleet API's answers"
    return f"{seen}; {len(others)} methods of other APIs: UNIMPLEMENTED"


@case(
    "S4",
    "Theft of the ServerApp's task (AcquireTask)",
    "it fails without the SuperExec secret, even on the link's own machine; the run goes on",
    "AcquireTask in a loop during a run, on the link's machine with ca.crt, without and with guessed secrets",
)
def theft(rig: Rig) -> str:
    seconds = str(max(6.0, rig.pace()[1] / 2))
    run = rig.submit(3)
    fed = run.fed
    certificates = str(fed.kits / "link" / "ca.crt")
    found = fed.attack("theft", fed.link_kit.control, certificates, seconds, local=True)
    assert set(found) == {"401"}, found
    run.wait_end()
    return f"{found['401']} attempts, each 401; {rig.same(run)}"


@case(
    "S5",
    "Another app, or one that was altered in transit",
    "neither nodes nor the link run it; an audit line says so",
    "another app is submitted to the Control API with the link's kit; a warm parent is given "
    "bundles that differ in one file",
    tests=(
        "tests/system/test_warm.py::test_another_app_is_refused_and_this_is_written_down",
        "tests/deploy/test_warm.py::test_a_bundle_differs_by_each_file_that_would_run",
        "tests/deploy/test_submit_port.py::test_another_app_is_refused",
    ),
)
def other_app(rig: Rig) -> str:
    fed = rig.fed()
    found = fed.attack("other_app", str(fed.kits / "link"), local=True)
    assert found["status"] == "finished", found
    assert found["how"] == "failed", found
    assert "installed app only" in found["details"], found
    log = fed.log("link", "warm")
    assert "audit: refused to serve" in log
    return f"the link: {found['details'][:90]}"


@case(
    "S7",
    "A site's policy forbids a run: too many rounds, too few examples",
    "the node refuses, is named with the reason, and writes an audit line; the run goes on with the others",
    "ward-3's policy is max-rounds = 1, then min-examples = 1000",
    tests=("tests/system/test_warm.py::test_the_hook_and_the_limit_of_rounds_say_no",),
)
def policy(rig: Rig) -> str:
    fed = rig.fed()
    config = fed.kits / "ward-3" / "kit.toml"
    before = config.read_text()
    told = []
    try:
        for key, value, first in (("max-rounds", 1, 2), ("min-examples", 1000, 1)):
            config.write_text(re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", before))
            assert f"{key} = {value}" in config.read_text()
            fed.restart_node("ward-3")
            run = rig.submit(3)
            run.wait_end()
            answered = [row["answered"] for row in run.rows()[1:]]
            assert answered == [3 if t < first else 2 for t in (1, 2, 3)], (answered, run.quarantined())
            told.append(blamed(run, 3, "ward-3")[-60:])
        audit = (fed.kits / "ward-3" / "logs" / "audit.log").read_text()
    finally:
        config.write_text(before)
        fed.restart_node("ward-3")
    assert audit.count("refused train") >= 5, audit
    return f"{'; '.join(told)}; {len(audit.splitlines())} audit lines"


@case(
    "S18",
    "Replies to others' messages, parts of others' messages, a flood of objects",
    "each is refused and nothing is stored; the run goes on",
    "a node with a valid key calls the Fleet API, while ward-1 trains, with the ids of ward-1's run, node "
    "and message; the test reads them in the link's database, as a node cannot know them",
    tests=(
        "tests/deploy/test_limits.py::test_parts_of_another_nodes_reply_are_not_taken",
        "tests/deploy/test_limits.py::test_too_many_objects_are_refused",
        "tests/deploy/test_held_calls.py::test_a_node_gets_no_part_of_a_message_to_another",
        "tests/deploy/test_held_calls.py::test_objects_without_an_upload_are_counted_and_not_stored",
    ),
)
def foreign(rig: Rig) -> str:
    kit = rig.enrol("meddler")
    run = rig.submit(4, min_replies=3)
    fed = run.fed
    run.wait_round(1)
    with fed.held(run, "ward-1"), contextlib.closing(sqlite3.connect(fed.link_kit.database)) as db:
        ward = next(int(n["id"]) for n in fed.status()["nodes"] if n["name"] == "ward-1")
        number, message = db.execute(
            "SELECT run_id, message_id FROM message_ins WHERE dst_node_id = ? ORDER BY created_at DESC",
            (ward - (1 << 64) if ward >= 1 << 63 else ward,),
        ).fetchone()
        found = fed.attack(
            "foreign", fed.address, str(kit / "ca.crt"), str(kit / "node.key"), str(number % (1 << 64)),
            str(ward), message,
        )  # fmt: skip
    run.wait_end()
    assert found["a reply to another's message"].startswith("PERMISSION_DENIED"), found
    assert found["a part of another's message"] == "none", found
    assert found["stored"] == 0, found
    assert any(said.startswith("RESOURCE_EXHAUSTED") for said in found["a flood of objects"]), found
    assert not run.quarantined(), run.quarantined()
    calls = sum(found["a flood of objects"].values())
    refused = found["a reply to another's message"]
    return f"{refused[:60]}; {calls} objects, none stored; {rig.same(run)}"


@case(
    "S9",
    "Secrets exposed to others",
    "keys and secrets have mode 0600; none is on a command line, in an environment, a log or a result",
    "all processes, logs, results and kits of the federation are searched for keys and secrets during a run",
    tests=(
        "tests/system/test_warm.py::test_the_process_of_a_message_has_no_connection",
        "tests/deploy/test_provision.py::test_private_files_are_private_whatever_the_umask",
    ),
)
def secrets(rig: Rig) -> str:
    run = rig.submit(4)
    fed = run.fed
    run.wait_round(1)
    words = {word for path in _private(fed) for word in _spellings(path)}
    assert len(words) >= 8
    processes = 0
    for process in fed.left():
        with contextlib.suppress(psutil.Error):
            text = "\0".join([*process.cmdline(), *process.environ().values()]).encode()
            assert not any(word in text for word in words), process
            assert b"--token" not in text, process
            processes += 1
    run.wait_end()
    logs = [m.log for m in fed.machines.values()]
    files = logs + [
        p
        for p in fed.kits.rglob("*")
        if p.is_file() and p.suffix in (".log", ".json", ".jsonl", ".toml", ".txt", ".pub", ".crt")
    ]
    for path in files:
        content = path.read_bytes()
        assert not any(word in content for word in words), path
        assert b"PRIVATE KEY" not in content, path
    for path in _private(fed):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    return f"{len(words)} secrets in several spellings, {processes} processes, {len(files)} files: none found"


def _private(fed: Federation) -> list[Path]:
    names = ("*.key", "*.secret")
    return [path for name in names for path in fed.kits.rglob(name)]


def _spellings(path: Path) -> set[bytes]:
    """Return how a secret file's content could be spelled; of a key its private number, since a public file
    shares the rest."""
    content = path.read_bytes()
    if b"PRIVATE KEY" in content:
        load = load_ssh_private_key if b"OPENSSH" in content else load_pem_private_key
        key = load(content, None)
        assert isinstance(key, EllipticCurvePrivateKey)
        number = key.private_numbers().private_value
        content = number.to_bytes((number.bit_length() + 7) // 8, "big")
        return {content, content.hex().encode(), base64.b64encode(content), str(number).encode()}
    return {content, content.hex().encode(), base64.b64encode(content), repr(content).encode()}


@case(
    "S10",
    "A hundred nodes try to enrol themselves (Sybil)",
    "none is admitted; only enrolled nodes are asked",
    f"{STRANGERS} new keys call RegisterNode and ActivateNode",
)
def sybil(rig: Rig) -> str:
    found = rig.strangers()
    for what in ("activate", "register"):
        assert sum(found[what].values()) == STRANGERS, found
        assert "ok" not in found[what], found
    run = rig.submit(2)
    run.wait_end()
    assert {tuple(sorted(row["selected"])) for row in run.rows()[1:]} == {run.fed.wards}
    said = next(iter(found["activate"]))
    return f"{STRANGERS} keys refused in {found['seconds']:.1f} s ({said[:60]}); {rig.same(run)}"
