"""A local web page about runs and nodes: ``bouquet monitor KIT-or-RUNS-DIR``.

One process, built on the standard library, that reads files and changes nothing. It has no accounts, so it
listens on loopback by default. (Flower 1.39 brings uvicorn and starlette, but pins them to one minor version
and may drop them; a few read-only routes need neither.)

Pages: ``/`` the runs, ``/runs/NAME`` one run, ``/nodes`` the nodes; made of the files in ``static/``.
``/metrics`` is for Prometheus (`server_app.extras.monitor.metrics`).
No page holds data. The script asks for JSON every 2 s, which `server_app.extras.monitor.data` makes:

::

  /api/runs                 folder, kit, now, problems, state, warnings, count,
                            runs: [name, state, algorithm, dataset, model, round, of, accuracy,
                            measured_on, started, updated, job: [state, attempts, reason, nodes, waits],
                            problems]
  /api/runs/NAME            folder, kit, now, problems, state, warnings, run: as above, config: no secrets
  /api/runs/NAME/rounds?after=N&mark=M
                            rounds: the new ones; after, mark: for the next request; restarted: the file was
                            cut or replaced, so forget the earlier rounds; more: ask again at once; problems
  /api/runs/NAME/clients    clients: [name, accuracy, loss, train_loss, examples, round, trained], count,
                            left_out, more: still being read, problems
  /api/runs/NAME/plots?accuracy=W&...
                            plots: [name, note, drawing], drawn W pixels wide: a tree of SVG elements, each
                            [tag, attributes, inside ...], or null; more
  /api/nodes                folder, kit, now, problems, there, written, old, state, address, warnings,
                            nodes: [name, online, last_seen, clients, examples, app_version, app_code,
                            flower_version, problem], app_version, app_code, flower_version of the link,
                            processes: [name, running, pid, restarts, uptime_s]

The link's state is "green", "yellow" (it works, but without some nodes or clients), "red", or "" in a folder
without a link; the warnings say why. Times are seconds since 1970, except "started" (ISO 8601); null means
not measured. An error is ``{"error": "..."}``, with status 400 (no Host, bad number), 404 (no such run), 405
(not GET or HEAD) or 421.

A request must name the machine by an address, ``localhost``, the machine's own name or the given host: a
web page elsewhere whose host name points here (DNS rebinding) gets 421 and nothing else.
"""

import contextlib
import errno
import ipaddress
import socket
import sys
import threading
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from server_app.extras.monitor.data import GoneError, Watched
from server_app.extras.monitor.metrics import CONTENT_TYPE, metrics
from server_app.results.folder import to_json
from server_app.results.svg import STYLE
from task import timing
from task.errors import ConfigError

MOST_CONNECTIONS = 64

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
JSON = "application/json"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
STATIC = {
    file.name: (TYPES[Path(file.name).suffix], file.read_bytes())
    for file in resources.files(__package__).joinpath("static").iterdir()
}
PAGE = STATIC.pop("index.html")
STATIC["plots.css"] = TYPES[".css"], STYLE.encode()  # the report has it too


class Monitor(ThreadingHTTPServer):
    """The server; `server_address` has the port.

    Port 0 is any free one.

    Raises:
        ConfigError: The port is in use, or the address is not this machine's.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, watched: Watched, host: str, port: int) -> None:
        self.watched = watched
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as err:
            in_use = isinstance(err, OSError) and err.errno == errno.EADDRINUSE
            advice = "another program listens there; choose another --port" if in_use else f"{err}"
            raise ConfigError(f"monitor: cannot listen on --host {host} --port {port}: {advice}") from None

    def server_bind(self) -> None:
        """Bind, without the look-up of the machine's name that the standard library adds."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, or close it if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnected; anything else is a bug in the monitor."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: Monitor
    protocol_version = "HTTP/1.1"
    server_version = "bouquet"
    sys_version = ""
    timeout = timing.MONITOR_SILENT_S

    def do_GET(self) -> None:
        """Answer a request."""
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is no request of its own
        if not _names_us(self.headers.get_all("Host") or [], self.server.names):
            missing = "Host" not in self.headers
            self.send_error(400 if missing else 421, "expected the name or address of this machine as Host")
            return
        try:
            status, kind, body = self._route()
        except GoneError:
            status, kind, body = 404, JSON, to_json({"error": "there is no such run, or it was deleted"})
        except ValueError as err:
            status, kind, body = 400, JSON, to_json({"error": str(err)})
        except Exception:  # one page's, printed with its traceback: the others are served
            traceback.print_exc()
            status, kind, body = 500, JSON, to_json({"error": "the monitor failed: see its terminal"})
        self._send(status, kind, body)

    def do_HEAD(self) -> None:
        """Answer like GET, without the body."""
        self.do_GET()

    def _route(self) -> tuple[int, str, bytes]:
        parts = urlsplit(self.path)
        # Split first: an escaped slash belongs to a name, and no name holds one.
        steps = [unquote(step) for step in parts.path.split("/")[1:]]
        watched, query = self.server.watched, parse_qs(parts.query)
        match steps:
            case [""] | ["nodes"]:
                return (200, *PAGE)
            case ["runs", name]:
                return (200 if watched.has(name) else 404, *PAGE)
            case ["metrics"]:
                return 200, CONTENT_TYPE, metrics(watched)
            case [name] if name in STATIC:
                return (200, *STATIC[name])
            case ["api", "runs"]:
                found = watched.runs()
            case ["api", "runs", name]:
                found = watched.run(name)
            case ["api", "runs", name, "rounds"]:
                after, mark = query.get("after", ["0"])[-1], query.get("mark", [""])[-1]
                found = watched.rounds(name, _whole("after", after), mark)
            case ["api", "runs", name, "clients"]:
                found = watched.clients(name)
            case ["api", "runs", name, "plots"]:
                widths = {plot: _whole(plot, values[-1]) for plot, values in query.items()}
                found = watched.plots(name, widths)
            case ["api", "nodes"]:
                found = watched.nodes()
            case _:
                return 404, JSON, to_json({"error": "there is no such page"})
        return 200, JSON, to_json(found)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error, in the same JSON shape as all others."""
        # The standard library calls a method that the handler lacks "not implemented".
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == 501 else HTTPStatus(code)
        self.close_connection = True
        self._send(
            status, JSON, to_json({"error": status.phrase if code == 501 else message or status.phrase})
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Print no line per request: a page asks every two seconds."""


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"{name}: expected a whole number")
    return int(text)


def _names_us(hosts: list[str], names: set[str]) -> bool:
    """Return whether the Host header names this machine; an address cannot be rebound."""
    if len(hosts) != 1:
        return False
    try:
        host = urlsplit(f"//{hosts[0]}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".") in names
    return True


def serve(path: Path, host: str, port: int) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        ConfigError: See `Watched` and `Monitor`.
    """
    with contextlib.suppress(KeyboardInterrupt), Monitor(Watched(path), host, port) as monitor:
        where = f"[{host}]" if ":" in host else host
        if not _is_loopback(str(monitor.server_address[0])):
            print(
                f"warning: --host {host} lets anyone who can reach this machine read the page: it has no "
                "password and no encryption. Prefer 127.0.0.1 and `ssh -L`.",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        print(f"monitor of {path}: http://{where}:{monitor.server_port}/ (Ctrl-C ends it)", flush=True)
        monitor.serve_forever()
    print("monitor stopped", file=sys.stderr)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
