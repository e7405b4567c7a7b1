"""Kits are read, and refused with the file, the key, what was expected and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from server_app.deploy.kits.kit import (
    MIN_EXAMPLES,
    LinkKit,
    NodeKit,
    Policy,
    read_kit,
    read_link_kit,
    read_node_kit,
)
from server_app.deploy.kits.parsing import check_name, read_address, read_size
from server_app.deploy.kits.provision import provision
from task.errors import ConfigError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    provision(out, "host.example:9092", ["ward-1", "ward-2"])
    return out


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> Path:
    """Kits of the test's own, to damage."""
    return shutil.copytree(made, tmp_path / "kits")


def edit(config: Path, old: str, new: str) -> None:
    text = config.read_text(encoding="utf-8")
    assert old in text
    config.write_text(text.replace(old, new), encoding="utf-8")


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_kit(folder)
    return str(caught.value)


def test_the_link_kit(kits: Path) -> None:
    kit = read_kit(kits / "link")
    assert isinstance(kit, LinkKit)
    assert (kit.fleet, kit.control, kit.address) == ("0.0.0.0:9092", "127.0.0.1:8000", "host.example:9092")
    assert kit.max_reply == 64 * 1024 * 1024
    assert kit.max_rate == 1200
    assert kit.path == (kits / "link").resolve()
    for part in ("flwr_home", "logs", "state", "cache", "runs", "jobs", "database"):
        assert getattr(kit, part).is_relative_to(kit.path)
    assert list(kit.node_keys) == ["ward-1", "ward-2"]
    assert kit.node_keys["ward-1"].read_bytes() == (kits / "ward-1" / "node.pub").read_bytes()
    assert kit.revoked_keys == ()


def test_the_node_kit(kits: Path) -> None:
    kit = read_node_kit(str(kits / "ward-1"))
    assert isinstance(kit, NodeKit)
    assert (kit.name, kit.link) == ("ward-1", "host.example:9092")
    assert kit.policy == Policy("installed", 0, MIN_EXAMPLES, 0, False)
    assert kit.key.is_file()
    assert kit.public_key.is_file()
    assert kit.alive.parent == kit.state


def test_the_site_sets_its_policy(kits: Path) -> None:
    config = kits / "ward-1" / "kit.toml"
    edit(config, 'apps = "installed"', 'apps = "any"')
    edit(config, "max-rounds = 0", "max-rounds = 7")
    edit(config, "min-examples = 10", "min-examples = 50")
    edit(config, "min-steps = 0", "min-steps = 3")
    edit(config, "run-paths = false", "run-paths = true")
    assert read_node_kit(kits / "ward-1").policy == Policy("any", 7, 50, 3, True)


def test_limits_and_policy_may_be_left_out(kits: Path) -> None:
    link, node = kits / "link" / "kit.toml", kits / "ward-1" / "kit.toml"
    for config, stop in ((link, "max-reply"), (node, "[policy]")):
        text = config.read_text(encoding="utf-8")
        config.write_text(text[: text.index(stop)], encoding="utf-8")
    assert read_link_kit(kits / "link").max_reply == 64 * 1024**2
    assert read_link_kit(kits / "link").max_rate == 1200
    assert read_node_kit(kits / "ward-1").policy == Policy()


def test_a_revoked_key_that_a_copy_left_behind_may_not_join(kits: Path) -> None:
    kit = read_link_kit(kits / "link")
    line = (kit.nodes / "ward-1.pub").read_text(encoding="utf-8")
    (kit.revoked / "ward-1.pub").write_text(line.replace("ward-1", "another comment"), encoding="utf-8")
    assert list(kit.node_keys) == ["ward-2"]
    assert [p.name for p in kit.revoked_keys] == ["ward-1.pub"]


def test_the_wrong_kind_is_refused(kits: Path) -> None:
    with pytest.raises(ConfigError, match=r"kit of a SuperLink; got that of the node 'ward-1'"):
        read_link_kit(kits / "ward-1")
    with pytest.raises(ConfigError, match=r"kit of a node; got that of the SuperLink host.example:9092"):
        read_node_kit(kits / "link")


