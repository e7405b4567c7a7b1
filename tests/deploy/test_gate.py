"""The SuperLink's HTTP port: Flower's own application behind the check of the kit's secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flwr.proto.control_pb2 import DESCRIPTOR, ListRunsRequest
from flwr.superlink.main import create_app
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from server_app.deploy.calls import control as module
from server_app.deploy.calls.control import Control
from server_app.deploy.calls.control_calls import LinkError
from server_app.deploy.flower import gate
from server_app.deploy.flower.gate import FLEET, LINK_CALLS, Gate
from server_app.deploy.kits.kit import LinkKit, proof, read_link_kit
from server_app.deploy.kits.provision import provision
from task.errors import ConfigError
from task.flower.services import CONTROL
from tests.support.asgi import Caller

# Flower's layers, the outermost first, and whether the Runtime API keeps them. A version with another is not
# supported until somebody has read what the new layer does.
LAYERS = {
    "ControlSensitiveResponseMiddleware": False,
    "BaseHTTPMiddleware": True,
    "ControlAuthenticationMiddleware": False,
    "ControlLicenseMiddleware": False,
    "ProtobufTranslationMiddleware": True,
    "RuntimeTracingMiddleware": True,  # 1.40 and 1.41
    "ControlEventLogMiddleware": False,
    "NodeAuthMiddleware": False,  # from 1.40 on
    "FleetEventLogMiddleware": False,  # from 1.40 on
}

SECRET = b"s" * 48
PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}
GOOD = {"Authorization": f"Bearer {proof(SECRET)}"}
WRONG = [
    {},
    {"Authorization": f"Bearer {proof(b'another')}"},
    {"Authorization": f"bearer {proof(SECRET)}"},
    {"Authorization": proof(SECRET)},
    {"Authorization": f"Bearer {SECRET.decode()}"},
    {"Authorization": "Bearer "},
    {"Authorization": b"Bearer \xff\xfe"},
]
LIST_RUNS = "/v1/control/list-runs"


@pytest.fixture
def app() -> FastAPI:
    """Flower's application with a state in memory."""
    made = create_app()
    made.state.superexec_auth_secret = SECRET
    return made


@pytest.fixture
def client(app: FastAPI) -> Caller:
    return Caller(Gate(app))


def routes(app: FastAPI) -> list[str]:
    """Return the paths of all operations, as Flower's own description of them has it."""
    return sorted(app.openapi()["paths"])


def test_every_call_but_the_runtime_apis_and_the_health_check_needs_the_proof(
    app: FastAPI, client: Caller
) -> None:
    paths = [*routes(app), "/docs", "/openapi.json", "/nothing", "//health", "/v1/runtimes", "//v1/runtime/x"]
    (service,) = DESCRIPTOR.services_by_name.values()
    assert sum(path.startswith("/v1/control/") for path in paths) >= len(service.methods)
    for path in paths:
        if path == "/health" or path.startswith(("/v1/runtime/", FLEET)):
            continue
        for headers in WRONG:
            answer = client.post(path, headers={**PROTOBUF, **headers})
            assert answer.status_code == 401, (path, headers, answer.text)
            assert "superexec.secret" in answer.text
    assert client.get("/health").status_code == 200
    twice = [*GOOD.items(), *GOOD.items()]
    assert client.post(LIST_RUNS, headers=twice).status_code == 401


def test_nobody_reaches_a_fleet_api_over_http(app: FastAPI, client: Caller) -> None:
    paths = [path for path in routes(app) if path.startswith(FLEET)]
    assert len(paths) in (0, 12)  # none through 1.39
    for path in [*paths, f"{FLEET}pull-messages"]:
        for headers in ({}, GOOD):
            answer = client.post(path, headers=PROTOBUF | headers)
            assert (answer.status_code, "fleet-http" in answer.text) == (404, True), path


def test_with_the_proof_flower_answers(client: Caller) -> None:
    answer = client.post(LIST_RUNS, headers=PROTOBUF | GOOD, content=ListRunsRequest().SerializeToString())
    assert answer.status_code == 200, answer.text


def test_the_proof_opens_a_links_calls_and_no_others(app: FastAPI, client: Caller) -> None:
    """A link never asks Flower to download an app, to log in elsewhere or to invite an account."""
    named = {CONTROL.http_path(name) for name in CONTROL.calls}
    assert named <= set(routes(app))  # as Flower's own commands name them
    allowed = {CONTROL.http_path(name) for name in LINK_CALLS}
    for path in sorted({*named, *routes(app), "/docs", "/openapi.json"} - allowed):
        if not path.startswith(("/health", "/v1/runtime/", FLEET)):
            assert client.post(path, headers=PROTOBUF | GOOD).status_code == 403, path


