"""The gate at the SuperLink's HTTP port: the Control API requires a proof of the kit's secret.

Flower's Control API has no authentication of its own: anyone who reaches the port could start runs with the
rights of the link's account and turn nodes out for good. The Runtime API has, by a task's token or the
SuperExec secret, so its calls pass; everything else but the health check needs the proof, whatever Flower
serves there, and then only the calls that a link makes pass. Flower's own commands and submitters come to
another port, server_app/deploy/link/submit_port.py. Flower's HTTP Fleet API (1.40 and later) is closed: the
limits on nodes and the delivery of messages are those of the gRPC one, and fleet_relay.py leads nodes over
HTTP to that.
"""

import hmac

from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server_app.deploy.flower.runtime_api import RuntimeCalls
from server_app.deploy.kits.kit import proof
from task.errors import ConfigError
from task.flower.services import CONTROL

RUNTIME, FLEET, HEALTH = "/v1/runtime/", "/v1/fleet/", "/health"
REFUSED = (
    "expected a proof of the secret of the link's kit (superexec.secret); got none, or another's. "
    "Use `bouquet run --link KIT` and `bouquet status KIT`, as the user that owns the kit; for Flower's own "
    "commands set the key submit in the link's kit.toml and run `bouquet connect KIT`"
)
LINK_CALLS = (
    "ListNodes", "RegisterNode", "UnregisterNode", "StartRun", "ListRuns", "StopRun", "StreamLogs"
)  # fmt: skip
NOT_LINKS = f"expected one of the calls that a link makes, {', '.join(LINK_CALLS)}; got another"
NO_FLEET = "this is not an address for nodes: use fleet or fleet-http of the link's kit.toml"
# Layers that come with these inspect the calls of their own API only. Each costs a call of the Runtime API
# about a millisecond, and a round has dozens of calls.
OTHERS = ("flwr.superlink.routers.control.", "flwr.superlink.routers.fleet.")


class Gate:
    """Flower's HTTP application behind the check of the secret.

    Args:
        app: The application.
        calls: Serves some calls of the Runtime API in the application's place, with the same proofs.

    Raises:
        ConfigError: The application has no secret.
    """

    def __init__(self, app: FastAPI, calls: RuntimeCalls | None = None) -> None:
        secret = getattr(app.state, "superexec_auth_secret", None)
        if not isinstance(secret, bytes) or not secret:
            raise ConfigError("expected --isolation process and --superexec-auth-secret-file FILE; got none")
        self._app, self._runtime, self._calls = app, runtime_stack(app), calls
        self._link_calls = frozenset(map(CONTROL.http_path, LINK_CALLS))
        self._header = f"Bearer {proof(secret)}".encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call, or refuse it."""
        way: ASGIApp = PlainTextResponse(REFUSED, 401, {"WWW-Authenticate": "Bearer"})
        if scope["type"] == "lifespan":
            way = self._app
        elif self._calls and scope["path"] in self._calls.paths and scope["method"] == "POST":
            way = self._calls
        elif scope["path"].startswith(RUNTIME):
            scope["app"] = self._app
            way = self._runtime
        elif scope["path"].startswith(FLEET):
            way = PlainTextResponse(NO_FLEET, 404)
        elif scope["path"] == HEALTH:
            way = self._app
        elif self._proves(scope):
            allowed = scope["path"] in self._link_calls
            way = self._app if allowed else PlainTextResponse(NOT_LINKS, 403)
        await way(scope, receive, send)

    def _proves(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(found) == 1 and hmac.compare_digest(found[0], self._header)


def runtime_stack(app: FastAPI) -> ASGIApp:
    """Return the application without the layers of other APIs; one that is not known to be theirs stays."""
    layers = app.user_middleware
    app.user_middleware = [layer for layer in layers if not _is_of_others(layer.cls)]
    try:
        return app.build_middleware_stack()
    finally:
        app.user_middleware = layers


def _is_of_others(layer: object) -> bool:
    return str(getattr(layer, "__module__", "")).startswith(OTHERS)