def test_no_folder_and_a_file_in_its_place(tmp_path: Path) -> None:
    assert "expected the folder of a start kit; got none" in refusal(tmp_path / "none")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "got a file" in refusal(tmp_path / "file")
    assert str(tmp_path / "kit.toml") in refusal(tmp_path)


@pytest.mark.parametrize(
    ("kit", "name"),
    [("link", n) for n in ("kit.toml", "ca.crt", "server.crt", "server.key", "superexec.secret")]
    + [("ward-1", n) for n in ("kit.toml", "ca.crt", "node.key", "node.pub")],
)
def test_a_missing_file_is_named(kits: Path, kit: str, name: str) -> None:
    (kits / kit / name).unlink()
    message = refusal(kits / kit)
    assert message.startswith(str(kits / kit / name))
    assert "got none" in message


def test_a_missing_folder_of_node_keys_is_named(kits: Path) -> None:
    shutil.rmtree(kits / "link" / "nodes")
    assert refusal(kits / "link").startswith(str(kits / "link" / "nodes"))


@pytest.mark.parametrize(
    ("kit", "name"),
    [
        ("link", "server.key"),
        ("link", "superexec.secret"),
        ("ward-1", "node.key"),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o700])
def test_an_open_private_file_is_refused(kits: Path, kit: str, name: str, mode: int) -> None:
    path = kits / kit / name
    path.chmod(mode)
    message = refusal(kits / kit)
    assert f"expected mode 0600, as it is secret; got {mode:04o}" in message
    assert f"chmod 600 {path}" in message


def test_a_read_only_private_file_is_fine(kits: Path) -> None:
    (kits / "ward-1" / "node.key").chmod(0o400)
    assert read_node_kit(kits / "ward-1").name == "ward-1"


def test_a_short_secret_is_refused_and_not_shown(kits: Path) -> None:
    (kits / "link" / "superexec.secret").write_bytes(b"hunter2")
    message = refusal(kits / "link")
    assert "expected at least 32 random bytes; got 7" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('kind = "link"', "kind = link", "expected a TOML file; got one with an error"),
        (
            'kind = "link"',
            'kind = "server"',
            '"kind": expected "link", "node" or "submitter"; got \'server\'',
        ),
        ('kind = "link"', "", '"kind": expected "link", "node" or "submitter"; got None'),
        ("max-rate = 1200", "max-rates = 120", 'Did you mean "max-rate"?'),
        ("max-rate = 1200", "max-rate = 0", '"max-rate": expected at least 1; got 0'),
        ("max-runs = 4", "max-runs = 0", '"max-runs": expected at least 1; got 0'),
        ("max-rate = 1200", "max-rate = true", '"max-rate": expected a whole number; got True'),
        ("max-rate = 1200", 'max-rate = "120"', "expected a whole number; got '120'"),
        ('max-reply = "64M"', 'max-reply = "64MB"', '"max-reply": expected a size such as "64M"'),
        ('max-reply = "64M"', 'max-reply = "0"', "expected a size"),
        ('max-reply = "64M"', 'max-reply = "2G"', "expected less than 2G"),
        ('max-reply = "64M"', "max-reply = 64", "expected text; got 64"),
        ('address = "host.example:9092"', "", '"address": expected text; got none'),
        ('address = "host.example:9092"', 'address = "host.example"', '"address": expected HOST:PORT'),
        ('fleet = "0.0.0.0:9092"', 'fleet = "0.0.0.0:90920"', '"fleet": expected HOST:PORT'),
        (
            'control = "127.0.0.1:8000"',
            'control = "0.0.0.0:8000"',
            '"control": expected an address of loopback',
        ),
        ('control = "127.0.0.1:8000"', 'control = "[::]:8000"', '"control": expected an address of loopback'),
        (
            'control = "127.0.0.1:8000"',
            'control = "8.8.8.8:8000"',
            '"control": expected an address of loopback',
        ),
        ('control = "127.0.0.1:8000"', 'control = "host.example:8000"', "expected an address of loopback"),
    ],
)
def test_a_bad_key_of_the_link_is_refused(kits: Path, old: str, new: str, says: str) -> None:
    config = kits / "link" / "kit.toml"
    edit(config, old, new)
    message = refusal(kits / "link")
    assert message.startswith(str(config))
    assert says in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "ward-1"', 'name = "../ward-1"', "letter or digit at both ends; got '../ward-1'"),
        ('link = "host.example:9092"', 'link = "http://host:9092"', '"link": expected HOST:PORT'),
        ('apps = "installed"', 'apps = "install"', 'Did you mean "installed"?'),
        ("max-rounds = 0", "max-rounds = -1", '"policy.max-rounds": expected 0 (no limit) or more; got -1'),
        (
            "min-examples = 10",
            "min-example = 0",
            "Expected one of apps, delta, he, keep-models, max-epsilon, max-questions",
        ),
        ("min-steps = 0", "min-steps = -1", '"policy.min-steps": expected 0 (no limit) or more; got -1'),
        ("max-epsilon = 0.0", "max-epsilon = -1", '"policy.max-epsilon": expected 0 (no limit) or more'),
        ("delta = 1e-5", "delta = 1", '"policy.delta": expected more than 0 and less than 1; got 1.0'),
        ("delta = 1e-5", "delta = true", '"policy.delta": expected a number; got True'),
        ("packages = []", 'packages = "net"', "\"policy.packages\": expected a list; got 'net'"),
        ("packages = []", 'packages = ["net.py"]', 'modules, such as ["net", "data"]; got \'net.py\''),
        ("run-paths = false", "run-paths = 1", '"policy.run-paths": expected true or false; got 1'),
        ("[policy]", "[policies]", 'Did you mean "policy"?'),
    ],
)
def test_a_bad_key_of_a_node_is_refused(kits: Path, old: str, new: str, says: str) -> None:
    config = kits / "ward-1" / "kit.toml"
    edit(config, old, new)
    message = refusal(kits / "ward-1")
    assert message.startswith(str(config))
    assert says in message


