"""Lets Flower's own commands reach a link: a connection in Flower's configuration, and the token for it.

``flwr`` shows a token to a server that it has logged in to: it takes one by the server's address from
``credentials.yaml``, which only its user can read. ``flwr login`` writes it there; here the token is that of
a kit. The connection, in ``config.toml``, has the address and the certificate of the link's authority.
"""

import json
import tomllib
from pathlib import Path

from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.cli.flower_config import init_flwr_config
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.supercore.utils import get_flwr_home

from server_app.deploy.kits.kit import CONFIG, LinkKit, SubmitterKit
from task.errors import ConfigError
from task.storage.files import FILE, write_text

SUPERLINK = "superlink"  # the table of connections
LOGGED_IN = {AUTHN_TYPE_STORE_KEY: "oidc", REFRESH_TOKEN_STORE_KEY: "none"}  # and ACCESS_TOKEN_STORE_KEY
ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def connect(kit: LinkKit | SubmitterKit, name: str) -> Path:
    """Write a connection to a link, and its token, into Flower's home; return the configuration's file.

    What is there stays. A connection of this name may be there only if it is equal.

    Raises:
        ConfigError: There is another connection of this name, the file cannot be read, or the link takes no
            such calls.
    """
    address = _address(kit)
    home = get_flwr_home()
    init_flwr_config()  # its own connections, where there is no configuration yet
    config = (home / "config.toml").resolve()
    wanted = {"address": address, "root-certificates": str(kit.ca_certificate)}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in wanted.items()]
    added = "\n".join([f"[{SUPERLINK}.{json.dumps(name)}]", *lines, ""])
    try:
        text = config.read_text(encoding="utf-8")
        known = tomllib.loads(text).get(SUPERLINK, {})
        if name not in known:
            text = f"{text.rstrip()}\n\n{added}"
            known = tomllib.loads(text)[SUPERLINK]
            write_text(config, text)
    except (OSError, ValueError, AttributeError) as err:
        raise ConfigError(
            f"{config}: expected Flower's configuration, to which a connection can be added; got "
            f"{type(err).__name__}: {err}. Add it yourself:\n{added}"
        ) from None
    if known[name] != wanted:
        raise ConfigError(
            f'{config}: expected no connection "{name}", or one to {address}; got another: {known[name]}. '
            "Choose another --name, or delete that one"
        )
    credentials = home / "credentials.yaml"
    store = FileCredentialStore(credentials)
    for key, value in (LOGGED_IN | {ACCESS_TOKEN_STORE_KEY: kit.token}).items():
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
