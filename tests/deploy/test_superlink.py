"""The SuperLink's HTTP layers: the Control API keeps all of them, the Runtime API's calls pass by."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flwr.superlink.routers.control import middlewares

from server_app.deploy import superlink


@pytest.mark.parametrize("name", superlink.OF_CONTROL)
def test_layers_of_the_control_api_are_passed_by_others_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = getattr(middlewares, name)
    went: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        went.append(f"app {scope['path']}")

    async def theirs(self: Any, scope: Any, receive: Any, send: Any) -> None:
        went.append(f"layer {scope.get('path', scope['type'])}")

    monkeypatch.setattr(layer, "__call__", theirs)
    for other in set(superlink.OF_CONTROL) - {name}:
        monkeypatch.setattr(getattr(middlewares, other), "__call__", theirs)
    superlink.shorten()
    stack: Any = layer(app)
    paths = ["/v1/runtime/pull-object", "/v1/control/list-runs", "/v1/runtimes", "/health", "//v1/runtime/x"]
    for path in paths:
        asyncio.run(stack({"type": "http", "path": path}, None, None))
    asyncio.run(stack({"type": "lifespan"}, None, None))
    assert went == [f"app {paths[0]}", *(f"layer {path}" for path in paths[1:]), "layer lifespan"]
