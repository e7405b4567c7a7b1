"""The HTTP port of the SuperLink: only who proves the kit's secret reaches the Control API.

Flower's Control API has no authentication of its own: whoever reaches the port could start runs with the
rights of the link's account and turn nodes out for good. The Runtime API has, by a task's token or the
SuperExec secret, so its calls pass; everything else but the health check needs the proof, whatever Flower
serves there.
"""

from __future__ import annotations

import hmac
from typing import Any

from fastapi import FastAPI
from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.control.middlewares import (
    ControlAuthenticationMiddleware,
    ControlEventLogMiddleware,
    ControlLicenseMiddleware,
    ControlSensitiveResponseMiddleware,
)
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server_app.deploy.flower.runtime_api import RuntimeCalls
from server_app.deploy.kits.kit import proof
from task.errors import ConfigError

RUNTIME, HEALTH = "/v1/runtime/", "/health"
REFUSED = (
    "expected a proof of the secret of the link's kit (superexec.secret); got none, or another's. "
    "Use `bouquet run --link KIT` and `bouquet status KIT`, as the user that owns the kit"
)
# Flower's layers, the outermost first, and whether a call of the Runtime API needs them. Each costs a call,
# of which a round has dozens, about a millisecond.
LAYERS: dict[Any, bool] = {
    ControlSensitiveResponseMiddleware: False,
    BaseHTTPMiddleware: True,  # `http_error_translator`
    ControlAuthenticationMiddleware: False,
    ControlLicenseMiddleware: False,
    ProtobufTranslationMiddleware: True,
    ControlEventLogMiddleware: False,
}


class Gate:
    """Flower's HTTP application behind the check of the secret.

    Args:
        app: The application.
        calls: Serves some calls of the Runtime API in the application's place, with the same proofs.

    Raises:
        ConfigError: The application has other layers than those that are known, or no secret.
    """

    def __init__(self, app: FastAPI, calls: RuntimeCalls | None = None) -> None:
        secret = getattr(app.state, "superexec_auth_secret", None)
        if not isinstance(secret, bytes) or not secret:
            raise ConfigError("expected --isolation process and --superexec-auth-secret-file FILE; got none")
        self._app, self._runtime, self._calls = app, runtime_stack(app), calls
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
        elif scope["path"] == HEALTH or self._proves(scope):
            way = self._app
        await way(scope, receive, send)

    def _proves(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(found) == 1 and hmac.compare_digest(found[0], self._header)


def runtime_stack(app: FastAPI) -> ASGIApp:
    """Return the application without the layers that are for the Control API only.

    Raises:
        ConfigError: It has other layers than those that are known: which a call needs is not for us to guess.
    """
    layers = app.user_middleware
    names: list[Any] = [layer.cls for layer in layers]
    translators = [
        layer.kwargs for name, layer in zip(names, layers, strict=True) if name is BaseHTTPMiddleware
    ]
    if names != list(LAYERS) or translators != [{"dispatch": http_error_translator}]:
        expected, got = (", ".join(getattr(n, "__name__", repr(n)) for n in x) for x in (LAYERS, names))
        raise ConfigError(
            f"this version of flwr cannot serve a federation: expected the HTTP layers {expected}; "
            f"got {got}. Install the version that Bouquet names: pip install 'flwr>=1.39,<1.40'"
        )
    app.user_middleware = [layer for layer in layers if LAYERS[layer.cls]]
    try:
        return app.build_middleware_stack()
    finally:
        app.user_middleware = layers
