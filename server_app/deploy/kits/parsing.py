"""Names, addresses, sizes and tables, as kits and commands have them."""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from task.errors import ConfigError, choose_from

RESERVED = ("ca", "link", "revoked", "provision.json")  # other names in the folder of kits
UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def check_name(name: str, where: str = "name of a node") -> None:
    """Refuse what cannot be the name of a node or a submitter.

    An error begins with `where`.

    Raises:
        ConfigError: It is not one path component of at most 64 letters, digits, ``.``, ``_`` and ``-``, with
            a letter or digit at both ends, or another folder has it.
    """
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", name):
        raise ConfigError(
            f"{where}: expected 1 to 64 letters (a-z), digits, '.', '_' and '-', a letter or digit at "
            f"both ends; got {name!r}"
        )
    if name.lower() in RESERVED:
        raise ConfigError(f"{where}: expected none of {', '.join(RESERVED)}; got {name!r}")


def read_address(text: object, where: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[IPV6]:PORT``; the host in lower case, without brackets.

    An error begins with `where`.

    Raises:
        ConfigError: It is no address.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", str(text))
    host = (match[1] or match[2]).lower() if match else ""
    if not match or not 1 <= int(match[3]) <= 65535 or not _is_host(host, bracketed=bool(match[1])):
        raise ConfigError(
            f"{where}: expected HOST:PORT, HOST a name, an IPv4 address or an IPv6 address in brackets, "
            f"PORT from 1 to 65535; got {text!r}"
        )
    return host, int(match[3])


def read_size(text: object, where: str) -> int:
    """Return the bytes of a size such as ``512M``; K, M and G are powers of 1024.

    Raises:
        ConfigError: It is no size, or zero.
    """
    match = re.fullmatch(r"([0-9]+)([KMG]?)", str(text).upper())
    if isinstance(text, bool) or not match or int(match[1]) == 0:
        raise ConfigError(
            f'{where}: expected a size such as "64M" (K, M, G are powers of 1024); got {text!r}'
        )
    return int(match[1]) * UNITS[match[2]]


def is_private(host: str) -> bool:
    """Return whether a host, a name or an address, is loopback or an address of a private network."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_global or address.is_unspecified or address.is_multicast)


def read_table(
    config: Path,
    table: Mapping[str, Any],
    types: Mapping[str, Any],
    optional: Mapping[str, Any],
    prefix: str = "",
) -> dict[str, Any]:
    """Return the values of a TOML table's keys.

    `types` has a value of its type for each allowed key, `optional` the defaults of those that may be left
    out; errors have `prefix`, such as ``policy.``, before a key.

    Raises:
        ConfigError: A key is unknown or missing, or its value has another type.
    """
    where = f"the table [{prefix.rstrip('.')}]" if prefix else "the top table"
    for key in table:
        if key not in types:
            raise ConfigError(choose_from(f"{config}: unknown key, in {where}", key, types))
    values = {**optional, **table}
    for key, example in types.items():
        if type(example) is float and type(values.get(key)) is int:
            values[key] = float(values[key])
    for key, example in types.items():
        want = {
            str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table",
            list: "a list",
        }[type(example)]  # fmt: skip
        if key not in values:
            raise ConfigError(f'{config}: key "{prefix}{key}": expected {want}; got none')
        if type(values[key]) is not type(example):
            raise ConfigError(f'{config}: key "{prefix}{key}": expected {want}; got {values[key]!r}')
    return values


def _is_host(host: str, *, bracketed: bool) -> bool:
    if bracketed or re.fullmatch(r"[0-9.]+", host):
        try:
            return ipaddress.ip_address(host).version == (6 if bracketed else 4)
        except ValueError:
            return False
    return len(host) <= 253 and all(
        re.fullmatch(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", part) for part in host.split(".")
    )
