"""``bouquet connect``: Flower's own commands get a link's address and token, and keep what they have."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import httpx
import pytest
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListRunsRequest

from server_app.deploy.flower.connection import connect
from server_app.deploy.kits.kit import read_submitting_kit
from server_app.deploy.kits.provision import provision
from task.errors import ConfigError

OWN = """# mine
[superlink]
default = "lab"  # kept

[superlink.lab]
address = "lab.example:9093"
insecure = true
"""


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    provision(tmp_path / "kits", "127.0.0.1:9092", ["ward-1"], submitters=["alice", "bob"])
    return tmp_path / "kits"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["link", "alice"])
def test_flowers_own_client_shows_the_token_to_the_link(
    kits: Path, home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = read_submitting_kit(kits / name)
    connect(kit, name)
    # The path is taken when the module is imported, which another test has done.
    monkeypatch.setattr(
        "flwr.supercore.credential_store.file_credential_store.CREDENTIAL_FILE_PATH",
        home / "credentials.yaml",
    )
    client = init_http_client_from_connection(read_superlink_connection(name))
    sent: list[httpx.Request] = []

    def send(request: httpx.Request, **more: object) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, request=request)

    monkeypatch.setattr(client._client, "send", send)
    client.ListRuns(ListRunsRequest())
    assert str(sent[0].url) == "https://127.0.0.1:9096/v1/control/list-runs"
    assert sent[0].headers["authorization"] == f"Bearer {kit.token}"
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    assert files == {"config.toml": 0o600, "credentials.yaml": 0o600}
    assert kit.token not in (home / "config.toml").read_text()


def test_what_flower_has_stays(kits: Path, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(OWN)
    for _ in range(2):
        assert connect(read_submitting_kit(kits / "alice"), "a.b") == home / "config.toml"
    text = (home / "config.toml").read_text()
    assert text.startswith(OWN)
    connections = tomllib.loads(text)["superlink"]
    assert set(connections) == {"default", "lab", "a.b"}
    assert connections["a.b"]["root-certificates"] == str(kits / "alice" / "ca.crt")


def test_without_a_configuration_flowers_own_one_comes_first(kits: Path, home: Path) -> None:
    connect(read_submitting_kit(kits / "alice"), "alice")
    connections = tomllib.loads((home / "config.toml").read_text())["superlink"]
    assert connections["default"] in connections  # `flwr run .` still simulates


def test_another_connection_is_not_replaced(kits: Path, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(OWN)
    with pytest.raises(ConfigError, match='no connection "lab", or one to 127'):
        connect(read_submitting_kit(kits / "alice"), "lab")
    assert [path.name for path in home.iterdir()] == ["config.toml"]
    connect(read_submitting_kit(kits / "alice"), "alice")
    before = {path: path.read_bytes() for path in home.iterdir()}
    for name, connection, says in [
        ("bob", "bob", 'no other connection to 127.0.0.1:9096, as Flower has one token .*got "alice"'),
        ("bob", "default", "another name than 'default'"),
    ]:
        with pytest.raises(ConfigError, match=says):
            connect(read_submitting_kit(kits / name), connection)
    assert {path: path.read_bytes() for path in home.iterdir()} == before


@pytest.mark.parametrize("text", ["[superlink", 'superlink = "x"\n', "superlink = {a = 1}\n"])
def test_a_configuration_that_cannot_be_added_to_is_left_alone(kits: Path, home: Path, text: str) -> None:
    home.mkdir()
    (home / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"Add it yourself:\n\[superlink\.alice\]\naddress = "):
        connect(read_submitting_kit(kits / "alice"), "alice")
    assert [(path.name, path.read_text()) for path in home.iterdir()] == [("config.toml", text)]


def test_a_link_that_takes_no_commands_says_which_key_is_missing(tmp_path: Path, home: Path) -> None:
    provision(tmp_path / "kits", "127.0.0.1:9092", ["ward-1"])
    with pytest.raises(ConfigError, match='key "submit": expected HOST:PORT'):
        connect(read_submitting_kit(tmp_path / "kits" / "link"), "link")
    assert not home.exists()
