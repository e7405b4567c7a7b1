"""Provisioning: what it makes works with TLS and with Flower, and what is there is never written over."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

from server_app.deploy.kits import certificates
from server_app.deploy.kits.kit import read_kit, read_link_kit, read_node_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.kits.provision_report import next_steps
from server_app.deploy.link import run_link as links
from server_app.deploy.link.run_link import run_link
from server_app.deploy.node import run_node as nodes
from server_app.deploy.node.options import Options
from server_app.deploy.node.run_node import run_node
from task.encryption.ckks import KEY_FILE, PUBLIC_FILE, Key, id_of
from task.errors import BouquetError, ConfigError
from tests.support.faults import FullDisk

LINK = "host.example:9092"
EVERY = 5  # of the moments at which a disk can be full; 1 tries them all


@pytest.fixture
def out(tmp_path: Path) -> Path:
    provision(tmp_path / "kits", LINK, ["ward-1", "ward-2"])
    return tmp_path / "kits"


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return bytes, mode and time of change of every file."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def record(out: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((out / "provision.json").read_text(encoding="utf-8"))
    return loaded


def secrets_of(out: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.suffix in (".key", ".secret")
    }


# ---------------------------------------------------------------- TLS


def subject_names(certificate: Path) -> list[str]:
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    extension = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


@pytest.fixture
def never_started() -> Iterator[None]:
    """Let a link or a node fail where it would start."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (links, nodes):
            patch.setattr(module, "only_one", lambda *_: pytest.fail("it starts"))
        yield


@contextmanager
def tls_server(kit: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "server.crt", kit / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    with connection, context.wrap_socket(connection, server_side=True) as wrapped:
                        wrapped.sendall(b"hello")
                except OSError:
                    continue  # the client has refused, as the test wants

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)


def greet(port: int, ca: Path, name: str) -> bytes:
    """Shake hands as strictly as newer Pythons do by default, and read what the server says."""
    context = ssl.create_default_context(cafile=str(ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=name) as wrapped,
    ):
        return wrapped.recv(5)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "host.example"])
def test_a_client_with_the_ca_shakes_hands(out: Path, name: str) -> None:
    with tls_server(out / "link") as port:
        assert greet(port, out / "ward-1" / "ca.crt", name) == b"hello"


@pytest.mark.parametrize("name", ["other.example", "example", "sub.host.example", "127.0.0.2"])
def test_a_wrong_name_is_refused(out: Path, name: str) -> None:
    with tls_server(out / "link") as port, pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        greet(port, out / "ward-1" / "ca.crt", name)