@pytest.mark.parametrize("control", ["localhost:8000", "10.1.2.3:8000", "[::1]:8000", "100.64.0.9:8000"])
def test_a_private_control_address_is_fine(kits: Path, control: str) -> None:
    edit(kits / "link" / "kit.toml", "127.0.0.1:8000", control)
    assert read_link_kit(kits / "link").control == control


@pytest.mark.parametrize("name", ["a", "7", "ward-1", "Ward_2.north", "a" * 64])
def test_names_that_are_fine(name: str) -> None:
    check_name(name)  # raises nothing


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "a b", "-a", "a-", ".a", "a\n", "ä", "a" * 65, "~", "a~2", "%n", "$HOME"),
        *("ca", "link", "LINK", "revoked", "provision.json"),
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name of a node"):
        check_name(name)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Host.Example:9092", ("host.example", 9092)),
        ("super_link:1", ("super_link", 1)),
        ("192.168.1.7:65535", ("192.168.1.7", 65535)),
        ("[fe80::1]:9092", ("fe80::1", 9092)),
    ],
)
def test_addresses_that_are_fine(text: str, read: tuple[str, int]) -> None:
    assert read_address(text, "--address") == read


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", ":9092", "host:", "host:0", "host:65536", "host:x", "h:٣", "h:1\n", "a b:1", "*.x:1"),
        *("fe80::1:9092", "[host]:1", "[1.2.3.4]:1", "1.2.3:9092", "1.2.3.999:1", "a..b:1", "-a:1"),
    ],
)
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--address: expected HOST:PORT"):
        read_address(text, "--address")


def test_sizes() -> None:
    sizes = [read_size(t, "") for t in ("1", "2k", "64M", "1G", 512)]
    assert sizes == [1, 2048, 64 * 1024**2, 1024**3, 512]
    for bad in ("", "0M", "1.5G", "-1", "M", "1T", True):
        with pytest.raises(ConfigError, match="--max-memory: expected a size"):
            read_size(bad, "--max-memory")
