"""Lets Flower's own commands reach a link: a connection in Flower's configuration, and the token for it.

``flwr`` shows a token to a server that it has logged in to: it takes one by the server's address from
``credentials.yaml``, which only its user can read. ``flwr login`` writes it there; here the token is that of
a kit. The connection, in ``config.toml``, has the address and the certificate of the link's authority.
"""

import json
import os
import re
import tomllib
from pathlib import Path

from flwr.cli.flower_config import init_flwr_config
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore

from server_app.deploy.calls.protocol import ACCESS_TOKEN_KEY, LOGIN_KIND_KEY, REFRESH_TOKEN_KEY
from server_app.deploy.kits.kit import CONFIG, LinkKit, SubmitterKit
from task.errors import ConfigError
from task.storage.files import FILE, write_text

SUPERLINK, DEFAULT = "superlink", "default"  # the table of connections, and the key that chooses one
LOGGED_IN = {LOGIN_KIND_KEY: "oidc", REFRESH_TOKEN_KEY: "none"}  # and ACCESS_TOKEN_KEY
ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def connect(kit: LinkKit | SubmitterKit, name: str) -> Path:
    """Write a connection to a link, and its token, into Flower's home; return the configuration's file.

    What is there stays: a connection of this name may be there only if it is equal, and none of another name
    to this address, for which Flower has one token.

    Raises:
        ConfigError: There is such another connection, the file cannot be read, or the link takes no such
            calls.
    """
    if name == DEFAULT:
        raise ConfigError(f"--name: expected another name than {DEFAULT!r}, which Flower has a use for")
    address = _address(kit)
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    init_flwr_config()  # its own connections, where there is no configuration yet
    config = (home / "config.toml").resolve()
    wanted = {"address": address, "root-certificates": str(kit.ca_certificate)}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in wanted.items()]
    quoted = name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
    added = "\n".join([f"[{SUPERLINK}.{quoted}]", *lines, ""])
    try:
        text = config.read_text(encoding="utf-8")
        known = tomllib.loads(text).get(SUPERLINK, {})
        others = [
            k for k, v in known.items() if k != name and isinstance(v, dict) and v.get("address") == address
        ]
        if name not in known and not others:
            text = f"{text.rstrip()}\n\n{added}"
            known = tomllib.loads(text)[SUPERLINK]
            write_text(config, text)
    except (OSError, ValueError, AttributeError) as err:
        raise ConfigError(
            f"{config}: expected Flower's configuration, to which a connection can be added; got "
            f"{type(err).__name__}: {err}. Add it yourself:\n{added}"
        ) from None
    if others:
        raise ConfigError(
            f"{config}: expected no other connection to {address}, as Flower has one token for each address; "
            f'got "{others[0]}". Use that one or delete it, or set FLWR_HOME to another folder'
        )
    if known[name] != wanted:
        raise ConfigError(
            f'{config}: expected no connection "{name}", or one to {address}; got another: {known[name]}. '
            "Choose another --name, or delete that one"
        )
    credentials = home / "credentials.yaml"
    store = FileCredentialStore(credentials)
    for key, value in (LOGGED_IN | {ACCESS_TOKEN_KEY: kit.token}).items():
        store.set(key % address, value.encode("ascii"))
    credentials.chmod(FILE)
    return config


def _address(kit: LinkKit | SubmitterKit) -> str:
    """Return where the kit's owner reaches the link."""
    if isinstance(kit, SubmitterKit):
        return kit.link
    if not kit.submit:
        raise ConfigError(
            f'{kit.path / CONFIG}: key "submit": expected HOST:PORT, where the link takes the calls of '
            'Flower\'s commands, such as "127.0.0.1:9096"; got none. Add it at the top, and restart the link'
        )
    host, _, port = kit.submit.rpartition(":")
    return f"{ANY.get(host, host)}:{port}"