def test_another_authority_is_refused(out: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", LINK, ["ward-1"])
    with (
        tls_server(out / "link") as port,
        pytest.raises(ssl.SSLCertVerificationError, match=r"verify failed"),
    ):
        greet(port, tmp_path / "other" / "ward-1" / "ca.crt", "localhost")


def days_ago(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    then = dt.datetime.now(dt.UTC).replace(microsecond=0) - dt.timedelta(days=days)
    monkeypatch.setattr(certificates, "now", lambda: then)


@pytest.mark.usefixtures("never_started")
def test_an_expired_authority_is_refused_by_the_link_and_by_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "kits"
    days_ago(monkeypatch, certificates.AUTHORITY_DAYS + 1)
    provision(out, LINK, ["ward-1"])
    monkeypatch.undo()
    expired = r"ca.crt expired on .* UTC. Provision into another folder"
    with pytest.raises(ConfigError, match=r"link/server.crt expired .*link/" + expired):
        run_link(read_link_kit(out / "link"))
    with pytest.raises(ConfigError, match="ward-1/" + expired):
        run_node(read_node_kit(out / "ward-1"), Options())
    assert not (out / "ward-1" / "logs").exists()


@pytest.mark.usefixtures("never_started")
def test_what_is_no_certificate_is_named(out: Path) -> None:
    (out / "link" / "server.crt").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"link/server.crt: expected a certificate; got a damaged file"):
        run_link(read_link_kit(out / "link"))


def test_a_certificate_that_ends_within_30_days_is_said(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert certificates.check_kit(out / "link") == ()
    days_ago(monkeypatch, -334)
    assert certificates.check_kit(out / "link") == ()
    days_ago(monkeypatch, -336)
    (said,) = certificates.check_kit(out / "link")
    assert "server.crt expires on" in said
    assert "in 28 days" in said or "in 29 days" in said
    assert certificates.check_kit(out / "ward-1") == ()


@pytest.mark.usefixtures("never_started")
def test_an_expired_certificate_is_refused_and_told_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "kits"
    days_ago(monkeypatch, 40)
    provision(out, LINK, ["ward-1"], days=39)
    monkeypatch.undo()
    with tls_server(out / "link") as port, pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        greet(port, out / "ward-1" / "ca.crt", "localhost")
    remarks = provision(out).remarks
    assert any("link/server.crt expired" in r and "--renew" in r for r in remarks)
    with pytest.raises(ConfigError, match=r"link/server.crt expired on .* UTC. .*--renew"):
        run_link(read_link_kit(out / "link"))
    assert not (out / "link" / "logs").exists()

    before = contents(out)
    result = provision(out, renew=True)
    after = contents(out)
    assert {n for n in after if after[n] != before.get(n)} == {"link/server.crt", "provision.json"}
    assert result.lines[0].done == "certificate renewed"
    assert result.lines[0].changed == ("server.crt",)
    assert not result.remarks
    with tls_server(out / "link") as port:
        assert greet(port, out / "ward-1" / "ca.crt", "localhost") == b"hello"


def test_a_certificate_that_ends_soon_is_told(tmp_path: Path) -> None:
    assert not provision(tmp_path / "long", LINK, days=31).remarks
    assert any("link/server.crt expires" in r for r in provision(tmp_path / "short", LINK, days=20).remarks)


def test_no_certificate_outlives_the_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days_ago(monkeypatch, 3600)
    provision(tmp_path, LINK)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"--days: expected at most (49|50), as the authority's"):
        provision(tmp_path, renew=True)
    provision(tmp_path, renew=True, days=40)


def test_grpc_shakes_hands(out: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    kit = read_link_kit(out / "link")
    server = grpc.server(ThreadPoolExecutor(1))
    pair = (kit.server_key.read_bytes(), kit.server_certificate.read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        for target in (f"127.0.0.1:{port}", f"localhost:{port}"):
            trust = grpc.ssl_channel_credentials((out / "ward-1" / "ca.crt").read_bytes())
            with grpc.secure_channel(target, trust) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
    finally:
        server.stop(0).wait()


@pytest.mark.parametrize(
    ("link", "name"),
    [("10.0.0.7:9092", "10.0.0.7"), ("[2001:db8::7]:9092", "2001:db8::7"), ("LOCALHOST:9092", "localhost")],
)
def test_the_names_of_the_certificate(tmp_path: Path, link: str, name: str) -> None:
    provision(tmp_path, link)
    names = subject_names(tmp_path / "link" / "server.crt")
    assert sorted(names) == sorted({name, "localhost", "127.0.0.1", "::1"})
    with tls_server(tmp_path / "link") as port:
        assert greet(port, tmp_path / "ca" / "ca.crt", name) == b"hello"


def test_the_certificate_is_one_of_a_server_only(out: Path) -> None:
    certificate = x509.load_pem_x509_certificate((out / "link" / "server.crt").read_bytes())
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [u.dotted_string for u in usage] == ["1.3.6.1.5.5.7.3.1"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    authority = x509.load_pem_x509_certificate((out / "ca" / "ca.crt").read_bytes())
    assert certificate.not_valid_after_utc < authority.not_valid_after_utc
    assert certificate.not_valid_before_utc < certificates.now() - dt.timedelta(hours=23)


# ---------------------------------------------------------------- Flower, files, fingerprints


def test_flower_reads_the_keys_of_a_node(out: Path) -> None:
    kit = read_node_kit(out / "ward-1")
    pair = _try_setup_client_authentication(
        Namespace(auth_supernode_private_key=str(kit.key), auth_supernode_public_key=None)
    )
    assert pair is not None
    private, public = pair
    assert isinstance(private.curve, ec.SECP256R1)
    assert try_load_public_key(kit.public_key) == public_key_to_bytes(public)
    assert try_load_public_key(read_link_kit(out / "link").node_keys["ward-1"]) == public_key_to_bytes(public)
    secret = read_link_kit(out / "link").secret
    assert len(load_superexec_auth_secret(str(secret)) or b"") == 48


def test_private_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        provision(tmp_path / "kits", LINK, ["ward-1"])
    finally:
        os.umask(before)
    made = [tmp_path / "kits", *(tmp_path / "kits").rglob("*")]
    assert len([p for p in made if p.suffix in (".key", ".secret")]) == 4
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_every_machine_has_keys_and_secrets_of_its_own(out: Path) -> None:
    values = list(secrets_of(out).values())
    assert len(values) == 5  # ca, link (2), two nodes
    assert len({*values}) == 5


def test_fingerprints_are_those_of_the_usual_tools(out: Path) -> None:
    if not (shutil.which("ssh-keygen") and shutil.which("openssl")):
        pytest.skip("needs ssh-keygen and openssl")
    told = record(out)
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(out / "ward-1" / "node.pub")], capture_output=True, text=True, check=True
    ).stdout
    assert told["nodes"]["ward-1"]["fingerprint"] == shown.split()[1]  # type: ignore[index]
    for key, path in (("ca", "ca/ca.crt"), ("server", "link/server.crt")):
        shown = subprocess.run(
            ["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", str(out / path)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert told[key]["fingerprint"] == shown.strip().partition("=")[2]  # type: ignore[index]


def test_a_readme_of_five_lines_and_a_hardened_unit(out: Path) -> None:
    for kit, kind in (("link", "link"), ("ward-1", "node")):
        lines = (out / kit / "README.txt").read_text(encoding="utf-8").splitlines()
        assert [line[:2] for line in lines] == ["1.", "2.", "3.", "4.", "5."]
        unit = (out / kit / f"bouquet-{kind}.service").read_text(encoding="utf-8").splitlines()
        for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=always", "User=bouquet"):
            assert line in unit
        assert f"ReadWritePaths=/srv/bouquet/{kit}" in unit
        assert any(line.startswith(f"ExecStart=/opt/bouquet/bin/bouquet {kind} /srv/") for line in unit)
        assert not any("{" in line for line in [*lines, *unit])
        assert ("LimitNOFILE=65536" in unit) == (kind == "link")


def test_systemd_accepts_the_units(out: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    for unit in out.rglob("*.service"):
        copy = tmp_path / unit.name
        text = unit.read_text(encoding="utf-8").replace("/opt/bouquet/bin/bouquet", "/bin/true")
        copy.write_text(text, encoding="utf-8")
        checked = subprocess.run(
            ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr
        assert unit.name not in checked.stderr  # it warns of unknown settings


# ---------------------------------------------------------------- again, more, moved


def test_the_same_again_changes_no_byte(out: Path) -> None:
    before = contents(out)
    result = provision(out, LINK, ["ward-1", "ward-2"])
    assert contents(out) == before
    assert {line.done for line in result.lines} == {"kept"}
    assert not any(line.changed for line in result.lines)


def test_more_nodes_leave_every_key_as_it_is(out: Path) -> None:
    before = contents(out)
    result = provision(out, nodes=["ward-3", "ward-1"])
    after = contents(out)
    assert {n for n in before if before[n] != after[n]} == {"provision.json"}
    added = {n for n in after if n not in before}
    assert added == {"link/nodes/ward-3.pub"} | {n for n in after if n.startswith("ward-3/")}
    assert [(line.name, line.done) for line in result.lines] == [
        ("link", "kept"), ("ca", "kept"), ("ward-3", "new"), ("ward-1", "kept"), ("ward-2", "kept")
    ]  # fmt: skip
    assert result.lines[0].changed == ("nodes",)
    assert read_node_kit(out / "ward-3").link == LINK


def test_nodes_can_be_added_without_the_authoritys_key(out: Path) -> None:
    shutil.rmtree(out / "ca")
    provision(out, nodes=["ward-3"])
    assert read_node_kit(out / "ward-3").name == "ward-3"
    assert not (out / "ca").exists()
    with pytest.raises(ConfigError, match=r"ca\.key: expected the authority's key, to sign; got none"):
        provision(out, renew=True)


def test_another_authoritys_key_signs_nothing(out: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", LINK)
    shutil.rmtree(out / "ca")
    shutil.copytree(tmp_path / "other" / "ca", out / "ca")
    before = contents(out)
    with pytest.raises(ConfigError, match=r"expected the private key of ca\.crt; got another one"):
        provision(out, renew=True)
    assert contents(out) == before


def test_another_link_gets_a_certificate_and_goes_into_the_kits(out: Path) -> None:
    config = out / "ward-1" / "kit.toml"
    config.write_text(
        config.read_text(encoding="utf-8").replace("max-rounds = 0", "max-rounds = 9"), encoding="utf-8"
    )
    shutil.rmtree(out / "ward-2")  # it was moved to its machine
    keys = secrets_of(out)
    result = provision(out, "10.0.0.7:9443")

    assert secrets_of(out) == keys
    link, node = read_link_kit(out / "link"), read_node_kit(out / "ward-1")
    assert (link.address, link.fleet, node.link) == ("10.0.0.7:9443", "0.0.0.0:9443", "10.0.0.7:9443")
    assert node.policy.max_rounds == 9
    assert subject_names(link.server_certificate) == ["10.0.0.7", "localhost", "127.0.0.1", "::1"]
    assert "10.0.0.7:9443" in (out / "ward-1" / "README.txt").read_text(encoding="utf-8")
    assert record(out)["link"] == "10.0.0.7:9443"
    assert any('ward-2: its kit is not here; set link = "10.0.0.7:9443"' in r for r in result.remarks)
    assert result.lines[0].done == f"address changed from {LINK}, new certificate"
    with tls_server(out / "link") as port:
        assert greet(port, out / "ward-1" / "ca.crt", "10.0.0.7") == b"hello"


def test_another_port_needs_no_certificate(out: Path) -> None:
    before = (out / "link" / "server.crt").read_bytes()
    config = out / "link" / "kit.toml"
    text = config.read_text(encoding="utf-8").replace("0.0.0.0:9092", "0.0.0.0:7000")  # a forwarded port
    config.write_text(text, encoding="utf-8")
    provision(out, "host.example:9443")
    kit = read_link_kit(out / "link")
    assert (kit.address, kit.fleet) == ("host.example:9443", "0.0.0.0:7000")
    assert kit.server_certificate.read_bytes() == before


def test_the_port_of_the_control_api_is_refused(out: Path, tmp_path: Path) -> None:
    before = contents(out)
    with pytest.raises(ConfigError, match=r"--address: expected another port than 127\.0\.0\.1:8000"):
        provision(out, "elsewhere:8000")
    assert contents(out) == before
    provision(tmp_path / "first", "host:8000")
    assert read_link_kit(tmp_path / "first" / "link").control == "127.0.0.1:8001"


# ---------------------------------------------------------------- revoke


def test_a_revoked_key_is_out_and_told(out: Path) -> None:
    public = (out / "ward-1" / "node.pub").read_bytes()
    result = provision(out, revoke=["ward-1"])
    kit = read_link_kit(out / "link")
    assert list(kit.node_keys) == ["ward-2"]
    assert (kit.revoked / "ward-1.pub").read_bytes() == public
    assert not (kit.nodes / "ward-1.pub").exists()
    assert not (out / "ward-1").exists()
    assert (out / "revoked" / "ward-1" / "node.pub").read_bytes() == public
    entry = record(out)["nodes"]["ward-1"]  # type: ignore[index]
    assert dt.datetime.fromisoformat(entry["revoked"]) <= certificates.now()
    assert [(line.name, line.done) for line in result.lines if line.name == "ward-1"] == [
        ("ward-1", "revoked")
    ]
    assert result.lines[0].changed == ("revoked",)

    before = contents(out)
    again = provision(out, LINK, revoke=["ward-1"])
    assert contents(out) == before
    assert any(r.startswith("ward-1 was revoked on") for r in again.remarks)


def test_a_revoked_name_comes_back_with_a_new_key_only_and_not_silently(out: Path) -> None:
    first = (out / "ward-1" / "node.pub").read_bytes()
    provision(out, nodes=["ward-1"])
    assert (out / "ward-1" / "node.pub").read_bytes() == first  # no new key while the old one is good
    provision(out, revoke=["ward-1"])
    result = provision(out, nodes=["ward-1"])
    second = (out / "ward-1" / "node.pub").read_bytes()
    assert second != first
    assert any("ward-1 was revoked on" in r and "only its new key is valid" in r for r in result.remarks)
    assert ("ward-1", "new key") in [(line.name, line.done) for line in result.lines]
    entry = record(out)["nodes"]["ward-1"]  # type: ignore[index]
    assert entry["revoked"] is None
    assert [old["fingerprint"] for old in entry["earlier"]] == [certificates.node_fingerprint(first)]

    provision(out, revoke=["ward-1"])
    third = provision(out, nodes=["ward-1"])
    kit = read_link_kit(out / "link")
    assert [p.name for p in kit.revoked_keys] == ["ward-1.pub", "ward-1~2.pub"]
    assert [p.read_bytes() for p in kit.revoked_keys] == [first, second]
    assert kit.node_keys["ward-1"].read_bytes() not in (first, second)
    assert ("ward-1", "new key") in [(line.name, line.done) for line in third.lines]


def test_a_revoked_kit_that_is_put_back_is_refused(out: Path) -> None:
    provision(out, revoke=["ward-1"])
    shutil.copytree(out / "revoked" / "ward-1", out / "ward-1")
    with pytest.raises(
        ConfigError, match=r"ward-1: expected no folder, as .*/revoked/ward-1 has its revoked"
    ):
        provision(out, nodes=["ward-1"])
    shutil.rmtree(out / "ward-1")
    provision(out, nodes=["ward-1"])
    provision(out, revoke=["ward-1"])
    shutil.copytree(out / "revoked" / "ward-1", out / "ward-1")  # not the last key, but the one before
    with pytest.raises(
        ConfigError, match=r"ward-1: expected no folder, .* got one with the revoked key SHA256:"
    ):
        provision(out, nodes=["ward-1"])
    assert list(read_link_kit(out / "link").node_keys) == ["ward-2"]


# ---------------------------------------------------------------- bad inputs


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"link": ""},
            "--address: expected HOST:PORT, where nodes reach the SuperLink; got none, and no earlier",
        ),
        ({"link": "host"}, "--address: expected HOST:PORT"),
        ({"nodes": ["../x"]}, "name of a node"),
        ({"nodes": ["ca"]}, "name of a node: expected none of ca, link"),
        ({"revoke": ["a/b"]}, "name of a node"),
        ({"revoke": ["ward-9"]}, "--revoke: unknown node"),
        ({"nodes": ["a"], "revoke": ["a"]}, "expected different names; got 'a' in both"),
        ({"nodes": ["Ward", "ward"]}, "differ by more than capitals"),
        ({"days": 0}, "--days: expected 1 to 3650; got 0"),
        ({"days": 3651}, "--days: expected 1 to 3650; got 3651"),
    ],
)
def test_bad_inputs_make_nothing(tmp_path: Path, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        provision(tmp_path / "kits", **({"link": LINK} | arguments))  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert not (tmp_path / "kits").exists() or not contents(tmp_path / "kits")


def test_an_unknown_node_is_refused_with_the_nearest(out: Path) -> None:
    before = contents(out)
    with pytest.raises(ConfigError, match='Did you mean "ward-1"'):
        provision(out, nodes=["ward-7"], revoke=["wrd-1"])
    with pytest.raises(ConfigError, match="differ by more than capitals"):
        provision(out, nodes=["WARD-1"])
    assert contents(out) == before


def test_what_is_not_a_kit_is_not_touched(out: Path) -> None:
    (out / "ward-3").mkdir()
    (out / "ward-3" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ward-3/kit\.toml"):
        provision(out, nodes=["ward-3"])
    assert [p.name for p in (out / "ward-3").iterdir()] == ["notes.txt"]
    assert "ward-3" not in read_link_kit(out / "link").node_keys


def test_a_key_that_was_made_elsewhere_is_not_written_over(out: Path) -> None:
    listed = out / "link" / "nodes" / "ward-3.pub"
    listed.write_bytes(certificates.make_node_keys("ward-3")[1])
    before = contents(out)
    with pytest.raises(ConfigError, match=r"ward-3\.pub: expected no key of ward-3"):
        provision(out, nodes=["ward-3"])
    assert contents(out) == before


def test_a_kit_of_another_federation_is_not_taken_in(out: Path, tmp_path: Path) -> None:
    provision(tmp_path / "other", LINK, ["ward-3"])
    shutil.copytree(tmp_path / "other" / "ward-3", out / "ward-3")
    with pytest.raises(ConfigError, match="expected the kit of ward-3 of this federation"):
        provision(out, nodes=["ward-3"])
    assert "ward-3" not in read_link_kit(out / "link").node_keys


def test_a_damaged_record_and_a_missing_link_kit(out: Path) -> None:
    text = (out / "provision.json").read_text(encoding="utf-8")
    (out / "provision.json").write_text(text[:-20], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"provision\.json: .* got a damaged one"):
        provision(out, nodes=["ward-3"])
    (out / "provision.json").write_text(text, encoding="utf-8")
    shutil.rmtree(out / "link")
    with pytest.raises(ConfigError, match=r"link: expected the SuperLink's kit; got none"):
        provision(out, nodes=["ward-3"])


# ---------------------------------------------------------------- failures midway


def whole(out: Path) -> set[str]:
    """Read every kit that is there and return their names; a half-made one is an error."""
    kits = {p.name for p in out.iterdir() if p.is_dir() and p.name not in ("ca", "revoked")}
    for name in kits:
        read_kit(out / name)
    if (out / "ca").exists():
        assert {p.name for p in (out / "ca").iterdir()} == {"ca.key", "ca.crt"}
    return kits


def work(out: Path) -> None:
    """Everything that writes: a new folder, one more node, a revocation, another link, a new key."""
    provision(out, LINK, ["ward-1", "ward-2"])
    provision(out, "10.0.0.7:9443", ["ward-3"], ["ward-1"])
    provision(out, "10.0.0.7:9443", ["ward-1"])


def test_a_full_disk_leaves_no_half_made_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch)
    work(tmp_path / "undisturbed")
    total = disk.syncs
    assert total > 40
    for moment in range(1, total + 1, EVERY):
        out = tmp_path / str(moment)
        disk.begin(moment)
        with pytest.raises(BouquetError, match=r"could not be written: No space left on device"):
            work(out)
        disk.begin(-1)
        assert not list(out.rglob(".*"))
        whole(out)
        kept = set(secrets_of(out).values())
        finish(out)
        assert kept <= set(secrets_of(out).values())


def finish(out: Path) -> None:
    """Say again what was to be done, and check that it is."""
    nodes = (
        json.loads((out / "provision.json").read_text())["nodes"] if (out / "provision.json").exists() else {}
    )
    revoked = any(e["revoked"] or e["earlier"] for n, e in nodes.items() if n == "ward-1")
    provision(out, "10.0.0.7:9443", ["ward-2", "ward-3", *(() if revoked else ("ward-1",))])
    if not revoked:
        provision(out, revoke=["ward-1"])
    provision(out, nodes=["ward-1"])
    kit = read_link_kit(out / "link")
    assert whole(out) == {"link", "ward-1", "ward-2", "ward-3"}
    assert [*kit.node_keys] == ["ward-1", "ward-2", "ward-3"]
    assert [p.name for p in kit.revoked_keys] == ["ward-1.pub"]
    for name, path in kit.node_keys.items():
        node = read_node_kit(out / name)
        assert node.public_key.read_bytes() == path.read_bytes()
        assert node.link == kit.address == "10.0.0.7:9443"
        told = record(out)["nodes"][name]  # type: ignore[index]
        assert (told["fingerprint"], told["revoked"]) == (
            certificates.node_fingerprint(path.read_bytes()),
            None,
        )
    assert subject_names(kit.server_certificate)[0] == "10.0.0.7"


@pytest.mark.parametrize("moment", [3, 13, 17, 26, 38, 41, 44, 47, 53])
def test_a_kill_leaves_what_the_next_command_finishes(tmp_path: Path, moment: int) -> None:
    out = tmp_path / "kits"
    pid = os.fork()
    if pid == 0:  # a child that dies at its nth sync, as a machine that loses power would
        _die_at(moment)
        try:
            work(out)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    finish(out)
    assert not list(out.rglob(".*"))


def _die_at(moment: int) -> None:
    real, calls = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    os.fsync = fsync


def test_two_commands_do_not_work_in_one_folder(out: Path) -> None:
    import fcntl

    handle = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(BouquetError, match="another `bouquet provision` is working in it"):
            provision(out, nodes=["ward-3"])
    finally:
        os.close(handle)
    provision(out, nodes=["ward-3"])


# ---------------------------------------------------------------- the command


def bouquet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "server_app.cli.main", "provision", *arguments],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_of_a_link_on_this_machine_nothing_is_copied(tmp_path: Path, host: str) -> None:
    """The commands start the kits where they are."""
    out = tmp_path / "kits"
    first = provision(out, f"{host}:9092", ["ward-1"])
    assert [*next_steps(first)] == [
        f"link: bouquet link {out}/link",
        f"ward-1: bouquet node {out}/ward-1 --data PATH",
        f"link: when the nodes are online, bouquet run --link {out}/link -c 'KEY=VALUE ...'",
    ]
    then = provision(out, renew=True)
    assert [*next_steps(then)] == [f"link: end it if it runs, and start it again: bouquet link {out}/link"]


def test_the_command_shows_what_to_do_and_no_secret(tmp_path: Path) -> None:
    out = tmp_path / "kits"
    calls = [
        bouquet("--address", LINK, "--node", "ward-1", "--node", "ward-2", "--out", str(out)),
        bouquet("--out", str(out), "--revoke", "ward-1", "--renew"),
        bouquet("--out", str(out), "--node", "ward-1", "--address", "10.0.0.7:9092", "--submitter", "alice"),
    ]
    assert [c.returncode for c in calls] == [0, 0, 0], [c.stderr for c in calls]
    assert f"link: rsync -a {out}/link/ host.example:/srv/bouquet/link/" in calls[0].stdout
    assert "link: there, bouquet link /srv/bouquet/link" in calls[0].stdout
    assert "ward-2: there, bouquet node /srv/bouquet/ward-2 --data PATH" in calls[0].stdout
    assert "there, bouquet run --link /srv/bouquet/link -c 'KEY=VALUE ...'" in calls[0].stdout
    assert not any("bouquet run" in call.stdout for call in calls[1:2])
    assert "revoked" in calls[1].stdout
    assert f"rsync -a {out}/link/revoked {out}/link/server.crt" in calls[1].stdout
    assert "link: there, systemctl restart bouquet-link" in calls[1].stdout
    assert "note: ward-1 was revoked on" in calls[2].stdout
    assert "ward-2: there, set link in /srv/bouquet/ward-2/kit.toml to 10.0.0.7:9092" in calls[2].stdout
    assert f"alice: give {out}/alice to alice" in calls[2].stdout
    printed = "".join(c.stdout + c.stderr for c in calls)
    # The record, which may be shown around, is held to the same.
    printed += (out / "provision.json").read_text(encoding="utf-8")
    assert "PRIVATE" not in printed
    found = secrets_of(out)
    assert len(found) == 7
    for value in found.values():
        for form in {value.hex(), base64.b64encode(value).decode(), repr(value)}:
            assert form not in printed
        for line in value.split(b"\n"):
            assert len(line) < 20 or line.decode("latin-1") not in printed


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    refused = bouquet("--address", "host", "--out", str(tmp_path / "kits"))
    assert refused.returncode == 78
    assert refused.stderr.startswith("error: --address: expected HOST:PORT")
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "kits").exists()


def test_nodes_share_a_key_to_encrypt_with_and_the_link_knows_its_name_alone(out: Path) -> None:
    made = provision(out, he=True)
    key = (out / "he" / KEY_FILE).read_bytes()
    assert not list(out.glob(f"link/**/{KEY_FILE}"))
    for name in ("ward-1", "ward-2"):
        mine = out / name / KEY_FILE
        assert (mine.read_bytes(), stat.S_IMODE(mine.stat().st_mode)) == (key, 0o600)
        assert next(line for line in made.lines if line.name == name).changed == (KEY_FILE,)
    public = json.loads((out / "link" / PUBLIC_FILE).read_text())
    assert public["id"] == id_of(key) == Key(key).id
    middle = key[len(key) // 2 :][:64]
    assert not any(middle in p.read_bytes() for p in (out / "link").rglob("*") if p.is_file())
    before = contents(out)
    provision(out, he=True)
    assert contents(out).keys() == before.keys()
    assert all(contents(out)[k][0] == v[0] for k, v in before.items() if k != "provision.json")

    provision(out, nodes=["ward-3"])  # gets the key, without being asked again
    assert (out / "ward-3" / KEY_FILE).read_bytes() == key
    shutil.move(out / "ward-3", out.parent / "away")
    made = provision(out, revoke=["ward-2"])  # who knows it still, so that it must change
    new = (out / "he" / KEY_FILE).read_bytes()
    assert new != key
    assert (out / "ward-1" / KEY_FILE).read_bytes() == new
    assert (out / "revoked" / "ward-2" / KEY_FILE).read_bytes() == key
    assert json.loads((out / "link" / PUBLIC_FILE).read_text())["id"] == id_of(new)
    assert any("ward-3: its kit is not here" in remark for remark in made.remarks)
    assert PUBLIC_FILE in made.lines[0].changed
    provision(out, rotate_he=True)
    assert (out / "ward-1" / KEY_FILE).read_bytes() not in (key, new)

    (out / "ward-1" / KEY_FILE).chmod(0o644)
    with pytest.raises(ConfigError, match=r"he\.context: expected mode 0600"):
        read_node_kit(out / "ward-1")
    shutil.copy(out / "he" / KEY_FILE, out / "link" / KEY_FILE)
    with pytest.raises(ConfigError, match="must not be able to decrypt the sums"):
        read_link_kit(out / "link")