def test_the_runtime_api_asks_for_its_own_proof(app: FastAPI, client: Caller) -> None:
    calls = [path for path in routes(app) if path.startswith("/v1/runtime/")]
    assert len(calls) > 15
    for path in calls:
        for headers in ({}, GOOD):
            answer = client.post(path, headers=PROTOBUF | headers, content=b"")
            assert answer.is_client_error, (path, answer.status_code, answer.text)


def test_layers_that_the_runtime_api_is_spared_do_nothing_with_its_calls(app: FastAPI) -> None:
    """An application without any of Flower's state: a layer that looked at the call would fail or refuse."""
    reached: list[Request] = []

    async def end(request: Request) -> Response:
        reached.append(request)
        return PlainTextResponse("as it is", headers={"x": "1"})

    spared = [layer.cls for layer in app.user_middleware if not LAYERS[layer.cls.__name__]]
    assert len(spared) in (4, 6)
    for layer in spared:
        inner = FastAPI(middleware=[Middleware(layer)])
        inner.add_route("/v1/runtime/pull-object", end, methods=["POST"])
        answer = Caller(inner).post("/v1/runtime/pull-object", content=b"x")
        assert (answer.text, answer.headers["x"]) == ("as it is", "1"), layer
        assert "cache-control" not in answer.headers
        assert not hasattr(reached[-1].state, "account")


class Another(BaseHTTPMiddleware):
    """A layer of which nothing is known."""


def test_the_runtime_stack_leaves_out_the_layers_of_other_apis_only(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [layer.cls.__name__ for layer in app.user_middleware]
    assert names == [name for name in LAYERS if name in names]
    app.user_middleware.append(Middleware(Another))
    known = {name: LAYERS[name] for name in names if name != "BaseHTTPMiddleware"}  # its `dispatch` is given
    known |= {"Another": True}
    went: list[str] = []
    for layer in (layer.cls for layer in app.user_middleware if layer.cls is not BaseHTTPMiddleware):

        def noted(self: Any, request: Any, call_next: Any, name: str = layer.__name__) -> Any:
            went.append(name)
            return call_next(request)

        monkeypatch.setattr(layer, "dispatch", noted)
    stacked = Caller(Gate(app))
    stacked.post("/v1/runtime/pull-object")
    assert went == [name for name, needed in known.items() if needed]
    went.clear()
    stacked.post(LIST_RUNS, headers=GOOD)
    assert went == list(known)


@pytest.mark.parametrize("secret", [None, b""])
def test_there_is_no_gate_without_a_secret(app: FastAPI, secret: bytes | None) -> None:
    app.state.superexec_auth_secret = secret
    with pytest.raises(ConfigError, match="superexec-auth-secret-file"):
        Gate(app)


@pytest.fixture
def kit(tmp_path: Path) -> LinkKit:
    provision(tmp_path / "kits", "127.0.0.1:9092", ["ward"])
    return read_link_kit(tmp_path / "kits" / "link")


def test_the_links_own_client_shows_the_proof_and_nothing_of_the_secret(
    app: FastAPI, kit: LinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.state.superexec_auth_secret = kit.secret.read_bytes()
    inner = Caller(Gate(app))
    sent: list[httpx.Request] = []

    def send(request: httpx.Request, **more: Any) -> httpx.Response:
        sent.append(request)
        return inner.send(request)

    control = Control(kit)
    monkeypatch.setattr(control.calls._client, "send", send)
    assert control.nodes() == []
    number = control.register("ward", module.public_key(kit.node_keys["ward"]))
    assert [(node.id, node.name) for node in control.nodes()] == [(number, "ward")]
    control.unregister(number)
    said = b"".join(b"".join([*map(b":".join, r.headers.raw), r.content]) for r in sent)
    for spelling in (kit.secret.read_bytes(), kit.secret.read_bytes().hex().encode()):
        assert spelling not in said


def test_a_client_with_another_secret_waits_for_the_right_one(
    app: FastAPI, kit: LinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job must not fail for good since the secret was replaced while the link ran."""
    inner = Caller(Gate(app))
    control = Control(kit)
    monkeypatch.setattr(control.calls._client, "send", lambda request, **more: inner.send(request))
    with pytest.raises(LinkError, match=r"401.*superexec\.secret"):
        control.start(b"", {})


def test_the_proof_follows_from_the_secret_only() -> None:
    assert proof(SECRET) == proof(SECRET) != proof(SECRET + b"s")
    assert gate.RUNTIME.endswith("/")  # "/v1/runtimes" is another path
