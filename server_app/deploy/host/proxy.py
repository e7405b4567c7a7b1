"""The HTTP proxy that the environment gives to gRPC, by gRPC's own rules.

Only names in lower case count. The first of `VARIABLES` that is set names the proxy, even if it is empty, and
only ``http://HOST:PORT`` does. ``no_grpc_proxy``, or else ``no_proxy``, lists the hosts that are reached
without it: names with all that ends in them, addresses and networks, but no wildcards.
"""

import ipaddress
import os
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT = 80  # of a proxy that names none


@dataclass(frozen=True)
class Proxy:
    """A proxy, and who named it."""

    variable: str  # of the environment
    host: str
    port: int
    login: str = ""  # user and password, as HTTP's basic authentication has them

    def __str__(self) -> str:
        """Return the variable and its value, without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.variable}=http://{'***@' if self.login else ''}{host}:{self.port}"

    def way_out(self, host: str) -> str:
        """Return how to reach a host without it."""
        name = "no_grpc_proxy" if "no_grpc_proxy" in os.environ else "no_proxy"
        upper = ", in lower case" if "NO_PROXY" in os.environ else ""
        way = f"set {name}={host}{upper}, or unset {self.variable}"
        return f"if this machine reaches {host} without it, {way}"

    def connect(self, host: str, port: int) -> bytes:
        """Return the request for a connection to a host."""
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        login = f"Proxy-Authorization: Basic {self.login}\r\n" if self.login else ""
        return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n".encode("latin-1", "replace")


def proxy_for(host: str, environment: Mapping[str, str] | None = None) -> Proxy | None:
    """Return the proxy through which gRPC connects to a host; None if it connects directly."""
    env = os.environ if environment is None else environment
    name = next((name for name in VARIABLES if name in env), "")
    try:
        url = urlsplit(env.get(name, ""))
        port = url.port or PORT
    except ValueError:
        return None
    if url.scheme != "http" or not url.hostname:
        return None
    exempt = next((env[name] for name in EXCEPTIONS if name in env), "")
    if any(_covers(entry.strip(), host) for entry in exempt.split(",")):
        return None
    login = (
        f"{unquote(url.username or '')}:{unquote(url.password or '')}" if url.username or url.password else ""
    )
    return Proxy(name, url.hostname, port, b64encode(login.encode()).decode("ascii"))


def _covers(entry: str, host: str) -> bool:
    """Return whether an entry of the exceptions covers a host."""
    if not entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        name, entry = host.lower(), entry.lower().removeprefix(".")
        return name == entry or name.endswith(f".{entry}")


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to an environment so that calls of this machine to itself use no proxy."""
    names = ["NO_PROXY", "no_proxy", *(name for name in ("no_grpc_proxy",) if name in environment)]
    given = {name: [part for part in environment.get(name, "").split(",") if part] for name in names}
    return {name: ",".join([*parts, *LOOPBACK]) for name, parts in given.items()}
