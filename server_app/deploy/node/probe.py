"""Diagnose why a SuperLink cannot be reached: connections and TLS handshakes in a separate thread.

It connects as gRPC does, through the proxy that the environment names; the proxy is then part of the
diagnosis. gRPC and Flower retry without saying why.
"""

import socket
import ssl
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from server_app.deploy.host.proxy import Proxy
from server_app.deploy.kits.certificates import Finding, ends_when
from task import timing

SILENT = "timeout: nothing answers. Is the address right, and does a firewall let it pass?"
ALPN = {"grpc": "h2", "http": "http/1.1"}  # the protocol that is offered in the handshake
OTHER_TRANSPORT = {
    "grpc": "this port speaks HTTP, and the node gRPC. Start the node with --http, or give the port of the "
    'link\'s key "fleet".',
    "http": "this port speaks gRPC, and the node HTTP. Start the node without --http, or give the port of "
    'the link\'s key "fleet-http".',
}
PROXY_BYTES = 64 * 1024  # of its answer
EXPIRED, TOO_EARLY, WRONG_NAME, WRONG_ADDRESS = 10, 9, 62, 64  # of OpenSSL


@dataclass(frozen=True)
class Found:
    """The result of a probe.

    Attributes:
        answers: Whether the port answers at all.
        trouble: Why no TLS connection came about, "" if one did.
        findings: What is to be said of the SuperLink's certificate.
    """

    answers: bool
    trouble: str = ""
    findings: tuple[Finding, ...] = ()


class Probe:
    """Checks a SuperLink's port.

    Args:
        address: Host and port.
        authority: Certificate file of the authority that must vouch for it.
        transport: What the node speaks, "grpc" or "http".
        proxy: On the way to it; None = there is none.
    """

    def __init__(
        self, address: tuple[str, int], authority: Path, transport: str = "grpc", proxy: Proxy | None = None
    ) -> None:
        self.address, self.authority, self.transport, self.proxy = address, authority, transport, proxy
        self._found: Found | None = None
        self._began = 0.0
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Start a probe, unless one is running."""
        if self._thread is None or not self._thread.is_alive():
            self._began = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="probe", daemon=True)
            self._thread.start()

    @property
    def found(self) -> Found | None:
        """The last probe's result; None while the first is running."""
        looking = self._thread is not None and self._thread.is_alive()
        if looking and time.monotonic() - self._began > timing.PROBE_SLOW_S:
            return Found(False, f"{_through(self.proxy, self.address[0])}{SILENT}")
        return self._found

    def _look(self) -> None:
        self._found = look(self.address, self.authority, self.transport, self.proxy)


def look(
    address: tuple[str, int], authority: Path, transport: str = "grpc", proxy: Proxy | None = None
) -> Found:
    """Connect to a SuperLink once, perhaps through a proxy, and say what is wrong with that."""
    if proxy is None:
        return _look(address, authority, transport)
    found = _look_through(proxy, address, authority)
    return replace(found, trouble=_through(proxy, address[0]) + found.trouble) if found.trouble else found


def _through(proxy: Proxy | None, host: str) -> str:
    return f"through the proxy {proxy} of the environment ({proxy.way_out(host)}): " if proxy else ""


def _look_through(proxy: Proxy, address: tuple[str, int], authority: Path) -> Found:
    try:
        plain = socket.create_connection((proxy.host, proxy.port), timeout=timing.PROBE_S)
    except OSError as err:
        why = err.strerror or str(err) or "timeout"
        return Found(False, f"the proxy cannot be reached: {why.lower()}.")
    with plain:
        said = b""
        try:
            plain.sendall(proxy.connect(*address))
            while b"\r\n\r\n" not in said and len(said) < PROXY_BYTES and (more := plain.recv(1)):
                said += more
        except OSError as err:
            return Found(False, f"the proxy does not answer: {(err.strerror or str(err)).lower()}.")
        line = said.partition(b"\r\n")[0].decode("latin-1")
        if line.split()[1:2] != ["200"]:
            return Found(False, f"the proxy refuses: {line[:100] or 'no answer'}.")
        return _shake_hands(plain, address, authority)


def _look(address: tuple[str, int], authority: Path, transport: str) -> Found:
    """Connect without a proxy."""
    host = address[0]
    try:
        plain = socket.create_connection(address, timeout=timing.PROBE_S)
    except socket.gaierror as err:
        return Found(False, f'no such host: the name "{host}" cannot be resolved: {err.strerror}.')
    except TimeoutError:
        return Found(False, SILENT)
    except ConnectionRefusedError:
        return Found(False, "connection refused. Is the link running, or still starting? Is the port right?")
    except OSError as err:
        return Found(
            False, f"{(err.strerror or str(err)).lower()}. Is the address right, and the network up?"
        )
    with plain:
        return _shake_hands(plain, address, authority, transport)


def _shake_hands(
    plain: socket.socket, address: tuple[str, int], authority: Path, transport: str = ""
) -> Found:
    """Speak TLS over a connection; with a `transport`, find out whether the port speaks it."""
    try:
        with _tls(plain, address, authority, ALPN[transport or "grpc"]) as tls:
            certificate = ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"")
            findings = ends_when("the link's certificate", certificate.encode())
            agreed = tls.selected_alpn_protocol()
        if (
            transport and agreed is None
        ):  # a gRPC server knows no protocol but its own, and one of HTTP need not name its
            again = socket.create_connection(address, timeout=timing.PROBE_S)
            with again, _tls(again, address, authority, ALPN["grpc"]) as tls:
                speaks = "grpc" if tls.selected_alpn_protocol() else "http"
            if speaks != transport:
                return Found(True, OTHER_TRANSPORT[transport], findings)
        return Found(True, "", findings)
    except ssl.SSLCertVerificationError as err:
        why = _unverified(err, address, authority)
    except TimeoutError:
        why = "timeout: the program that listens there does not answer. Is it a link?"
    except ssl.SSLError as err:
        why = f"the program that listens there does not speak TLS ({err.reason or err}). Is the port right?"
    except OSError as err:
        why = f"{(err.strerror or str(err)).lower()}. Is it a link?"
    return Found(True, f"TLS handshake failed: {why}")


def _tls(plain: socket.socket, address: tuple[str, int], authority: Path, protocol: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols([protocol])
    return context.wrap_socket(plain, server_hostname=address[0])


def _unverified(err: ssl.SSLCertVerificationError, address: tuple[str, int], authority: Path) -> str:
    """Return why a certificate is invalid."""
    whose, cure = "the link's certificate", "ask the operator of the link to run bouquet provision --renew"
    if err.verify_code == EXPIRED:
        try:
            served = ends_when(whose, ssl.get_server_certificate(address, timeout=timing.PROBE_S).encode())
        except OSError:
            served = ()
        ended = [finding.text for finding in served if finding.fatal]
        return f"{ended[0] if ended else f'{whose}, or {authority}, has expired'}: {cure}."
    if err.verify_code == TOO_EARLY:
        clock = time.strftime("%Y-%m-%d %H:%M")
        return f"{whose} is not valid yet by this machine's clock, {clock}. Set it right."
    if err.verify_code in (WRONG_NAME, WRONG_ADDRESS):
        return f"{whose} is not for {address[0]}: use the address that it was issued for."
    return f"{authority} did not sign {whose} ({err.verify_message}). Is this kit of this federation?"
